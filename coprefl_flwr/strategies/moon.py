"""MOON: FedAvg whose clients learn representations near the global model's."""

from dataclasses import dataclass
from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.rounds.combine import Mean
from coprefl_flwr.rounds.exchange import Exchange
from coprefl_flwr.rounds.strategy import Round, RoundStrategy


@dataclass(kw_only=True, eq=False)
class MOON(RoundStrategy):
    """MOON (Li, He and Song 2021, arxiv.org/abs/2103.16257), Algorithm 1.

    The contrastive term is the clients' (see `MOONClient`).

    Parameters
    ----------
    mu : float
        Weight of the contrastive term; 0 is FedAvg. CyclicFL uses 0.1.
    temperature : float
        tau of the contrastive term; CyclicFL uses 0.5.
    """

    mu: float = 0.1
    temperature: float = 0.5

    actions: ClassVar[tuple[str, ...]] = ("train",)

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        self.positive("mu", self.mu, or_zero=True)
        self.positive("temperature", self.temperature)

    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Return w^{t+1} = sum_k n_k w_k / sum_k n_k."""
        clients = self.sample(server_round)
        replies = yield Exchange(
            "train",
            arrays,
            clients,
            combine=Mean("num-examples"),
            config={"moon-mu": self.mu, "moon-temperature": self.temperature},
            stateful=True,
        )
        return replies.arrays, replies.mean_metrics()
