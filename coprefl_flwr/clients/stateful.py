"""A client that keeps something from one round to the next."""

from typing import Any

from torch import nn

from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients.torch_client import TorchClient
from coprefl_flwr.data import Samples


class StatefulClient(TorchClient):
    """A client with a state of its own, in files (see `coprefl_flwr.client_state`).

    Parameters
    ----------
    state : ClientState
        Where its state is kept: `ClientState(folder)`, on a disk that outlives the process.
    """

    def __init__(self, model: nn.Module, train: Samples, state: ClientState, **more: Any) -> None:
        super().__init__(model, train, **more)
        self.state = state
