"""MOON: FedAvg whose clients learn representations near the global model's."""

from dataclasses import dataclass
from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.options import option
from coprefl_flwr.rounds.combine import Mean
from coprefl_flwr.rounds.exchange import Exchange
from coprefl_flwr.rounds.strategy import Round, RoundStrategy


@dataclass(kw_only=True, eq=False)
class MOON(RoundStrategy):
    """MOON (Li, He and Song 2021, arxiv.org/abs/2103.16257), Algorithm 1.

    The contrastive term is the clients' (see `MOONClient`). The defaults are CyclicFL's.
    """

    mu: float = option(0.1, "weight of the contrastive term; 0 is FedAvg", minimum=0)
    temperature: float = option(0.5, "temperature tau of the contrastive term", above=0)

    name: ClassVar[str] = "moon"
    client: ClassVar[str] = "coprefl_flwr.clients:MOONClient"
    roles: ClassVar[tuple[str, ...]] = (
        "pretraining",
        "task",
    )

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
