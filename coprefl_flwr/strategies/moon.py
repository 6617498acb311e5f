"""MOON: FedAvg with a contrastive loss that keeps representations near the global model's."""

from dataclasses import dataclass, replace

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Budget, Exchange, Mean, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.options import option


@dataclass(kw_only=True, eq=False)
class MOON(RoundStrategy):
    """MOON (Li, He and Song 2021, arxiv.org/abs/2103.16257), Algorithm 1.

    Clients add a contrastive term to their loss (see `MOONClient`). The defaults are those of
    CyclicFL.
    """

    mu: float = option(0.1, "weight of the contrastive term; 0 is FedAvg", minimum=0)
    temperature: float = option(0.5, "temperature tau of the contrastive term", above=0)

    name = "moon"
    averages = means_models = True
    client = "coprefl_flwr.clients:MOONClient"
    roles = ("pretraining", "task")

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the sample-weighted mean of the models, w^{t+1} = sum_k n_k w_k / sum_k n_k."""
        config = {"moon-mu": self.mu, "moon-temperature": self.temperature}
        replies = yield Exchange(
            "train", arrays, ctx.sample(), Mean("num-examples"), config=config, stateful=True
        )
        return replies.arrays, replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return FedAvg's budget plus two forward passes per step: global and previous model."""
        return replace(super().budget(work), forwards=2 * work.participants * work.samples_seen)
