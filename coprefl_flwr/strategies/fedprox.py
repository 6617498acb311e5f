"""FedProx: FedAvg whose clients are held near the global model."""

from dataclasses import dataclass
from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.options import option
from coprefl_flwr.rounds.combine import Mean
from coprefl_flwr.rounds.exchange import Exchange
from coprefl_flwr.rounds.strategy import Round, RoundStrategy


@dataclass(kw_only=True, eq=False)
class FedProx(RoundStrategy):
    """FedProx (Li et al. 2020, arxiv.org/abs/1812.06127), Algorithm 2.

    Clients minimise L_k(w) + mu/2 ||w - w^t||^2. mu is sent as "proximal-mu", as Flower's own
    FedProx does.
    """

    mu: float = option(0.01, "weight of the proximal term; 0 is FedAvg", minimum=0)

    name: ClassVar[str] = "fedprox"
    client: ClassVar[str] = "coprefl_flwr.clients:FedProxClient"
    roles: ClassVar[tuple[str, ...]] = (
        "pretraining",
        "task",
    )
    wrappable: ClassVar[bool] = True

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
