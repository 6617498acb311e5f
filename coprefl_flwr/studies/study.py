"""A study: a list of stages over populations of clients, run one after the other.

Its folder, OUTPUT-DIR/RUN-NAME:

    .coprefl                           says that the folder is the package's (see `files`)
    settings.yaml                      the settings as used
    texts.json                         hashes of the user's own files that they name, if any
    starts/START/model.safetensors     a starting model, and model.json: how it was made
    start-losses/START/                its loss on all pre-training data, if that is asked for
    tasks/NUMBER/START/                a task from a start
    diagnoses/NUMBER/START/            what explains the start's worth in it, if that is asked for
    methods/METHOD/                    a personalised method: its global arrays, its clients' models
    .../result.json                    a stage's rows and rounds (see `stage`)
    features/                          of a personalised study, while it runs
    rows.jsonl, rounds.jsonl           those of all stages
    summary.md and others              the comparison (see `coprefl_flwr.report`)

A study that was interrupted goes on with the first stage whose result is not there.
"""

import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import yaml
from flwr.app import Context
from flwr.client import NumPyClient

import coprefl_flwr
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.federation.run import Hook
from coprefl_flwr.files import (
    LOCKS,
    alone,
    check_links,
    check_own,
    expanded,
    inside,
    own,
    read_json,
    read_text,
    remove_unfinished,
    write_atomically,
)
from coprefl_flwr.learning.device import default_device
from coprefl_flwr.options import Value
from coprefl_flwr.studies.client_metrics import ClientMetrics
from coprefl_flwr.studies.identity import texts_of
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import FOLDER, STAGE, Checkpoints, RunSettings, Stage

FREE_ON_RESUME = (
    "resume",
    "output-dir",
    "data-dir",
    "min-available-nodes",
    "timeout",
    "checkpoint-every",
)
"""Settings that a resumed run may change: they do not enter its numbers."""

SETTINGS, TEXTS = "settings.yaml", "texts.json"

LONGEST_SETTINGS = 2**18
"""Bytes of the settings' file, which has 3,000 where nothing long is listed."""

Track = Callable[[Stage], Sequence[Hook]]
"""Gives the hooks that follow a stage."""


class Study(ABC):
    """What is made once of its parts, on the server and in every process of the clients.

    Parameters
    ----------
    run : RunSettings
        How stages are run.
    metrics : ClientMetrics
        Metrics of the user's own, which every client computes.
    root : Path
        The folder below which clients of this process keep files; no message names it.
    config : Mapping[str, Any]
        What is written beside results: the settings that the parts were made of.
    run_name : str
        As in messages.
    """

    stages: Sequence[Stage]
    """In the order in which they are run."""

    def __init__(
        self,
        run: RunSettings,
        metrics: ClientMetrics,
        root: Path,
        config: Mapping[str, Any],
        run_name: str = "run",
    ) -> None:
        self.run, self.metrics, self.root = run, metrics, root
        self.config, self.run_name = config, run_name

    @abstractmethod
    def check(self) -> None:
        """Raise a SettingsError if something cannot be had as set; loads the data."""

    def client(self, client_id: int, config: Mapping[str, Any]) -> NumPyClient:
        """Return the client that a message with this config is about."""
        client = self.client_of_method(client_id, config)
        client.metrics = self.metrics.functions
        return client

    def client_of_message(
        self, context: Context, client_id: int, config: Mapping[str, Any]
    ) -> NumPyClient:
        """Return the same, with the arguments that a `client_app` calls it with."""
        return self.client(client_id, config)

    def stage_of(self, config: Mapping[str, Any]) -> Stage:
        """Return the stage that a message with this config is about."""
        return self._by_path[str(config[STAGE])]

    @functools.cached_property
    def _by_path(self) -> Mapping[str, Stage]:
        return {stage.path: stage for stage in self.stages}

    def folder_of(self, config: Mapping[str, Any], key: str = FOLDER) -> Path:
        """Return a folder that a message names, below the one of this process."""
        folder = inside(self.root, str(config.get(key, "")))
        check_links(self.root, folder)
        return folder

    @abstractmethod
    def client_of_method(self, client_id: int, config: Mapping[str, Any]) -> TorchClient:
        """Return the client as its method makes it."""


@dataclass(frozen=True)
class StudyFolder:
    """The folder of one study, as a store."""

    root: Path
    checkpoints: Checkpoints = Checkpoints.UNTIL_DONE

    @property
    def base(self) -> Path:
        """The folder of all studies, from which messages count."""
        return self.root.parent

    def folder(self, stage: Stage) -> Path:
        """Return the folder of a stage."""
        return self.root / stage.path

    def shared(self, key: str) -> Path:
        """Return the folder of the clients' features."""
        return self.root / "features"


def with_run_name(settings: Settings) -> Settings:
    """Return settings that name the run: by date and time where the user did not."""
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    return replace(settings, run_name=settings.run_name or now)


