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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import SettingsError
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


@dataclass(frozen=True)
class Run:
    """A run: one method with one seed (and `data-seed`), which are all that its `settings` name.

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
    def study(self) -> Study:
        """The run's stages and their clients."""
        return build(self.shared)

    def clients(self, folder: Path) -> ClientApp:
        """Return the ClientApp of the run's clients, which keep their files below `folder`."""
        settings = replace(self.shared, output_dir=str(folder))
        return client_app(functools.partial(_client, settings))

    @property
    def name(self) -> str:
        """The label of the run's row, or else its method, with file names instead of paths."""
        return self.label or self.settings.method.without_folders

    @property
    def seeds(self) -> str:
        """The run's seed, or its draw and seed: "seed 1", "draw 3, seed 1"."""
        return run_name(self.settings.seed, self.settings.data_seed)

    @property
    def main(self) -> Stage:
        """The first stage: the pre-training, or the personalised method."""
        return self.study.stages[0]

    @property
    def client_stages(self) -> list[Stage]:
        """The stages with a result row per client: the tasks, or the personalised method."""
        return [stage for stage in self.study.stages if stage.has_client_rows]

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
