"""A study: a list of stages over populations of clients, run one after the other.

Its folder, OUTPUT-DIR/RUN-NAME:

    .coprefl                           says that the folder is the package's (see `files`)
    settings.yaml                      the settings as used
    starts/START/model.safetensors     a starting model, and model.json: how it was made
    start-loss/START/                  its loss on all pre-training data, if that is asked for
    tasks/NUMBER/START/                a task from a start
    diagnoses/NUMBER/START/            what explains the start's worth in it, if that is asked for
    methods/METHOD/                    a personalised method: its global arrays, its clients' models
    .../result.json                    a stage's rows and rounds (see `stage`)
    .../made-of.json                   what the stage was made of (see `store`)
    features/                          of a personalised study, while it runs
    rows.jsonl, rounds.jsonl           those of all stages; about.json: what a report says besides
    report/report.html                 the comparison (see `coprefl_flwr.report`)

A study that was interrupted continues with the first stage whose result is not there.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.client import NumPyClient

from coprefl_flwr.files import check_links, inside
from coprefl_flwr.studies.phases import check_precisions
from coprefl_flwr.studies.stage import FEATURES, FOLDER, STAGE, ClientFolders, Stage, TrainingStage
from coprefl_flwr.studies.store import STATES


@dataclass(eq=False)
class Study:
    """Stages that are run one after the other; the same in every process that takes part.

    Parameters
    ----------
    stages : Sequence[Stage]
        In the order in which they are run: what a stage begins with is before it.
    config : Mapping[str, Any]
        The settings that it was made of, if it was made of such.
    root : Path
        The folder below which clients of this process keep files; no message names it.
    changed : Mapping[str, Any]
        The settings that a report names: those that count for a result and have no default's value.
    """

    stages: Sequence[Stage]
    config: Mapping[str, Any] = field(default_factory=dict)
    root: Path = Path()
    changed: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def by_path(self) -> Mapping[str, Stage]:
        """The stages by their paths, such as "starts/coprefl"."""
        return {stage.path: stage for stage in self.stages}

    def check(self) -> None:
        """Raise a SettingsError if something cannot be had as set; loads the data."""
        check_precisions([phase for stage in self.stages for phase in stage.phases])
        for stage in self.stages:
            stage.check()

    def client(self, context: Context, client_id: int, config: Mapping[str, Any]) -> NumPyClient:
        """Return the client that a message with this config is about: a `client_fn` of an app."""
        stage = self.by_path[str(config[STAGE])]
        assert isinstance(stage, TrainingStage)
        states = self._folder(config, FOLDER) / STATES
        features = self._folder(config, FEATURES) if FEATURES in config else self.root
        folders = ClientFolders(states, features)
        return stage.client(client_id, int(config["server-round"]), folders)

    def _folder(self, config: Mapping[str, Any], key: str) -> Path:
        """Return a folder that a message names, below the one of this process."""
        folder = inside(self.root, str(config.get(key, "")))
        check_links(self.root, folder)
        return folder
