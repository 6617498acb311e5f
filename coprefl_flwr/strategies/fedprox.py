"""FedProx: FedAvg whose clients add a proximal term to their loss."""

from dataclasses import dataclass

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Exchange, Mean, Round, RoundContext
from coprefl_flwr.options import option
from coprefl_flwr.strategies.fedavg import FedAvg


@dataclass(kw_only=True, eq=False)
class FedProx(FedAvg):
    """FedProx (Li et al. 2020, arxiv.org/abs/1812.06127), Algorithm 2.

    Client k minimises L_k(w) + mu/2 ||w - w^t||^2, where w^t is the global model. mu is sent as
    "proximal-mu", as in Flower's FedProx.
    """

    mu: float = option(0.01, "weight of the proximal term; 0 is FedAvg", minimum=0)

    name = "fedprox"
    client = "coprefl_flwr.clients:FedProxClient"
    roles = ("pretraining", "task")

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the sample-weighted mean of the models, w^{t+1} = sum_k n_k w_k / sum_k n_k."""
        config, rule = {"proximal-mu": self.mu}, Mean(self.weighted_by_key)
        replies = yield Exchange("train", arrays, ctx.sample(), rule, config=config)
        return replies.arrays, replies.mean_metrics(self.weighted_by_key)
