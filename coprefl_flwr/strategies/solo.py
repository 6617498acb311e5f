"""Solo: every client trains by itself."""

from dataclasses import dataclass, replace
from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.rounds.combine import Nothing
from coprefl_flwr.rounds.exchange import Exchange
from coprefl_flwr.rounds.network import Network
from coprefl_flwr.rounds.strategy import Round, RoundStrategy


@dataclass(kw_only=True, eq=False)
class Solo(RoundStrategy):
    """Local training without any exchange: what a federated method must be better than.

    The rounds make it comparable with other methods; the run starts with no arrays at all.
    """

    name: ClassVar[str] = "solo"
    client: ClassVar[str] = "coprefl_flwr.clients:SoloClient"
    roles: ClassVar[tuple[str, ...]] = ("personalised",)
    travels: ClassVar[str] = "nothing"
    tested_with: ClassVar[str] = "its own model"

    @classmethod
    def initial(cls, network: Network) -> Arrays:
        """Return no arrays: the models stay with the clients."""
        return {}

    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Let every client train on what it has."""
        clients = self.sample(server_round)
        replies = yield Exchange("train", arrays, clients, combine=Nothing(), stateful=True)
        return arrays, replies.mean_metrics()

    def evaluation_exchange(self, arrays: Arrays, clients: list[int]) -> Exchange:
        """Return the exchange that evaluates each client's own model."""
        return replace(super().evaluation_exchange(arrays, clients), stateful=True)
