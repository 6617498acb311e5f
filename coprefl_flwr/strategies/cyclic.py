"""CyclicFL's pre-training: the model is passed from client to client."""

from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Budget, Round, RoundContext, RoundStrategy, Work


class Cyclic(RoundStrategy):
    """Cyclic training (CyclicFL, Algorithm 1), phase P1. `Schedule` adds the next method.

    The comments name the lines of Algorithm 1. `participants` is K_P1 (a quarter of the clients in
    the paper). A client that fails is skipped: the next one gets the last good model. Nodes that
    host several clients run a segment of the chain in one message, and a simulation, where any
    node can host any client, the whole chain.
    """

    name = "cyclic"
    loss_of = "chain"
    training_defaults: ClassVar = {"local-epochs": 5, "max-local-steps": 20}

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run lines 3 to 11: client i + 1 starts with client i's trained model, w_t^{i+1,0}."""
        # Line 3: S_t, in random order.
        clients = ctx.sample()
        order = ctx.random("order").permutation(len(clients))
        # Lines 5 to 10: each client trains the model that the one before it returned.
        trained = yield from ctx.chain(arrays, [clients[position] for position in order])
        # Line 11: the last client's model begins the next round.
        return trained.arrays, trained.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return the steps of all participants: the model takes them one after the other."""
        return Budget(work.participants * work.step_sum, work.participants * work.samples_seen)
