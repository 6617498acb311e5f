"""Centralised training on the data of all clients, a reference for federated methods."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Budget, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.named import Choice

if TYPE_CHECKING:
    from coprefl_flwr.learning.server_data import ServerData
    from coprefl_flwr.learning.training import LocalTraining


@dataclass(kw_only=True, eq=False)
class Centralised(RoundStrategy):
    """SGD on the pre-training data of all clients together (Nguyen et al. 2023), without messages.

    CoPreFL's baseline (appendix D.5) uses 50 epochs, batch size 64 and learning rate 1e-3. `server`
    is a `ServerData` with the network and the data of all clients. `training` is the training of
    one round, such as one epoch.
    """

    server: "ServerData" = field(metadata={"option": False})
    training: "LocalTraining" = field(metadata={"option": False})

    name = "centralised"
    loss_of = "chain"
    means_models = True
    server_data = "clients"
    training_defaults: ClassVar = {"local-epochs": 1, "batch-size": 64}
    actions = ()

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Return the model after training on all data; the round has no exchange with clients."""
        yield from ()
        key = ctx.key("centralised")
        trained, loss = self.server.refine(arrays, self.training, ctx.round, *key)
        return trained, {"loss": loss}

    def budget(self, work: Work) -> Budget:
        """Return the budget of one round of SGD on the server's data."""
        steps = Work(1, [len(self.server)], self.training)
        return Budget(steps.step_sum, steps.samples_seen)

    def options(self) -> dict[str, Any]:
        """Return the strategy's options and those of the training."""
        # Choices, such as the loss, may hold functions of the user.
        how = {n: str(v) if isinstance(v, Choice) else v for n, v in vars(self.training).items()}
        return super().options() | how


class CentralisedHybrid(Centralised):
    """Centralised training on the data of clients and server, the reference in scenario II."""

    name = "centralised-hybrid"
    server_data = "both"
