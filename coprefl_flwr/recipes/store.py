"""Where results lie: by the hash of the settings that they depend on, so that none is made twice.

MODELS/KEY/model.safetensors, model.json    a starting model, and how it was made
MODELS/KEY/rounds.jsonl                     metrics of its pre-training
MODELS/KEY/tasks/KEY.json                   a task from it: rows per client, metrics per round
MODELS/KEY/checkpoint.safetensors, ...      while it is under way

What a personalised run leaves there is in `personal_runs`.
"""

import fcntl
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TextIO

from flwr.serverapp import Grid

import coprefl_flwr
from coprefl_flwr.rounds.strategy import Hook
from coprefl_flwr.studies.methods import LOCAL_SETTINGS, METHODS, Method
from coprefl_flwr.studies.personal_methods import OF_PERSONAL
from coprefl_flwr.studies.populations import class_split, input_shape
from coprefl_flwr.studies.progress import PRETRAINING_KIND, TASK_KIND, Progress
from coprefl_flwr.studies.runs import Setup, pretrain, read_lines, run_task
from coprefl_flwr.studies.settings import Settings, Value
from coprefl_flwr.studies.starts import (
    RANDOM,
    Start,
    own_settings,
    settings_of,
    start,
    starts,
    task_phase,
)
from coprefl_flwr.studies.study import check

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

Track = Callable[[str], Sequence[Hook]]
"""Gives the hooks that follow a part of a run, by the part's name."""


@dataclass(frozen=True)
class Run:
    """A starting model and the tasks from it.

    Parameters
    ----------
    settings : Settings
        `method` names one start.
    """

    settings: Settings

    methods: ClassVar[Mapping[str, Method]] = METHODS
    untrained: ClassVar[tuple[str, ...]] = (RANDOM,)
    """What `method` can name besides."""

    @classmethod
    def of(cls, config: dict[str, Value], start: str, seed: int) -> "Run":
        """Return the run of a start with a seed.

        What other methods of a comparison are told, and this one has not, is left out.
        """
        has = settings_of(start, cls.methods)
        has |= settings_of(str(config.get("task-method", "fedavg")))
        heeded = {k: v for k, v in config.items() if k in has or k not in own_settings()}
        return cls(Settings.from_config(heeded | {"method": start, "seed": seed}))

    @staticmethod
    def read(settings: Settings, name: str) -> None:
        """Raise a SettingsError if `method` cannot name this, data aside."""
        start(settings, name)

    def check(self) -> None:
        """Raise a SettingsError if the run cannot be made as set."""
        check(self.settings)

    @property
    def name(self) -> str:
        """The start as the user wrote it."""
        return self.settings.method

    @property
    def tasks(self) -> int:
        """How many files of rows per client it leaves."""
        return self.settings.tasks

    @property
    def units(self) -> list[str]:
        """What its values are of: its tasks, or itself where there are none."""
        seed = f"seed {self.settings.seed}"
        return [f"{seed}, task {task}" for task in range(self.tasks)] or [seed]

    @property
    def switch(self) -> int:
        """The last round of the first of several phases; 0 for one phase."""
        phases = self.start.phases
        return phases[0].settings.rounds if len(phases) > 1 else 0

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The kind and the rounds of each part."""
        task = (TASK_KIND, self.settings.task_rounds)
        return [(PRETRAINING_KIND, self.start.rounds), *[task] * self.tasks]

    @property
    def start(self) -> Start:
        """The start."""
        return starts(self.settings)[0]

    @property
    def key(self) -> str:
        """Name of the starting model: its methods, and the hash of all that it depends on."""
        methods = [phase.name for phase in self.start.phases] or [RANDOM]
        return "-".join([*methods, hash_of(self._pretraining())])

    def task_key(self, number: int) -> str:
        """Name of a task from the model."""
        return f"{number}-{hash_of(self._task())}"

    def task_file(self, number: int) -> str:
        """Return where a task is written, in the run's folder."""
        return f"tasks/{self.task_key(number)}.json"

    @property
    def files(self) -> list[str]:
        """What is in the run's folder once all is done."""
        return ["model.safetensors", *map(self.task_file, range(self.tasks))]

    def named(self) -> Settings:
        """Return the settings under which the run is made: nothing in them but what counts."""
        return replace(self.settings, run_name=self.key, output_dir="outputs", checkpoint_every=1)

    def make(self, grid: Grid, store: "Store", progress: Progress, track: Track) -> None:
        """Make the starting model, then its tasks; what is there is not made again."""
        setup, folder = Setup.of(self.settings), store.folder(self)
        hooks = track(f"{self.key}/pre-training")
        model = pretrain(setup, grid, self.start, folder, progress, hooks)
        for number in range(self.tasks):
            file = store.task_file(self, number)
            hooks = track(f"{self.key}/task-{file.stem}")
            run_task(setup, grid, number, self.name, model, file, progress, hooks)

    def _pretraining(self) -> dict[str, Any]:
        config = self.settings.to_config()
        of_methods = {*own_settings(), *LOCAL_SETTINGS}
        pretraining, downstream = class_split(self.settings)
        found: dict[str, Any] = {
            key: value
            for key, value in config.items()
            if key not in {*NO_RESULT, *OF_TASKS, *OF_CLASSES, *OF_PERSONAL, *of_methods}
            and not key.startswith("task-")
        }
        found |= {"classes": pretraining, "version": coprefl_flwr.__version__}
        found["contents"] = contents({"dataset": config["dataset"]})
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
        of_data = {"contents": contents({"dataset": config["task-dataset"]})}
        return found | of_data | {"classes": class_split(self.settings)[1]}


def contents(config: Mapping[str, Value]) -> dict[str, str]:
    """Return what the files that settings name hold, by path: another content, another result.

    torchvision's datasets and folders of images count by their name alone.
    """
    named = [str(config[key]) for key in ("dataset", "task-dataset") if config.get(key)]
    named += [name for key in ("personal-datasets", "backbones") for name in _words(config, key)]
    found = {}
    for name in named:
        for path in (Path(name), Path(name.rpartition(":")[0]), Path(name) / "model.safetensors"):
            if path.is_file():
                status = path.stat()
                found[name] = _content((path, status.st_size, status.st_mtime_ns))
    return found


def _words(config: Mapping[str, Value], key: str) -> list[str]:
    """Return the paths of a list such as "resnet18=FILE FOLDER FILE@NAME"."""
    words = str(config.get(key, "")).split()
    return [(word.partition("=")[2] or word).partition("@")[0] for word in words]


@functools.lru_cache(maxsize=64)
def _content(version: tuple[Path, int, int]) -> str:
    """Return the hash of a file of some size and time, read again only after it was changed."""
    with version[0].open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_of(content: dict[str, Any]) -> str:
    """Return 12 hex digits of the SHA-256 of what can be JSON."""
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
        return self.folder(run) / run.task_file(number)

    def done(self, run: Run) -> bool:
        """Return whether the starting model and all tasks are there."""
        return all((self.folder(run) / file).exists() for file in run.files)

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
