"""FedProto: clients share class prototypes, and each client has a personal model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coprefl_flwr.arrays import Arrays, cast_like
from coprefl_flwr.federation import Exchange, PerClient, Round, RoundContext, RoundStrategy
from coprefl_flwr.federation.budget import Budget, Work
from coprefl_flwr.learning.prototypes import aggregated, no_prototypes
from coprefl_flwr.options import option

if TYPE_CHECKING:
    from coprefl_flwr.models.build import Network


@dataclass(kw_only=True, eq=False)
class FedProto(RoundStrategy):
    """FedProto (Tan et al. 2022, arxiv.org/abs/2105.00243), Algorithm 1.

    The global arrays are a set of prototypes (see `coprefl_flwr.learning.prototypes`), at first
    `no_prototypes`. In round 1 there are no prototypes, so clients minimise only cross-entropy.
    """

    mu: float = option(
        1.0, "lambda, the weight of the distance to the global prototypes", minimum=0
    )

    name = "fedproto"
    client = "coprefl_flwr.clients:FedProtoClient"
    roles = ("personalised",)

    @classmethod
    def initial(cls, network: "Network") -> Arrays:
        """Return an empty set of prototypes, whose rows have the last layer's input dimension."""
        return no_prototypes(network.num_classes, network.representation)

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the global prototypes: the clients' means, weighted by their numbers of samples.

        C^(j) = sum_{i in N_j} |D_ij| / N_j C_i^(j) is eq. 6 without its factor 1 / |N_j|.
        """
        config = {"fedproto-mu": self.mu}
        replies = yield Exchange(
            "train", arrays, ctx.sample(), PerClient(), config=config, stateful=True
        )
        shared = aggregated([replies.sums[str(client)] for client in replies.clients])
        return cast_like(shared, arrays), replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return the budget: gradients and prototypes' forward passes; step_sum 0, as in FedPCL."""
        represented = work.participants * work.samples
        return Budget(0.0, work.participants * work.samples_seen, forwards=represented)
