"""Two controls for CoPreFL: its support split without its meta step, and a plain server step."""

from dataclasses import dataclass

from coprefl_flwr.clients import CoPreFLClient
from coprefl_flwr.federation import Budget, Exchange, Mean, Total
from coprefl_flwr.learning.meta import descend
from coprefl_flwr.options import option
from coprefl_flwr.strategies import FedAvg


class OnAllSamples(CoPreFLClient):
    """Trains on all samples, also on its query set, which is the same as CoPreFL's."""

    def training_samples(self, config):
        """Return all samples."""
        return self.train


class FedAvgOnSupport(FedAvg):
    """FedAvg on CoPreFL's support sets: CoPreFL without its meta step (zeta = 0)."""

    client = CoPreFLClient
    roles = ("pretraining",)

    def budget(self, work):
        """Return the costs of the steps on the support sets."""
        support = work.on_fraction(work.options["support-fraction"])
        return Budget(support.step_sum, work.participants * support.samples_seen)


@dataclass(kw_only=True, eq=False)
class FedAvgThenStep(FedAvg):
    """A FedAvg round on all samples, then a FedSGD step at the averaged model on the query sets.

    Summed, with `step_learning_rate` as zeta, it is CoPreFL with gamma = 1, whose second term has
    no weight, except that clients train on all samples: there is no support split.
    """

    step_learning_rate: float = option(1e-3, "step size of the server's step", minimum=0)
    step_along: str = option(
        "sum", "the gradients of the query losses are summed or averaged", choices=("sum", "mean")
    )

    client = OnAllSamples
    roles = ("pretraining",)
    actions = ("train", "train.query")

    def round(self, ctx, arrays):
        """Return w - rate x sum_j grad L_j(w), where w is the mean of the participants' models."""
        local = yield Exchange("train", arrays, ctx.sample(), Mean("num-examples"))
        query = yield Exchange("train.query", local.arrays, local.clients, Total())
        rate = self.step_learning_rate
        if self.step_along == "mean":
            rate /= len(query.clients)
        metrics = local.mean_metrics() | {"query-loss": float(query.metrics["loss"].mean())}
        return descend(local.arrays, query.sums["sum"], rate), metrics

    def budget(self, work):
        """Return FedAvg's costs, and those of the gradients on the query sets."""
        queries = work.samples - work.on_fraction(work.options["support-fraction"]).samples
        gradients = work.participants if self.step_along == "sum" else 1
        step = self.step_learning_rate * gradients
        return super().budget(work).and_server(step, work.participants * queries)
