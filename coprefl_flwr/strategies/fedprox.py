"""FedProx: FedAvg whose clients are held near the global model."""

from dataclasses import dataclass
from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.rounds.combine import Mean
from coprefl_flwr.rounds.exchange import Exchange
from coprefl_flwr.rounds.strategy import Round, RoundStrategy


@dataclass(kw_only=True, eq=False)
class FedProx(RoundStrategy):
    """FedProx (Li et al. 2020, arxiv.org/abs/1812.06127), Algorithm 2.

    Parameters
    ----------
    mu : float
        Weight of the proximal term; clients minimise L_k(w) + mu/2 ||w - w^t||^2. It is sent as
        "proximal-mu", as Flower's own FedProx does. 0 is FedAvg.
    """

    mu: float = 0.01

    actions: ClassVar[tuple[str, ...]] = ("train",)
    wrappable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        self.positive("mu", self.mu, or_zero=True)

    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Return w^{t+1} = sum_k n_k w_k / sum_k n_k."""
        clients = self.sample(server_round)
        replies = yield Exchange(
            "train",
            arrays,
            clients,
            combine=Mean("num-examples"),
            config={"proximal-mu": self.mu},
        )
        return replies.arrays, replies.mean_metrics()
