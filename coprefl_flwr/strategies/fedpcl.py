"""FedPCL: clients share class prototypes, and each client has a personal head."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coprefl_flwr.arrays import Arrays, cast_like
from coprefl_flwr.errors import RoundFailedError
from coprefl_flwr.federation import Exchange, PerClient, Round, RoundContext, RoundStrategy
from coprefl_flwr.federation.budget import Budget, Work
from coprefl_flwr.federation.messages import MessageConfig
from coprefl_flwr.learning.prototypes import aggregated, no_prototypes, padded, unit_rows
from coprefl_flwr.options import option

if TYPE_CHECKING:
    from coprefl_flwr.models.build import Network


@dataclass(kw_only=True, eq=False)
class FedPCL(RoundStrategy):
    """FedPCL (Tan et al. 2022, arxiv.org/abs/2209.10083), Algorithm 1.

    The global arrays are a set of prototypes (see `coprefl_flwr.learning.prototypes`), at first
    `no_prototypes`. Round 1 only collects the prototypes of the untrained heads, because the loss
    needs prototypes. Each later round sends the prototypes of all clients that replied in the
    previous round. The variants "both", "global" and "local" are in Table 6, "contrastive" is in
    Table 5. The other two losses of Table 5 are the losses of FedAvg and FedProto.
    """

    variant: str = option(
        "both",
        "loss of the clients: `both` L_g + L_p (eq. 10), one of the two alone (`global`, `local`), "
        "or `contrastive`, the supervised contrastive loss within a batch",
        choices=("both", "global", "local", "contrastive"),
    )
    temperature: float = option(0.07, "temperature tau of eq. 8 and 9", above=0)

    name = "fedpcl"
    client = "coprefl_flwr.clients:FedPCLClient"
    roles = ("personalised",)

    @classmethod
    def initial(cls, network: "Network") -> Arrays:
        """Return an empty set of prototypes, whose rows have the representation's dimension."""
        return no_prototypes(network.num_classes, network.outputs)

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Send the global and all local prototypes; return the new global set (eq. 6 and 7)."""
        more = {"local": ctx.state.get("local", {})}
        config: MessageConfig = {"fedpcl-variant": self.variant, "temperature": self.temperature}
        replies = yield Exchange(
            *("train", arrays, ctx.sample(), PerClient(), more), config=config, stateful=True
        )
        sets = {client: replies.sums[str(client)] for client in replies.clients}
        shared = aggregated(list(sets.values()))
        shared["prototypes"] = unit_rows(shared["prototypes"])
        if np.count_nonzero(shared["counts"]) < 2:
            raise RoundFailedError("the participants have fewer than two classes")
        ctx.state["local"] = {
            str(client): padded(own, shared).astype(arrays["prototypes"].dtype)
            for client, own in sets.items()
        }
        return cast_like(shared, arrays), replies.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return the budget of a round; no weights are shared, so step_sum is 0."""
        clients = work.participants
        represented = clients * work.samples  # Forward passes that compute the prototypes.
        return Budget(0.0, clients * work.samples_seen, forwards=represented)
