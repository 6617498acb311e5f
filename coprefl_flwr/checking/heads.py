"""A stage for methods that make a last layer without training: one round from random weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.methods import HEAD
from coprefl_flwr.models import model_arrays, save_model
from coprefl_flwr.rounds import HeadLayer
from coprefl_flwr.rounds.progress import PRETRAINING_KIND
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.phases import Phase, TrainingSettings, read_phase
from coprefl_flwr.studies.populations import PRETRAINING
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import Stage, Store
from coprefl_flwr.studies.starts import Starts
from coprefl_flwr.studies.study import Study

LAYER = HeadLayer("head", "head.weight", "head.bias")
"""The last layer of `networks.plain` and `networks.tied`."""


class HeadStudy(Study):
    """One stage over the clients of a pre-training; `settings` are those of a random start."""

    def __init__(self, settings: Settings, place: str) -> None:
        super().__init__(settings)
        self.phase: Phase = read_phase("method", place, HEAD, settings.part(TrainingSettings), {})
        self.starts = Starts(settings)
        self.stages = [HeadStage(self)]

    def check(self) -> None:
        """Load the data."""
        self.starts.check()

    def hosted(self, population: str) -> int:
        """Return how many clients there are."""
        return self.starts.hosted(population)

    def client_of_method(self, client_id: int, config: Mapping[str, Any]) -> TorchClient:
        """Return a client of the method."""
        held = self.starts.populations.population(PRETRAINING).clients[client_id]
        return self.phase.method.client(
            self.phase.options,
            self.starts.network(),
            held.train,
            {},
            test=held.test,
            training=LocalTraining(),
        )


class HeadStage(Stage):
    """The round of a method that makes a last layer."""

    kind, phase, measures = PRETRAINING_KIND, HEAD, False

    def __init__(self, study: HeadStudy) -> None:
        super().__init__(study.starts.run, HEAD, HEAD, HEAD, HEAD, rounds=1)
        self.study = study

    def key(self) -> str:
        """Return its name; it is kept in no shared store."""
        return HEAD

    def strategy(self) -> RoundStrategy:
        """Make the strategy."""
        of, run = self.study.phase, self.run.of_strategy(PRETRAINING, head=LAYER)
        return of.method.strategy(of.options, LocalTraining(), run_name=self.study.run_name, **run)

    def initial(self, store: Store) -> Arrays:
        """Return random weights."""
        return model_arrays(self.study.starts.network())

    def clients(self) -> Sequence[str]:
        """Return nothing: they are not evaluated."""
        return ()

    def keep(self, folder: Path, arrays: Arrays, strategy: RoundStrategy | None) -> dict[str, Any]:
        """Write the model."""
        save_model(folder, arrays, {})
        return {}
