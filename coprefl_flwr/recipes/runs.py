"""The runs of a recipe, and the folder that keeps their results.

A run is one entry of `method` with one seed: a study of one starting model and its tasks, or of one
personalised method. Its stages lie in MODELS by the hash of all that they depend on, so that every
recipe that needs one finds it, and none is made twice:

    MODELS/KEY/model.safetensors, model.json, result.json    a starting model
    MODELS/KEY/tasks/KEY/result.json                         a task from it
    MODELS/KEY/global.safetensors, ..., result.json          a personalised method
    MODELS/features/KEY/                                     what backbones made of images

As the hashes make these names nobody else's, MODELS can also hold files of the user's own.
"""

import contextlib
import functools
import logging
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import filelock

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import LOCKS, check_links, read_json, remove_unfinished
from coprefl_flwr.methods import PERSONALISED, PRETRAINING, short_forms
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.kept import SECONDS, is_done, read_result
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.phases import heeded_by, keys_of
from coprefl_flwr.studies.settings import STARTS, Settings
from coprefl_flwr.studies.stage import Checkpoints, Stage, settle
from coprefl_flwr.studies.study import Study

logger = logging.getLogger("flwr.coprefl")

ROLES = {STARTS: PRETRAINING, PERSONALISED: PERSONALISED}
"""By kind of study, the role of the methods that its rows are."""


@dataclass(frozen=True)
class Run:
    """One entry of `method` with one seed; `settings` name no other entry."""

    settings: Settings

    @classmethod
    def of(cls, config: Mapping[str, Any], method: Method | str, seed: int) -> "Run":
        """Return the run of a method with a seed.

        Settings that only other methods of the comparison have are left out.
        """
        role = ROLES[str(config.get("study", STARTS))]
        method = Method.read(method)
        has = keys_of(method, role) | heeded_by(config)
        heeded = {k: v for k, v in config.items() if k in has or k not in short_forms()}
        return cls(Settings.from_config(heeded | {"method": method, "seed": seed}))

    @functools.cached_property
    def shared(self) -> Settings:
        """Its settings without folders and the like, on which no result depends."""
        return replace(self.settings, output_dir="outputs", checkpoint_every=1)

    @property
    def study(self) -> Study:
        """Its stages and their clients, which are not kept here: they hold data."""
        return build(self.shared)

    @property
    def name(self) -> str:
        """The entry, as people are told of it."""
        return self.settings.method.portable

    @property
    def main(self) -> Stage:
        """The pre-training, or the personalised method."""
        return self.study.stages[0]

    @property
    def measured(self) -> list[Stage]:
        """The stages that leave a row per client: the tasks, or the personalised method."""
        return [stage for stage in self.study.stages if stage.measures]

    @functools.cached_property
    def keys(self) -> tuple[str, ...]:
        """The folders of its stages; two runs with the same folders are one."""
        return tuple(stage.key for stage in self.study.stages)

    @property
    def key(self) -> str:
        """Name of the run: its methods, and the hash of all that its first stage depends on."""
        return self.keys[0]

    def to_be_made(self) -> "Run":
        """Return the run with its key as run-name, which messages and clients' states carry."""
        return Run(replace(self.settings, run_name=self.key))


@dataclass(frozen=True)
class ModelStore:
    """The folder of all runs."""

    root: Path
    checkpoints = Checkpoints.UNTIL_DONE

    @property
    def base(self) -> Path:
        """The folder from which messages count."""
        return self.root

    def folder(self, stage: Stage) -> Path:
        """Return where a stage lies, or will."""
        return self.root / stage.key

    def shared(self, key: str) -> Path:
        """Return the folder of features that all runs with them share."""
        return self.root / "features" / key

    def done(self, run: Run) -> bool:
        """Return whether all stages are there."""
        return all(self.has(stage) for stage in run.study.stages)

    def has(self, stage: Stage) -> bool:
        """Return whether a stage is there."""
        return is_done(self.folder(stage))

    def result(self, stage: Stage) -> dict[str, list[dict[str, Any]]]:
        """Return {"rows", "rounds"} of a stage, both empty if it is not there."""
        return read_result(self.folder(stage)) if self.has(stage) else {"rows": [], "rounds": []}

    def seconds(self, stage: Stage) -> float:
        """Return the median time of a stage's round in seconds; nan if it was not taken.

        The first round of its last process is left out: there features are made.
        """
        file = self.folder(stage) / SECONDS
        taken = read_json(file, list) if file.exists() else []
        if not all(type(one) in (int, float) for one in taken):
            raise SettingsError(f"{file} is damaged: it holds no list of seconds; remove it")
        return statistics.median(taken[1:]) if len(taken) > 1 else math.nan

    @contextlib.contextmanager
    def held(self, stage: Stage) -> Iterator[None]:
        """Keep other processes from making the same stage; wait for one that does."""
        folder, lock = self.folder(stage), self._lock(stage)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            held = lock.acquire(blocking=False)
        except filelock.Timeout:
            logger.info("%s is being made by another process; waiting for it", stage.key)
            held = lock.acquire()
        with held:
            if not self.has(stage):  # Others may be writing what lies below one that is done.
                remove_unfinished(folder)
            yield

    def settle(self, stage: Stage) -> None:
        """Settle a stage (see `studies.stage`) that nobody is making."""
        if self.folder(stage).exists():
            with contextlib.suppress(filelock.Timeout), self._lock(stage).acquire(blocking=False):
                settle(stage, self.folder(stage))

    def _lock(self, stage: Stage) -> filelock.FileLock:
        # The end of a long key is what tells it from others: its hash.
        lock = self.root / LOCKS / stage.key.replace("/", "-")[-200:]
        check_links(self.root, lock)
        lock.parent.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(lock)
