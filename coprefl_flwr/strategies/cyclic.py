"""CyclicFL's pre-training: clients train the same model, one client after another."""

from typing import ClassVar

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Budget, Round, RoundContext, RoundStrategy, Work


class Cyclic(RoundStrategy):
    """Cyclic pre-training (CyclicFL, Algorithm 1, phase P1); use `Schedule` to add phase P2.

    Each participant trains the model that the participant before it returned. `participants` is
    K_P1 (a quarter of the clients in the paper). If a client fails, the next client gets the last
    valid model. A node that hosts several clients runs a segment of the chain per message. In a
    simulation, where any node can host any client, one message runs the whole chain.
    """

    name = "cyclic"
    loss_of = "chain"
    means_models = True
    training_defaults: ClassVar = {"local-epochs": 5, "max-local-steps": 20}

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run lines 3 to 11: client i + 1 starts with client i's trained model, w_t^{i+1,0}."""
        # Line 3: S_t, in random order.
        clients = ctx.sample()
        order = ctx.random("order").permutation(len(clients))
        # Lines 5 to 10: each client trains the model that the client before it returned.
        trained = yield from ctx.chain(arrays, [clients[position] for position in order])
        # Line 11: the next round starts from the last client's model.
        return trained.arrays, trained.mean_metrics()

    def budget(self, work: Work) -> Budget:
        """Return the budget: the model takes the steps of all participants, one after another."""
        return Budget(work.participants * work.step_sum, work.participants * work.samples_seen)
