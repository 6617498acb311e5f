"""The runs of a recipe, and the folder of their results.

A run is one entry of `method` with one seed: a study of one starting model and its tasks, or of one
personalised method. The results of a stage are in the folder MODELS/KEY. KEY contains a hash of all
that the results depend on, so all recipes share the results, and no stage runs twice:

    MODELS/KEY/model.safetensors, model.json, result.json    a starting model
    MODELS/KEY/tasks/KEY/result.json                         a task from it
    MODELS/KEY/global.safetensors, ..., result.json          a personalised method
    MODELS/features/KEY/                                     features of images, by backbones

The hashes make these names unique, so MODELS can also hold other files.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from flwr.app import Context
from flwr.clientapp import ClientApp

from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.flower import NumPyClient
from coprefl_flwr.methods import PERSONALISED, PRETRAINING
from coprefl_flwr.report.columns import STEP_SIZE
from coprefl_flwr.report.comparison import run_name
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.costs import cost, rounds_for
from coprefl_flwr.studies.hashes import hash_of
from coprefl_flwr.studies.known_methods import Methods
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.settings import STARTS, Settings
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.study import Study

ROLES = {STARTS: PRETRAINING, PERSONALISED: PERSONALISED}
"""Role of the compared methods, by kind of study."""


class StudyRun(ABC):
    """A run: the stages of one method with one seed, of a recipe or of Python objects."""

    study: Study
    """The run's stages and their clients."""
    name: str
    """The name of the run's method in the log."""
    seeds: str
    """The run's seed, or its draw and seed: "seed 1", "draw 3, seed 1"."""

    @abstractmethod
    def clients(self, folder: Path) -> ClientApp:
        """Return the ClientApp of the run's clients, which keep their files below `folder`."""

    @abstractmethod
    def shortened(self) -> Self:
        """Return the run with a quarter of the rounds, also of those that a method itself sets."""

    @property
    def main(self) -> Stage:
        """The first stage: the pre-training, or the personalised method."""
        return self.study.stages[0]

    @property
    def client_stages(self) -> list[Stage]:
        """The stages with a result row per client: the tasks, or the personalised method."""
        return [stage for stage in self.study.stages if stage.has_client_rows]

    @property
    def rounds(self) -> int:
        """Number of rounds of all stages."""
        return sum(stage.rounds for stage in self.study.stages)

    @functools.cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of the run's stages. Two runs with the same keys are the same run."""
        return tuple(stage.key for stage in self.study.stages)

    @property
    def key(self) -> str:
        """The run's key: its methods, and a hash of all that its first stage depends on."""
        return self.keys[0]

    @property
    def identity(self) -> str:
        """The run's key, and a hash of its tasks: runs with the same start have the same key."""
        tasks = list(self.keys[1:])
        return f"{self.key}/{hash_of({'tasks': tasks})}" if tasks else self.key


@dataclass(frozen=True)
class Run(StudyRun):
    """A run of a recipe: one method with one seed (and `data-seed`), all of them in `settings`.

    `label` is the name of its row in the table, which the log shows.
    """

    settings: Settings
    label: str = field(default="", compare=False)

    @classmethod
    def of(cls, config: Mapping[str, Any], method: Method | str, seed: int) -> "Run":
        """Return the run of a method with a seed."""
        return cls(Settings.from_config({**config, "method": Method.read(method), "seed": seed}))

    @functools.cached_property
    def shared(self) -> Settings:
        """The run's settings; settings that change no result, such as folders, have defaults."""
        return replace(self.settings, output_dir="outputs", checkpoint_every=1)

    @property
    def study(self) -> Study:  # type: ignore[override]
        """The run's stages and their clients."""
        return build(self.shared)

    def clients(self, folder: Path) -> ClientApp:
        """Return the ClientApp of the run's clients, which keep their files below `folder`."""
        settings = replace(self.shared, output_dir=str(folder))
        return client_app(functools.partial(_client, settings))

    @property
    def name(self) -> str:  # type: ignore[override]
        """The label of the run's row, or else its method, with file names instead of paths."""
        return self.label or self.settings.method.without_folders

    @property
    def seeds(self) -> str:  # type: ignore[override]
        """The run's seed, or its draw and seed: "seed 1", "draw 3, seed 1"."""
        return run_name(self.settings.seed, self.settings.data_seed)

    def shortened(self) -> "Run":
        """Return the run with a quarter of the rounds, also of those that a method itself sets."""
        rounds, of_tasks = map(quarter, (self.settings.rounds, self.settings.task_rounds))
        own = Methods(quarter_of(method) for method in self.settings.method)
        cut = replace(self.settings, method=own, rounds=rounds, task_rounds=of_tasks)
        return replace(self, settings=cut)


PART = 4
"""A short run has 1 / PART of the rounds; the best 1 / PART of the values are run to the end."""


def quarter(rounds: int) -> int:
    """Return the number of rounds of a short run: a quarter, rounded up."""
    return math.ceil(rounds / PART)


def quarter_of(method: Method) -> Method:
    """Return a method with a quarter of the rounds that it sets itself."""

    def cut(phase: Method) -> Method:
        own = dict(phase.options).get("rounds")
        return phase.having({"rounds": quarter(own)}) if isinstance(own, int) else phase

    return method.changed(cut)


def _client(
    settings: Settings, context: Context, client_id: int, config: Mapping[str, Any]
) -> NumPyClient:
    """Return a client of the study of these settings, which a process builds once for a run."""
    return build(settings).client(context, client_id, config)


def with_step_size(run: Run, reference: Run) -> Run:
    """Return a run with the rounds that bring its summed step size nearest to the reference's.

    A run whose start is not trained is returned unchanged. Raises a SettingsError if the run's
    step sizes are unknown or their sum never reaches the reference's.
    """
    if run == reference or not _pretraining(run).phases:
        return run
    rounds = _rounds(run, reference)
    methods = Methods(method.with_rounds(rounds) for method in run.settings.method)
    return replace(run, settings=replace(run.settings, method=methods))


@functools.lru_cache(maxsize=1024)
def _rounds(run: Run, reference: Run) -> int:
    wanted = cost(_pretraining(reference)).step_size
    if not wanted > 0:
        problem = f"equal: {STEP_SIZE}: the summed step size of the reference, {reference.name}, is"
        raise SettingsError(f"{problem} {wanted:g}: name a method with a sum above 0", "reference")
    return rounds_for(_pretraining(run), wanted)


def _pretraining(run: Run) -> Pretraining:
    assert isinstance(run.main, Pretraining)
    return run.main
