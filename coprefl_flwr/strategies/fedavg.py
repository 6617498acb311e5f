"""FedAvg: the sample-weighted mean of the participants' models."""

from dataclasses import dataclass, field
from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Exchange, Mean, Round, RoundContext, RoundStrategy


@dataclass(kw_only=True, eq=False)
class FedAvg(RoundStrategy):
    """Federated averaging (McMahan et al. 2017, arxiv.org/abs/1602.05629), Algorithm 1.

    The class does not use Flower's FedAvg, so that all methods are compared with the same sampling,
    seeds and hosting.
    """

    weighted_by_key: str = field(default="num-examples", metadata={"option": False})
    """Key of the metric that weights the models, as in Flower's FedAvg."""

    name = "fedavg"
    averages = means_models = True
    roles: ClassVar[tuple[str, ...]] = ("pretraining", "task", "personalised")

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the sample-weighted mean of the models, w^{t+1} = sum_k n_k w_k / sum_k n_k."""
        replies = yield Exchange("train", arrays, ctx.sample(), Mean(self.weighted_by_key))
        return replies.arrays, replies.mean_metrics(self.weighted_by_key)
