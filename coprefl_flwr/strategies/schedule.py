"""Several strategies in one run, one after another, such as cyclic pre-training and then FedAvg."""

from collections.abc import Sequence
from typing import Any

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import Budget, Exchange, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.federation.budget import UNKNOWN
from coprefl_flwr.federation.strategy import ROUNDS, RUN_OPTIONS, of_run


class Schedule(RoundStrategy):
    """Phases of several strategies (CyclicFL: P1, then P2), each with its own state.

    Rounds are numbered across phases, so a learning rate with a decay per round continues to
    decay. Clients infer the phase from the round, or from the arrays and settings they receive.

    `phases` is a list of (strategy, number of rounds). The last phase lasts until the run ends.
    Each phase has its own number of participants. All other options of the run are taken from the
    first phase, but `average_window` and `average_decay` from the last one, whose mean it is.
    """

    def __init__(self, phases: Sequence[tuple[RoundStrategy, int]]) -> None:
        (first, _), (last, _) = phases[0], phases[-1]
        averages = {name: getattr(last, name) for name in ("average_window", "average_decay")}
        super().__init__(**(of_run(first) | averages))
        for name, value in averages.items():
            if getattr(first, name) not in (None, value):
                raise SettingsError(f"{name}: the mean is that of the last phase; set it there")
        for strategy, rounds in phases:
            if isinstance(strategy, Schedule):
                raise SettingsError("a phase is one strategy, no Schedule")
            ROUNDS.checked(rounds, f"rounds of {type(strategy).__name__}")
            if strategy.participants is not None:
                self.check_participants(strategy.participants)
        self.phases = list(phases)
        self.phase_strategies = [strategy for strategy, _ in phases]

    @property
    def most_participants(self) -> int:
        """Largest number of participants of a phase; the run checks it before the first round."""
        return max(strategy.most_participants or 1 for strategy, _ in self.phases)

    def phase(self, server_round: int) -> tuple[RoundStrategy, int]:
        """Return the strategy of a round, and the number of rounds before its phase."""
        before = 0
        for strategy, rounds in self.phases[:-1]:
            if server_round <= before + rounds:
                return strategy, before
            before += rounds
        return self.phases[-1][0], before

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run the round with the strategy of the current phase."""
        strategy, before = self.phase(ctx.round)
        if ctx.round == before + 1:
            ctx.forget()
        return (yield from strategy.program(ctx.within(strategy, before), arrays))

    def budget(self, work: Work) -> Budget:
        """Return an unknown budget, because each phase has a different budget."""
        return UNKNOWN

    def evaluation_due(self, server_round: int, last_round: int) -> bool:
        """Return whether to evaluate: every few rounds of a phase, and after its last round."""
        before, every = self.phase(server_round)[1], self.rounds_to_evaluation
        ends = [self.phase(server_round + 1)[1], last_round]
        return bool(every) and ((server_round - before) % every == 0 or server_round in ends)

    def evaluation_exchange(self, ctx: RoundContext, arrays: Arrays) -> Exchange:
        """Return the evaluation exchange of the strategy of the current phase."""
        return self.phase(ctx.round)[0].evaluation_exchange(ctx, arrays)

    def options(self) -> dict[str, Any]:
        """Return the options of the run, and the options and number of rounds of each phase."""
        phases = []
        for strategy, rounds in self.phases:
            own = {n: value for n, value in strategy.options().items() if n not in RUN_OPTIONS}
            phases.append({**own, "rounds": rounds})
        phases[-1].pop("rounds")  # The last phase lasts until the run ends.
        run = {n: value for n, value in super().options().items() if n in RUN_OPTIONS}
        return {"strategy": "Schedule", **run, "phases": phases}
