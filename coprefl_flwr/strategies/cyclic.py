"""CyclicFL's pre-training: the model travels from client to client."""

from dataclasses import dataclass
from typing import ClassVar

from coprefl_flwr import seeds
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import RoundFailedError
from coprefl_flwr.rounds.combine import Chain
from coprefl_flwr.rounds.exchange import Exchange, joined
from coprefl_flwr.rounds.strategy import Round, RoundStrategy


@dataclass(kw_only=True, eq=False)
class Cyclic(RoundStrategy):
    """Cyclic training (CyclicFL, Algorithm 1), phase P1: put another strategy behind it.

    The comments name the lines of Algorithm 1. `participants` is K_P1 (a quarter of the clients in
    the paper). A client that fails is skipped: the next one gets the last good model. Nodes that
    host several clients run a stretch of the chain in one message, and a simulation, where any
    node can host any client, the whole chain.
    """

    actions: ClassVar[tuple[str, ...]] = ("train",)

    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Run lines 3 to 11: w_t^{i+1,0} is what the i-th client ends with."""
        # Line 3: S_t, in random order.
        chain = self.chain(server_round)
        # Lines 5 to 10: each client trains the model that the one before it returned.
        links = []
        for stretch in self.stretches(chain):
            link = yield Exchange("train", arrays, stretch, combine=Chain(), needed=0)
            arrays = link.arrays or arrays
            links.append(link)
        trained = joined(links)
        if len(trained.clients) < self.min_replies:
            raise RoundFailedError(
                f"{len(trained.clients)} clients of {len(chain)} trained, needed are "
                f"{self.min_replies}"
            )
        # Line 11: the last client's model begins the next round.
        return arrays, trained.mean_metrics()

    def chain(self, server_round: int) -> list[int]:
        """Draw this round's participants and their order."""
        clients = self.sample(server_round)
        key = (self.seed, self.population, server_round, "order", self._attempt)
        return [clients[position] for position in seeds.generator(*key).permutation(len(clients))]
