"""Where results lie: by the hash of the settings that they depend on, so that none is made twice.

MODELS/KEY/model.safetensors, model.json    a starting model, and how it was made
MODELS/KEY/rounds.jsonl                     metrics of its pre-training
MODELS/KEY/tasks/KEY.json                   a task from it: rows per client, metrics per round
MODELS/KEY/checkpoint.safetensors, ...      while it is under way
"""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import coprefl_flwr
from coprefl_flwr.experiments.methods import LOCAL_SETTINGS
from coprefl_flwr.experiments.populations import class_split, input_shape
from coprefl_flwr.experiments.runs import read_lines
from coprefl_flwr.experiments.starts import (
    RANDOM,
    Start,
    own_settings,
    settings_of,
    starts,
    task_phase,
)
from coprefl_flwr.settings import Settings, Value

logger = logging.getLogger("flwr.coprefl")

NO_RESULT = (
    "run-name",
    "output-dir",
    "resume",
    "data-dir",
    "method",
    "min-nodes",
    "max-failed-rounds",
    "timeout",
    "checkpoint-every",
    "tasks",
)
"""Settings that no result depends on."""

OF_TASKS = ("downstream-domains", "head")
"""Settings of the tasks whose names do not say so; `task-...` are all the others."""

OF_CLASSES = ("downstream-classes", "pretraining-classes", "allow-class-overlap")


@dataclass(frozen=True)
class Run:
    """A starting model and the tasks from it.

    Parameters
    ----------
    settings : Settings
        `method` names one start.
    """

    settings: Settings

    @classmethod
    def of(cls, config: dict[str, Value], start: str, seed: int) -> "Run":
        """Return the run of a start with a seed.

        What other methods of a comparison are told, and this one has not, is left out.
        """
        has = settings_of(start) | settings_of(str(config.get("task-method", "fedavg")))
        heeded = {k: v for k, v in config.items() if k in has or k not in own_settings()}
        return cls(Settings.from_config(heeded | {"method": start, "seed": seed}))

    @property
    def start(self) -> Start:
        """The start."""
        return starts(self.settings)[0]

    @property
    def key(self) -> str:
        """Name of the starting model: its methods, and the hash of all that it depends on."""
        methods = [phase.name for phase in self.start.phases] or [RANDOM]
        return "-".join([*methods, _hash(self._pretraining())])

    def task_key(self, number: int) -> str:
        """Name of a task from the model."""
        return f"{number}-{_hash(self._task())}"

    def named(self) -> Settings:
        """Return the settings under which the run is made: nothing in them but what counts."""
        return replace(self.settings, run_name=self.key, output_dir="outputs", checkpoint_every=1)

    def _pretraining(self) -> dict[str, Any]:
        config = self.settings.to_config()
        of_methods = {*own_settings(), *LOCAL_SETTINGS}
        pretraining, downstream = class_split(self.settings)
        found: dict[str, Any] = {
            key: value
            for key, value in config.items()
            if key not in {*NO_RESULT, *OF_TASKS, *OF_CLASSES, *of_methods}
            and not key.startswith("task-")
        }
        found |= {"classes": pretraining, "version": coprefl_flwr.__version__}
        # Grey images become colour where those of the tasks' dataset are.
        found["input-shape"] = input_shape(self.settings)
        if self.settings.task_reserve:  # Then some samples are kept for the tasks.
            kept_for = ("task-reserve", "task-dataset", "downstream-domains")
            found |= {key: config[key] for key in kept_for} | {"downstream": downstream}
        found["phases"] = [{"method": p.name, **p.own_settings()} for p in self.start.phases]
        return found

    def _task(self) -> dict[str, Any]:
        config = self.settings.to_config()
        found: dict[str, Any] = {
            key: value
            for key, value in config.items()
            if key.startswith("task-") or key in {*OF_TASKS, "batch-size"}
        }
        phase = task_phase(self.settings)
        own = phase.settings.to_config()
        found |= {"task-method": phase.name} | {key: own[key] for key in phase.method.own}
        return found | {"classes": class_split(self.settings)[1]}


def _hash(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Store:
    """The folder of all starting models and their tasks."""

    root: Path

    def folder(self, run: Run) -> Path:
        """Return where a run's starting model lies, or will."""
        return self.root / run.key

    def task_file(self, run: Run, number: int) -> Path:
        """Return where a task of a run is written."""
        return self.folder(run) / "tasks" / f"{run.task_key(number)}.json"

    def done(self, run: Run) -> bool:
        """Return whether the starting model and all tasks are there."""
        files = [self.task_file(run, number) for number in range(run.settings.tasks)]
        return all(f.exists() for f in [self.folder(run) / "model.safetensors", *files])

    def rounds(self, run: Run) -> list[dict[str, Any]]:
        """Return the metrics of the pre-training, a row per round."""
        return read_lines(self.folder(run) / "rounds.jsonl")

    def task(self, run: Run, number: int) -> dict[str, Any]:
        """Return {"rows": a row per client, "rounds": metrics per round} of a task."""
        found: dict[str, Any] = json.loads(self.task_file(run, number).read_text())
        return found

    @contextmanager
    def held(self, run: Run) -> Iterator[None]:
        """Keep other processes from making the same run; wait for one that does."""
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / ".lock"
        with _locked(path, run.key):
            try:
                for unfinished in folder.rglob(".*.part"):  # Of a process that was killed.
                    unfinished.unlink(missing_ok=True)
                yield
            finally:
                path.unlink()


def _locked(path: Path, name: str) -> TextIO:
    """Open and lock a file that whoever held it before may have removed."""
    while True:
        lock = path.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("%s is being made by another process; waiting for it", name)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        except FileNotFoundError:
            pass
        lock.close()
