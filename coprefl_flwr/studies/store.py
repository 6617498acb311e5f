"""The store: a folder with the results of stages.

A store has a folder for each stage. The module `stage` lists the files of such a folder. The layout
of a store says how the folders are named:

    Layout.KEY      ROOT/KEY             shared by all runs of recipes: equal stages run once
    Layout.PATH     ROOT/starts/NAME, ROOT/tasks/NUMBER/NAME, ...     for one study
    Layout.SINGLE   ROOT                 for a study of one stage

A key contains a hash of all inputs of a stage (settings, data, methods). In the layouts PATH and
SINGLE, the file `made-of.json` in the stage's folder lists the inputs. If the inputs have changed,
the stage runs again. The earlier files are not deleted, but moved into a folder `earlier-N`.
"""

import contextlib
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from coprefl_flwr import files
from coprefl_flwr.errors import SettingsError, logger
from coprefl_flwr.federation.checkpoint import history_file, remove_checkpoint
from coprefl_flwr.federation.client_state import STATE_FILE
from coprefl_flwr.studies.hashes import content_without_folders

if TYPE_CHECKING:
    from coprefl_flwr.studies.stage import Stage


EARLIER = "earlier-"

STATES = "client-state"
RESULT, CHECKPOINT, SECONDS = "result.json", "checkpoint.safetensors", "seconds.json"
ABOUT, CARD, MADE_OF = "model.json", "README.md", "made-of.json"
FILES = (
    *(RESULT, files.SUMS, SECONDS, ABOUT, CARD, MADE_OF, STATES),
    *("*.safetensors", "*.rounds.jsonl"),
)
"""The names of a stage's files, and of the folder of its clients' states, as patterns."""


class Layout(Enum):
    """How a stage's folder is named: by the stage's key, by its path, or no subfolder at all."""

    KEY = "key"
    PATH = "path"
    SINGLE = ""


@dataclass(frozen=True)
class Store:
    """A folder `root` with the results of stages.

    `layout` says how the stages' folders are named. `checkpoints` says whether stages write
    checkpoints while they run. `run_name` is the name of the run in messages and clients' states.
    """

    root: Path
    layout: Layout = Layout.KEY
    checkpoints: bool = True
    run_name: str = "run"

    @property
    def base(self) -> Path:
        """The folder to which the paths in messages are relative; messages do not name it."""
        return self.root if self.layout is Layout.KEY else self.root.parent

    def folder(self, stage: "Stage") -> Path:
        """Return the folder of a stage."""
        return self.root / getattr(stage, self.layout.value) if self.layout.value else self.root

    def shared(self, key: str) -> Path:
        """Return the folder of features that several stages share, for a hash of their inputs."""
        return self.root / "features" / key

    def has(self, stage: "Stage") -> bool:
        """Return whether a stage is done."""
        return is_done(self.folder(stage))

    def done(self, stages: "Sequence[Stage]") -> bool:
        """Return whether all stages are done."""
        return all(map(self.has, stages))

    def result(self, stage: "Stage") -> dict[str, list[dict[str, Any]]]:
        """Return {"rows": list, "rounds": list} of a stage; both are empty if it is not done."""
        return read_result(self.folder(stage)) if self.has(stage) else {"rows": [], "rounds": []}

    def seconds(self, stage: "Stage") -> float:
        """Return the median duration of a stage's rounds in seconds; nan if it was not measured.

        Only the rounds of the last process count, without its first round, which also includes the
        computation of features.
        """
        file = self.folder(stage) / SECONDS
        seconds = files.read_json(file) if file.exists() else []
        return statistics.median(seconds[1:]) if len(seconds) > 1 else math.nan

    def last_round(self, stage: "Stage") -> dict[str, Any]:
        """Return the last stored round of a stage that may be running in any process.

        It is {"round": its number, "train": its metrics, ...}, or {} if no round is stored.
        """
        # The other process may write or remove the file at this moment.
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = history_file(self.folder(stage) / CHECKPOINT).read_bytes()
            line: dict[str, Any] = json.loads(lines[: lines.rindex(b"\n")].splitlines()[-1])
            return line
        return {}

    # ---- locks: one process at a time runs a stage -----------------------------------------------

    @contextmanager
    def owned(self, option: str) -> Iterator[None]:
        """Lock the whole store for this process, until the context ends.

        Error messages begin with `option`, the setting that named the folder.

        Raises a SettingsError, before anything is written, if the folder contains files of another
        program, or if another process writes into the folder.
        """
        files.check_own(self.root, option)
        problem = f"{option}: {self.root} is being written by another process"
        with files.alone(self.root / files.LOCK, problem):
            files.own(self.root, option)
            files.remove_unfinished(self.root)
            yield

    @contextmanager
    def locked(self, stage: "Stage") -> Iterator[None]:
        """Lock a stage, so that no other process runs it; wait while another process runs it."""
        if self.layout is not Layout.KEY:  # `owned` has locked the whole store.
            yield
            return
        self.folder(stage).mkdir(parents=True, exist_ok=True)
        lock = self._lock(stage)
        try:
            acquired = lock.acquire(blocking=False)
        except filelock.Timeout:
            logger.info("%s is running in another process; waiting for its end", stage.key)
            acquired = lock.acquire()
        with acquired:
            yield

    def finalise(self, stage: "Stage") -> None:
        """Call the function `finalise` for a stage, unless another process runs the stage."""
        if self.folder(stage).exists():
            with contextlib.suppress(filelock.Timeout), self._lock(stage).acquire(blocking=False):
                finalise(stage, self.folder(stage))

    def _lock(self, stage: "Stage") -> filelock.FileLock:
        # A long key is shortened to its end, which contains the hash and so is unique.
        lock = self.root / files.LOCKS / stage.key.replace("/", "-")[-200:]
        lock.parent.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(lock)

    # ---- the inputs of a stage -------------------------------------------------------------------

    def prepare(self, stages: "Sequence[Stage]") -> None:
        """Move results that were computed from other inputs aside; log which stages run again.

        Also writes `made-of.json` of each stage. Does nothing in the layout KEY.
        """
        if self.layout is Layout.KEY:
            return
        for stage in stages:
            file = self.folder(stage) / MADE_OF
            made_of = json.loads(json.dumps(content_without_folders(stage.identity()), default=str))
            before = files.read_json(file) if file.exists() else {}
            if before and before != made_of:
                changed = ", ".join(key for key in made_of if made_of[key] != before.get(key))
                aside = files.move_aside(file.parent, FILES, EARLIER)
                line = "%s is run again (changed: %s); the earlier results are moved to %s"
                logger.warning(line, stage.title, changed, aside)
            if before != made_of:
                files.write_atomically(file, json.dumps(made_of, indent=1).encode())


