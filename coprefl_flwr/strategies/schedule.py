"""One strategy after another in the same run: cyclic pre-training, then any method."""

from collections.abc import Sequence
from typing import Any

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError, short
from coprefl_flwr.rounds import Exchange, Round, RoundStrategy
from coprefl_flwr.rounds.strategy import ROUNDS, RUN_OPTIONS


class Schedule(RoundStrategy):
    """Phases of several strategies (CyclicFL: P1, then P2), each with its own state.

    Rounds are counted through, so that a learning rate that decays by the round goes on decaying.
    Clients find the phase by the round, or by the arrays and settings they are sent.

    `phases` are strategies and their numbers of rounds; the last goes on for as long as the run
    does. How many take part is each phase's own; all other options of a run are the first's.
    """

    local_training = False  # Each phase trains, and has a budget, of its own.

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
        super().__init__(**{name: getattr(first, name) for name in RUN_OPTIONS})
        self.bounds = first.bounds.with_losses_of([one.bounds for one, _ in phases])
        for strategy, rounds in phases:
            ROUNDS.checked(rounds, f"rounds of {type(strategy).__name__}")
            if strategy.participants is not None:
                self.enough(strategy.participants)
        self.phases = list(phases)
        self.needs_only_sums = all(one.needs_only_sums for one, _ in phases)  # type: ignore[misc]
        actions = dict.fromkeys(action for strategy, _ in phases for action in strategy.actions)
        self.actions = tuple(actions)  # type: ignore[misc]

    def phase(self, server_round: int) -> tuple[RoundStrategy, int]:
        """Return a round's strategy, and the last round before its phase."""
        before = 0
        for strategy, rounds in self.phases[:-1]:
            if server_round <= before + rounds:
                return strategy, before
            before += rounds
        return self.phases[-1][0], before

    def round(self, server_round: int, arrays: Arrays) -> Round:
        """Run the round of the strategy whose turn it is."""
        link = self._engine.link
        wanted = max(strategy.participants or 1 for strategy, _ in self.phases)
        # A phase that wants more clients than there are is refused before the first one begins.
        if not link.begun and wanted > (there := len(link.clients(wanted))):
            raise SettingsError(f"participants = {wanted}: there are only {there} clients")
        strategy, before = self.phase(server_round)
        if server_round == before + 1:
            self.state.clear()
            self.versions.committed.clear()
        strategy.join(self)
        return (yield from strategy.round(server_round, arrays))

    def evaluation_due(self, server_round: int, last_round: int) -> bool:
        """Count the rounds of each phase by themselves; the last of each is evaluated too."""
        before, every = self.phase(server_round)[1], self.evaluate_every
        ends = [self.phase(server_round + 1)[1], last_round]
        return bool(every) and ((server_round - before) % every == 0 or server_round in ends)

    def evaluation_exchange(self, arrays: Arrays, clients: list[int]) -> Exchange:
        """Return the evaluation of the strategy whose turn it is."""
        return self.phase(self._engine.round)[0].evaluation_exchange(arrays, clients)

    def options(self) -> dict[str, Any]:
        """Return the run's options, every phase's own and its rounds."""
        phases = []
        for strategy, rounds in self.phases:
            own = {n: value for n, value in strategy.options().items() if n not in RUN_OPTIONS}
            phases.append({**own, "rounds": rounds})
        phases[-1].pop("rounds")  # It goes on for as long as the run does.
        run = {n: value for n, value in super().options().items() if n in RUN_OPTIONS}
        return {"strategy": "Schedule", **run, "phases": phases}