def make_folder(settings: Settings) -> Path:
    """Make the run's folder with its settings in it, or raise a SettingsError before that."""
    folder = _folder(settings)
    _check_folder(settings, folder)
    texts = texts_of(settings)
    own(folder, _option(settings))
    remove_unfinished(folder)
    if texts:
        write_atomically(folder / TEXTS, json.dumps(texts).encode())
    write_atomically(folder / SETTINGS, yaml.safe_dump(settings.to_config()).encode())
    return folder


@contextmanager
def own_folder(settings: Settings) -> Iterator[Path]:
    """Make the run's folder as `make_folder` does, for this process alone."""
    folder = _folder(settings)
    _check_folder(settings, folder)  # Before anything is written.
    problem = f"{_option(settings)}: {folder} is being written by another process"
    lock = folder.parent / LOCKS / settings.run_name
    check_links(folder.parent, lock)
    with alone(lock, problem):
        yield make_folder(settings)


def _folder(settings: Settings) -> Path:
    return expanded(settings.output_dir).resolve() / settings.run_name


def _option(settings: Settings) -> str:
    return f"run-name = {settings.run_name}"


def _check_folder(settings: Settings, folder: Path) -> None:
    """Raise a SettingsError if the run cannot begin, or go on, in this folder."""
    kept, texts, config = folder / SETTINGS, folder / TEXTS, settings.to_config()
    check_place("output-dir", folder)
    check_links(folder.parent, folder)
    check_own(folder, _option(settings))
    if settings.resume:
        _check_resumed(kept, config)
        if texts.exists() and read_json(texts) != list(texts_of(settings)):
            raise SettingsError("resume = true: files of your own have changed since the run began")
    elif kept.exists():
        raise SettingsError(
            f"{_option(settings)}: {folder} holds a run already; set resume=true to go "
            "on with it, or another run-name"
        )


def check_place(option: str, folder: Path) -> None:
    """Raise a SettingsError if no such folder can be made."""
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise SettingsError(f"{option}: {place} is a file, not a folder")
        if place.is_symlink() and not place.exists():
            raise SettingsError(f"{option}: {place} is a link to nothing")
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingsError(f"{option}: {there} cannot be written to")


def _check_resumed(kept: Path, now: Mapping[str, Value]) -> None:
    """Raise a SettingsError unless the settings that were kept are those of now."""
    if not kept.exists():
        runs = [path.parent.name for path in kept.parent.parent.glob("*/settings.yaml")]
        raise SettingsError(f"resume = true: {unknown('run', kept.parent.name, runs)}")
    written = read_settings(kept)
    try:
        before = Settings.from_config(written).to_config()
    except SettingsError as error:
        raise SettingsError(f"{kept} is damaged, or of another version: {error}") from error
    for key, value in now.items():
        if key not in FREE_ON_RESUME and value != before[key]:
            raise SettingsError(
                f"{key} = {value}: the run to resume was started with {before[key]}"
            )


def read_settings(file: Path) -> dict[str, Any]:
    """Return the settings that a study's folder keeps; a SettingsError for what is none."""
    try:
        # Short: PyYAML's time for a number in base 60 grows with the square of its length.
        written = yaml.safe_load(read_text(file, LONGEST_SETTINGS))
    except SettingsError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError):
        written = None
    if not isinstance(written, dict) or not all(isinstance(key, str) for key in written):
        raise SettingsError(f"{file} holds no settings: the run cannot be resumed")
    return written


def made_by() -> dict[str, Any]:
    """Return what made a result: versions, the machine, and the commit of a checkout's package."""
    here = {"versions": versions(), "machine": machine()}
    commit = _commit_of(Path(coprefl_flwr.__file__).parents[1])
    return here | ({"commit": commit} if commit else {})


@functools.cache
def machine() -> str:
    """Return the processor, its cores, and the GPU that is computed on, if there is one."""
    cpus = Path("/proc/cpuinfo")
    told = re.search(r"model name\s*:\s*(.+)", cpus.read_text()) if cpus.exists() else None
    name = told[1].strip() if told else platform.processor() or platform.machine()
    device = default_device()
    gpu = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    return f"{name}, {os.cpu_count()} cores{gpu}"


@functools.cache
def _commit_of(checkout: Path) -> str:
    """Return the commit of the package's own checkout, with "-dirty" if files of it differ.

    "" where the package does not lie in a checkout of its own, or git is not there. Git runs
    commands that the configuration of a repository names, so it is never asked about another one:
    the repository is named, for git looks for one in the folders above too.
    """
    command = ["git", f"--git-dir={checkout / '.git'}", f"--work-tree={checkout}"]
    command += ["-c", "core.fsmonitor=false", "describe", "--always", "--dirty", "--abbrev=12"]
    if not (checkout / ".git").exists():
        return ""
    try:
        done = subprocess.run(
            [*command, "--exclude", "*"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Return the versions of what results depend on."""
    others = {name: importlib.metadata.version(name) for name in ("flwr", "torch")}
    return {"coprefl-flwr": coprefl_flwr.__version__, "python": platform.python_version(), **others}
