"""A client that keeps something from one round to the next."""

from typing import Any, ClassVar

from torch import nn

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients.torch_client import Config, TorchClient
from coprefl_flwr.data import Samples
from coprefl_flwr.errors import SettingsError


class StatefulClient(TorchClient):
    """A client with a state of its own, in files (see `coprefl_flwr.client_state`).

    Parameters
    ----------
    state : ClientState
        Where its state is kept: `ClientState(folder)`, on a disk that outlives the process.
    initial : Arrays, optional
        For methods whose state is weights of the client's own: what these begin with. `model` may
        be shared by clients, so its weights cannot be taken.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"state", "initial"})

    def __init__(
        self,
        model: nn.Module,
        train: Samples,
        *,
        state: ClientState,
        initial: Arrays | None = None,
        **more: Any,
    ) -> None:
        super().__init__(model, train, **more)
        self.state = state
        self.initial = initial

    def own_weights(self, config: Config) -> Arrays:
        """Return the weights that stay with the client, `initial` while it has no state."""
        found = self.state.read(config) or self.initial
        if not found:
            raise SettingsError(f"{type(self).__name__} keeps weights of its own: give it initial")
        return found
