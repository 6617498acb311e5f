"""FedRep: the mean of the participants' bodies; each client keeps a head of its own."""

from dataclasses import dataclass, replace
from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.rounds.combine import Mean
from coprefl_flwr.rounds.exchange import Exchange
from coprefl_flwr.rounds.network import Network
from coprefl_flwr.rounds.strategy import Round, RoundStrategy


@dataclass(kw_only=True, eq=False)
class FedRep(RoundStrategy):
    """FedRep (Collins et al. 2021, arxiv.org/abs/2102.07078), Algorithm 1.

    The global arrays are the body: the first arrays of the clients' network, as many as the run
    starts with. The others are the head.
    """

    name: ClassVar[str] = "fedrep"
    client: ClassVar[str] = "coprefl_flwr.clients:FedRepClient"
    roles: ClassVar[tuple[str, ...]] = ("personalised",)
    travels: ClassVar[str] = "all but the last layer"
    tested_with: ClassVar[str] = "that under its own last layer"

    @classmethod
    def initial(cls, network: Network) -> Arrays:
        """Return all arrays but the head's, which must be the last ones."""
        names = list(network.arrays)
        if set(names[len(names) - len(network.head) :]) != network.head:
            raise SettingsError(
                f"model = {network.name}: fedrep needs its last layer to be the head", "model"
            )
        return {n: array for n, array in network.arrays.items() if n not in network.head}

    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Return the unweighted mean of the participants' bodies."""
        clients = self.sample(server_round)
        replies = yield Exchange("train", arrays, clients, combine=Mean(""), stateful=True)
        return replies.arrays, replies.mean_metrics()

    def evaluation_exchange(self, arrays: Arrays, clients: list[int]) -> Exchange:
        """Return the exchange that evaluates the global body under each client's own head."""
        return replace(super().evaluation_exchange(arrays, clients), stateful=True)
