"""Solo: every client trains a personal model alone."""

from typing import TYPE_CHECKING

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Exchange, MetricsOnly, Round, RoundContext, RoundStrategy
from coprefl_flwr.federation.budget import Budget, Work

if TYPE_CHECKING:
    from coprefl_flwr.models.build import Network


class Solo(RoundStrategy):
    """Local training without any exchange of models: the baseline of federated methods.

    The training is divided into rounds, so that it can be compared with other methods. There are no
    global arrays.
    """

    name = "solo"
    client = "coprefl_flwr.clients:SoloClient"
    roles = ("personalised",)

    @classmethod
    def initial(cls, network: "Network") -> Arrays:
        """Return no arrays, because clients do not send their models."""
        return {}

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Let every client train on its own samples."""
        replies = yield Exchange("train", arrays, ctx.sample(), MetricsOnly(), stateful=True)
        return arrays, replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return the budget of local training; no weights are shared, so step_sum is 0."""
        return Budget(0.0, work.participants * work.samples_seen)
