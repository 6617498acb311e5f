"""A study: a list of stages over populations of clients, run one after the other.

The folder of a study, OUTPUT-DIR/RUN-NAME, contains:

    .coprefl                           marks the folder as written by this package (see `files`)
    settings.yaml                      the settings of the study, defaults included
    starts/START/model.safetensors     a starting model; model.json next to it: how it was made
    start-loss/START/                  the model's loss on all pre-training data, if `start-loss`
    tasks/NUMBER/START/                a task that begins with a starting model
    diagnoses/NUMBER/START/            measurements of the model in a task, if `diagnostics`
    methods/METHOD/                    a personalised method: global arrays, clients' models
    .../result.json                    a stage's rows and rounds (see `stage`)
    .../made-of.json                   the inputs that the stage was computed from (see `store`)
    features/                          features of a personalised study, while the study runs
    rows.jsonl, rounds.jsonl           the rows and rounds of all stages
    about.json                         everything else that a report shows
    report/report.html                 the comparison (see `coprefl_flwr.report`)

An interrupted study continues with the first stage that has no result yet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context

from coprefl_flwr.federation.flower import NumPyClient
from coprefl_flwr.files import inside
from coprefl_flwr.studies.stage import FEATURES, FOLDER, STAGE, ClientFolders, Stage, TrainingStage
from coprefl_flwr.studies.store import STATES


@dataclass(eq=False)
class Study:
    """Stages that are run one after the other. Server and client processes build equal studies.

    Parameters
    ----------
    stages : Sequence[Stage]
        The stages in the order in which they run. If a stage needs another stage's result, the
        other stage comes first.
    config : Mapping[str, Any]
        The settings that the study was built from. Empty for a study of Python objects.
    root : Path
        The folder below which clients of this process keep their files. Messages contain only paths
        relative to this folder.
    """

    stages: Sequence[Stage]
    config: Mapping[str, Any] = field(default_factory=dict)
    root: Path = Path()

    def check(self) -> None:
        """Load the data. Raise a SettingsError if a setting does not fit the data."""
        for stage in self.stages:
            stage.check()

    def client(self, context: Context, client_id: int, config: Mapping[str, Any]) -> NumPyClient:
        """Return the client that a message with this config addresses; serves as `client_fn`."""
        (stage,) = (stage for stage in self.stages if stage.path == config[STAGE])
        assert isinstance(stage, TrainingStage)
        states = inside(self.root, str(config.get(FOLDER, ""))) / STATES
        features = inside(self.root, str(config[FEATURES])) if FEATURES in config else self.root
        folders = ClientFolders(states, features)
        return stage.client(client_id, int(config["server-round"]), folders)