# ---- the files of a stage -----------------------------------------------------------------------


def write_result(
    folder: Path, rows: Sequence[Mapping[str, Any]], rounds: Sequence[Mapping[str, Any]]
) -> None:
    """Write a stage's result file atomically. Numbers that are not finite are written as null."""
    content = {"rows": list(map(_finite, rows)), "rounds": list(map(_finite, rounds))}
    text = json.dumps(content, indent=1, allow_nan=False).encode()
    # The checksums come first, because the existence of a result means that the stage is done.
    arrays = [path.name for path in folder.glob("*.safetensors") if path.name != CHECKPOINT]
    files.write_sums(folder, arrays, {RESULT: text})
    files.write_atomically(folder / RESULT, text)


def _finite(record: Mapping[str, Any]) -> dict[str, Any]:
    infinite = [k for k, v in record.items() if isinstance(v, float) and not math.isfinite(v)]
    return {**record, **dict.fromkeys(infinite)}


def read_result(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return {"rows": list, "rounds": list} of a stage that is done.

    Raises a SettingsError if the result file is missing or does not match its checksum.
    """
    files.check_sums(folder, RESULT, needed=RESULT)
    result: dict[str, list[dict[str, Any]]] = files.read_json(folder / RESULT)
    return result


def is_done(folder: Path) -> bool:
    """Return whether a stage has a result."""
    return (folder / RESULT).exists()


def finalise(stage: "Stage", folder: Path) -> bool:
    """Clean up the files of a stage, and return whether the stage is done.

    If it is done, the checkpoint and the clients' states are removed, except where they are needed
    later. An open-ended stage is not done if it has more rounds than its result, which is then
    removed. No other process may run the stage meanwhile. Raises a SettingsError if a file of the
    result does not match its checksum, or if the result has more rounds than the stage.
    """
    done = is_done(folder)
    if done and not stage.open_ended:
        remove_checkpoint(folder / CHECKPOINT)
    # Below a finished stage, other processes may write.
    files.remove_unfinished(folder, below=not done)
    if not done:
        return False
    files.check_sums(folder, needed=RESULT)
    if stage.open_ended:
        rounds = files.read_json(folder / RESULT)["rounds"]
        last = int(rounds[-1]["round"]) if rounds else 0
        if last > stage.rounds:
            raise SettingsError(f"rounds = {stage.rounds}: {folder} already has {last} rounds")
        if last < stage.rounds:
            (folder / RESULT).unlink()
        return last == stage.rounds
    if not stage.keeps_states:
        files.remove_named(folder / STATES, STATE_FILE)
    return True
