"""One strategy after another in the same run: cyclic pre-training, then any method."""

from collections.abc import Sequence
from typing import Any

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError, short
from coprefl_flwr.federation import Budget, Exchange, Round, RoundContext, RoundStrategy, Work
from coprefl_flwr.federation.budget import UNKNOWN
from coprefl_flwr.federation.strategy import ROUNDS, RUN_OPTIONS, of_run


class Schedule(RoundStrategy):
    """Phases of several strategies (CyclicFL: P1, then P2), each with its own state.

    Rounds are numbered across phases, so that a learning rate that decays by the round keeps
    decaying. Clients find the phase by the round, or by the arrays and settings they are sent.

    `phases` are strategies and their numbers of rounds; the last lasts until the run ends. Each
    phase has its own number of participants; all other options of a run are those of the first
    phase.
    """

    def __init__(self, phases: Sequence[tuple[RoundStrategy, int]]) -> None:
        if not phases:
            raise SettingsError("a schedule needs at least one phase")
        for phase in phases:
            match phase:
                case (RoundStrategy(), _):
                    continue
            needed = "a pair of a strategy and its number of rounds"
            example = "such as (Cyclic(participants=5), 10)"
            raise SettingsError(f"a phase is {short(repr(phase))}; needed is {needed}, {example}")
        first, _ = phases[0]
        super().__init__(**of_run(first))
        for strategy, rounds in phases:
            ROUNDS.checked(rounds, f"rounds of {type(strategy).__name__}")
            if strategy.participants is not None:
                self.check_participants(strategy.participants)
        self.phases = list(phases)

    @property
    def most_participants(self) -> int:
        """What the phase asks for that wants most: refused before the first one begins."""
        return max(strategy.most_participants or 1 for strategy, _ in self.phases)

    def phase(self, server_round: int) -> tuple[RoundStrategy, int]:
        """Return a round's strategy, and the last round before its phase."""
        before = 0
        for strategy, rounds in self.phases[:-1]:
            if server_round <= before + rounds:
                return strategy, before
            before += rounds
        return self.phases[-1][0], before

    def round(self, ctx: RoundContext, arrays: Arrays) -> Round:
        """Run the round of the strategy whose turn it is."""
        strategy, before = self.phase(ctx.round)
        if ctx.round == before + 1:
            ctx.forget()
        return (yield from strategy.program(ctx.within(strategy), arrays))

    def budget(self, work: Work) -> Budget:
        """Return that it is not known: each phase has its own budget."""
        return UNKNOWN

    def evaluation_due(self, server_round: int, last_round: int) -> bool:
        """Count the rounds of each phase by themselves; the last of each is evaluated too."""
        before, every = self.phase(server_round)[1], self.rounds_to_evaluation
        ends = [self.phase(server_round + 1)[1], last_round]
        return bool(every) and ((server_round - before) % every == 0 or server_round in ends)

    def evaluation_exchange(
        self, ctx: RoundContext, arrays: Arrays, clients: Sequence[int]
    ) -> Exchange:
        """Return the evaluation of the strategy whose turn it is."""
        return self.phase(ctx.round)[0].evaluation_exchange(ctx, arrays, clients)

    def options(self) -> dict[str, Any]:
        """Return the run's options, every phase's own and its rounds."""
        phases = []
        for strategy, rounds in self.phases:
            own = {n: value for n, value in strategy.options().items() if n not in RUN_OPTIONS}
            phases.append({**own, "rounds": rounds})
        phases[-1].pop("rounds")  # It goes on for as long as the run does.
        run = {n: value for n, value in super().options().items() if n in RUN_OPTIONS}
        return {"strategy": "Schedule", **run, "phases": phases}
