"""FedRep: the mean of the participants' bodies; each client has a personal head."""

from typing import TYPE_CHECKING

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import Budget, Exchange, Mean, Round, RoundContext, RoundStrategy, Work

if TYPE_CHECKING:
    from coprefl_flwr.models.build import Network


class FedRep(RoundStrategy):
    """FedRep (Collins et al. 2021, arxiv.org/abs/2102.07078), Algorithm 1.

    The global arrays are the body: the first arrays of the clients' network. The other arrays of
    the network are the head. The number of initial arrays of the run is the number of arrays of the
    body.
    """

    name = "fedrep"
    averages = True
    client = "coprefl_flwr.clients:FedRepClient"
    roles = ("personalised",)

    @classmethod
    def initial(cls, network: "Network") -> Arrays:
        """Return the arrays of the body; the arrays of the head must follow them."""
        body = [name for name in network.arrays if name not in network.head]
        if body != list(network.arrays)[: len(body)] or not 0 < len(body) < len(network.arrays):
            needed = "a trained body, and a trained head whose arrays are the last in state_dict()"
            raise SettingsError(f"model = {network.name}: fedrep needs {needed}", "model")
        return {name: network.arrays[name] for name in body}

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the unweighted mean of the participants' bodies."""
        replies = yield Exchange("train", arrays, ctx.sample(), Mean(""), stateful=True)
        return replies.arrays, replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return the budget: step sizes of the body, and gradients of both body and head."""
        return Budget(work.step_sum, 2 * work.participants * work.samples_seen)
