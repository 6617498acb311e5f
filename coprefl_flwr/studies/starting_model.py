"""A starting model by its name: one method, or several one after the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import PRETRAINING, RANDOM, ServerDataOf
from coprefl_flwr.strategies import RoundStrategy, Schedule
from coprefl_flwr.studies.phases import Phase, TrainingSettings, read_phase


@dataclass(frozen=True)
class StartingModel:
    """A starting model of the comparison.

    Parameters
    ----------
    name : str
        As the user wrote it, e.g. "coprefl:gamma=0.25" or "cyclic:rounds=20+fedavg".
    phases : tuple[Phase, ...]
        The methods that make it, one after the other; none for "random".
    """

    name: str
    phases: tuple[Phase, ...] = ()

    @property
    def rounds(self) -> int:
        """Rounds of all phases."""
        return sum(phase.training.rounds for phase in self.phases)

    @property
    def switch(self) -> int:
        """The last round of the first of several phases; 0 for one phase."""
        return self.phases[0].training.rounds if len(self.phases) > 1 else 0

    def phase(self, server_round: int) -> Phase:
        """Return the phase that a round belongs to."""
        before = 0
        for phase in self.phases[:-1]:
            before += phase.training.rounds
            if server_round <= before:
                return phase
        return self.phases[-1]

    def strategy(self, server: ServerDataOf, **run: Any) -> RoundStrategy:
        """Return the strategy that makes the model."""
        strategies = [
            phase.method.strategy(
                phase.options,
                phase.training,
                server,
                participants=phase.training.participants,
                **run,
            )
            for phase in self.phases
        ]
        rounds = [phase.training.rounds for phase in self.phases]
        return (
            strategies[0]
            if len(strategies) == 1
            else Schedule(list(zip(strategies, rounds, strict=True)))
        )


def read_starting_model(
    name: str, training: TrainingSettings, short: Mapping[str, Any], most_clients: int
) -> StartingModel:
    """Read one entry of `method`: METHOD, METHOD:key=value,..., or several joined by "+"."""
    if name == RANDOM:
        return StartingModel(name)
    phases = [read_phase("method", text, PRETRAINING, training, short) for text in name.split("+")]
    for phase in phases:
        wanted = phase.training.participants
        if wanted > most_clients:
            raise SettingsError(
                f"method, {name}: participants = {wanted}: must be at most clients = {most_clients}"
            )
    return StartingModel(name, tuple(phases))
