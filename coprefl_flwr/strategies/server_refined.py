"""Refinement on the server: each round of a strategy is followed by SGD on the server's data."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation import Budget, Exchange, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.federation.strategy import DRAWN, of_run
from coprefl_flwr.options import option

if TYPE_CHECKING:
    from coprefl_flwr.learning.server_data import ServerData


@dataclass(kw_only=True, eq=False, init=False)
class ServerRefined(RoundStrategy):
    """SGD on the server's data after each round: the baselines of scenario II (CoPreFL, sec. 4.1).

    After each round of the strategy `inner`, the server takes `steps` SGD steps on its data D^s,
    which are `server`. If `inner` is a `CoPreFL`, the method is CoPreFL-SGD. The paper takes 5
    steps with batch size 32 and learning rate 1e-3. The options of `inner`, such as participants
    and seed, are the options of the run.
    """

    steps: int = option(
        5, "SGD steps on the server's data per round", unit="steps", minimum=0, key="server-steps"
    )
    learning_rate: float = option(
        0.05,
        "learning rate of the SGD steps on the server's data",
        above=0,
        key="server-learning-rate",
    )

    server_data = "server"

    def __init__(
        self,
        inner: RoundStrategy,
        server: "ServerData",
        *,
        steps: int = 5,
        batch_size: int = 32,
        learning_rate: float = 0.05,
    ) -> None:
        # Imported here, because it imports torch, which not all strategies need.
        from coprefl_flwr.learning.training import LocalTraining

        self.inner, self.server = inner, server
        self.steps, self.batch_size, self.learning_rate = steps, batch_size, learning_rate
        drawn = {name: getattr(inner, name) for name in DRAWN}
        super().__init__(**of_run(inner), **drawn)
        how = LocalTraining(local_steps=steps, learning_rate=learning_rate, batch_size=batch_size)
        self.training = replace(how, precision=server.precision, loss=server.loss)

    @property
    def most_participants(self) -> int | None:
        """Largest number of clients in a round of the inner method."""
        return self.inner.most_participants

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run a round of the inner method, then refine its result."""
        arrays, metrics = yield from self.inner.program(ctx.within(self.inner, ctx.before), arrays)
        key = ctx.key("server-refinement")
        refined, loss = self.server.refine(arrays, self.training, 1, *key)
        return refined, metrics | {"server-loss": loss}

    def budget(self, work: Work) -> Budget:
        """Return the budget of the inner method plus that of the steps on D^s."""
        steps = Work(1, [len(self.server)], self.training)
        rates = self.learning_rate * steps.step_sum
        return self.inner.budget(work).and_server(rates, steps.samples_seen)

    def evaluation_exchange(self, ctx: RoundContext, arrays: Arrays) -> Exchange:
        """Return the evaluation exchange of the inner method."""
        return self.inner.evaluation_exchange(ctx, arrays)

    def options(self) -> dict[str, Any]:
        """Return the options of the inner method and of the refinement."""
        inner = self.inner.options()
        return inner | {
            "strategy": f"ServerRefined({inner['strategy']})",
            "steps": self.steps,
            "batch_size": self.batch_size,
            "server_learning_rate": self.learning_rate,
        }
