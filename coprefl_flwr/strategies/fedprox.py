"""FedProx: FedAvg whose clients are held near the global model."""

from dataclasses import dataclass, field

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Exchange, Mean, Round, RoundContext, RoundStrategy
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class FedProx(RoundStrategy):
    """FedProx (Li et al. 2020, arxiv.org/abs/1812.06127), Algorithm 2.

    Clients minimise L_k(w) + mu/2 ||w - w^t||^2. mu is sent as "proximal-mu", as Flower's own
    FedProx does.
    """

    mu: float = option(0.01, "weight of the proximal term; 0 is FedAvg", minimum=0)

    weighted_by_key: str = field(default="num-examples", metadata={"option": False})
    """The metric by which models are weighted, as Flower's FedProx has it."""

    name = "fedprox"
    averages = True
    client = "coprefl_flwr.clients:FedProxClient"
    roles = ("pretraining", "task")

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return w^{t+1} = sum_k n_k w_k / sum_k n_k."""
        replies = yield Exchange(
            "train",
            arrays,
            ctx.sample(),
            Mean(self.weighted_by_key),
            config={"proximal-mu": self.mu},
        )
        return replies.arrays, replies.mean_metrics(self.weighted_by_key)
