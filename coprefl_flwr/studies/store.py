"""Where results of stages are, and whether a stage is done: a question of its key alone.

A store has a folder for each stage (see `stage` for what is in it):

    Layout.KEY      ROOT/KEY             of all runs of recipes: what two runs need is made once
    Layout.PATH     ROOT/starts/NAME, ROOT/tasks/NUMBER/NAME, ...     of one study
    Layout.SINGLE   ROOT                 of a study of one stage

Where the folder's name is not the key, `made-of.json` in it says which parts the stage was made of.
A stage of other parts is made again, and the files of the earlier one are moved into a folder
`earlier-N`: nothing is lost.
"""

import contextlib
import functools
import json
import logging
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.checkpoint import remove_checkpoint
from coprefl_flwr.federation.client_state import STATE_FILE
from coprefl_flwr.federation.progress import PERSONAL_KIND
from coprefl_flwr.files import (
    LOCK,
    LOCKS,
    MARK,
    SUMS,
    alone,
    check_links,
    check_own,
    damaged,
    own,
    read_json,
    remove_named,
    remove_unfinished,
    write_atomically,
    write_sums,
)
from coprefl_flwr.report.frames import checked_round
from coprefl_flwr.studies.identity import portable_content

if TYPE_CHECKING:
    from coprefl_flwr.studies.stage import Stage

logger = logging.getLogger("flwr.coprefl")

EARLIER = "earlier-"

STATES = "client-state"
RESULT, CHECKPOINT, SECONDS = "result.json", "checkpoint.safetensors", "seconds.json"
ABOUT, MADE_OF = "model.json", "made-of.json"


class Layout(Enum):
    """How the folder of a stage is named: by its key, by its path, or the root itself."""

    KEY = "key"
    PATH = "path"
    SINGLE = ""


@dataclass(frozen=True)
class Store:
    """A folder with the results of stages.

    `checkpoints` says whether a stage writes checkpoints while it runs.
    """

    root: Path
    layout: Layout = Layout.KEY
    checkpoints: bool = True

    @property
    def base(self) -> Path:
        """The folder to which the folder names in messages are relative; no message names it."""
        return self.root if self.layout is Layout.KEY else self.root.parent

    def folder(self, stage: "Stage") -> Path:
        """Return the folder of a stage."""
        return self.root / getattr(stage, self.layout.value) if self.layout.value else self.root

    def shared(self, key: str) -> Path:
        """Return the folder of what several stages share, by a hash of what it depends on."""
        return self.root / "features" / key

    def has(self, stage: "Stage") -> bool:
        """Return whether a stage is done."""
        return is_done(self.folder(stage))

    def done(self, stages: "Sequence[Stage]") -> bool:
        """Return whether all stages are done."""
        return all(map(self.has, stages))

    def result(self, stage: "Stage") -> dict[str, list[dict[str, Any]]]:
        """Return {"rows", "rounds"} of a stage, both empty if it is not done."""
        return read_result(self.folder(stage)) if self.has(stage) else {"rows": [], "rounds": []}

    def seconds(self, stage: "Stage") -> float:
        """Return the median time of a stage's round in seconds; nan if it was not measured.

        The first round of the last process is left out, as it also computes features.
        """
        file = self.folder(stage) / SECONDS
        seconds = read_json(file, list) if file.exists() else []
        if not all(type(number) in (int, float) for number in seconds):
            raise SettingsError(f"{file} is damaged: it holds no list of seconds; remove it")
        return statistics.median(seconds[1:]) if len(seconds) > 1 else math.nan

    # ---- who makes a stage -----------------------------------------------------------------------

    @contextmanager
    def owned(self, option: str) -> Iterator[None]:
        """Make the whole store that of this process; `option` says in errors who named it.

        Raises a SettingsError, before anything is written, for a folder of somebody else's files,
        or one that another process writes into.
        """
        check_links(self.root.parent, self.root)
        check_own(self.root, option)
        problem = f"{option}: {self.root} is being written by another process"
        with alone(self.root / LOCK, problem):
            own(self.root, option)
            remove_unfinished(self.root)
            yield

    @contextmanager
    def locked(self, stage: "Stage") -> Iterator[None]:
        """Keep other processes from making the same stage; wait for one that does."""
        if self.layout is not Layout.KEY:  # The whole store is held.
            yield
            return
        folder, lock = self.folder(stage), self._lock(stage)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            acquired = lock.acquire(blocking=False)
        except filelock.Timeout:
            logger.info("%s is being made by another process; waiting for it", stage.key)
            acquired = lock.acquire()
        with acquired:
            if not self.has(stage):  # Others may be writing what lies below one that is done.
                remove_unfinished(folder)
            yield

    def finalise(self, stage: "Stage") -> None:
        """Finalise the files of a stage (see `finalise` below) that nobody is making."""
        if self.folder(stage).exists():
            with contextlib.suppress(filelock.Timeout), self._lock(stage).acquire(blocking=False):
                finalise(stage, self.folder(stage))

    def _lock(self, stage: "Stage") -> filelock.FileLock:
        # The end of a long key is what tells it from others: its hash.
        lock = self.root / LOCKS / stage.key.replace("/", "-")[-200:]
        check_links(self.root, lock)
        lock.parent.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(lock)

    # ---- what a stage is made of -----------------------------------------------------------------

    def prepare(self, stages: "Sequence[Stage]") -> None:
        """Put aside results that were made of other parts, and log which stages run again."""
        if self.layout is Layout.KEY:
            return
        for stage in stages:
            file = self.folder(stage) / MADE_OF
            made_of = json.loads(json.dumps(portable_content(stage.identity()), default=str))
            before = read_json(file, dict) if file.exists() else {}
            begun = file.exists() or (self.folder(stage) / RESULT).exists()
            if begun and before != made_of:
                self._put_aside(stage, [key for key in made_of if made_of[key] != before.get(key)])
            if before != made_of:
                write_atomically(file, json.dumps(made_of, indent=1).encode())

    def _put_aside(self, stage: "Stage", changed: Sequence[str]) -> None:
        folder = self.folder(stage)
        numbers = [path.name.removeprefix(EARLIER) for path in folder.glob(f"{EARLIER}*")]
        aside = (
            folder / f"{EARLIER}{1 + max((int(n) for n in numbers if n.isdecimal()), default=0)}"
        )
        logger.warning(
            "%s is run again (changed: %s); the earlier results are moved to %s",
            stage.title,
            ", ".join(changed) or "not known",
            aside,
        )
        aside.mkdir()
        for path in sorted(folder.iterdir()):
            if not path.name.startswith((EARLIER, MARK)):
                os.replace(path, aside / path.name)


# ---- the files of a stage -----------------------------------------------------------------------


def write_result(
    folder: Path, rows: Sequence[Mapping[str, Any]], rounds: Sequence[Mapping[str, Any]]
) -> None:
    """Write a stage's result, in one step; a number that is not finite becomes null."""
    content = {"rows": list(map(_finite, rows)), "rounds": list(map(_finite, rounds))}
    text = json.dumps(content, indent=1, allow_nan=False).encode()
    # Before the result, which says that all is there.
    write_sums(folder, _array_files(folder), {RESULT: text})
    write_atomically(folder / RESULT, text)


def _array_files(folder: Path) -> list[str]:
    """Return the arrays that a stage left: not what says when, where and how they were made."""
    return [path.name for path in folder.glob("*.safetensors") if path.name != CHECKPOINT]


def _finite(record: Mapping[str, Any]) -> dict[str, Any]:
    infinite = [k for k, v in record.items() if isinstance(v, float) and not math.isfinite(v)]
    return {**record, **dict.fromkeys(infinite)}


def read_result(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return {"rows", "rounds"} of a stage that is done.

    Raises a SettingsError if the result is not there, or damaged.
    """
    result = read_json(folder / RESULT)
    lists = [result.get(key) for key in ("rows", "rounds")] if isinstance(result, dict) else [None]
    if not all(isinstance(rows, list) and all(isinstance(r, dict) for r in rows) for rows in lists):
        raise SettingsError(f"{folder / RESULT} is damaged: it has no rows and rounds")
    try:
        for row in result["rounds"]:
            checked_round(row)
    except SettingsError as error:
        raise SettingsError(f"{folder / RESULT} is damaged: {error}") from error
    if damaged(folder, RESULT, needed=RESULT):
        raise SettingsError(f"{folder / RESULT} is damaged: its checksum is not the one in {SUMS}")
    return {key: result[key] for key in ("rows", "rounds")}


def read_about(folder: Path, **kinds: type) -> dict[str, Any]:
    """Return how what is in a folder was made, with these keys (with underscores) of these types.

    Raises a SettingsError if the file is not there, or damaged.
    """
    about = read_json(folder / ABOUT)
    keys = {name.replace("_", "-"): kind for name, kind in kinds.items()}
    whole = isinstance(about, dict)
    wrong = [key for key, kind in keys.items() if not (whole and isinstance(about.get(key), kind))]
    if wrong or not whole:
        problem = f"{folder / ABOUT} is damaged: it has no {wrong[0] if wrong else 'keys'}"
        raise SettingsError(f"{problem}; remove {RESULT} next to it, and it is made again")
    return dict(about)


def is_done(folder: Path) -> bool:
    """Return whether a stage's result is there, and whole; of one that is not, a line is logged."""
    if not (folder / RESULT).exists():
        return False
    try:
        read_result(folder)
    except SettingsError as error:
        _warn_once(f"{error}; it is left out until the same command is run again")
        return False
    return True


@functools.lru_cache(maxsize=256)
def _warn_once(line: str) -> None:
    logger.warning("%s", line)


def put_aside_damaged(folder: Path) -> None:
    """Rename what is damaged of a stage that was done, so that it is made again."""
    if not (folder / RESULT).exists():
        return
    wrong = damaged(folder, needed=RESULT)
    try:
        read_result(folder)
    except SettingsError:
        wrong = [RESULT, *wrong]
    if not wrong:
        return
    logger.warning(
        "%s: damaged: %s; put aside as NAME.damaged, and made again",
        folder,
        ", ".join(dict.fromkeys(wrong)),
    )
    # One that a kill left is of the last round: it would leave no round that writes the result.
    remove_checkpoint(folder / CHECKPOINT)
    for name in {RESULT, SUMS, *wrong}:  # Without a result it is not done.
        if (folder / name).exists():
            os.replace(folder / name, folder / f"{name}.damaged")


def finalise(stage: "Stage", folder: Path) -> bool:
    """Rename damaged files of a stage; of an intact result, remove what only its making needed.

    Returns whether the stage is done. No other process may be making it.
    """
    put_aside_damaged(folder)
    if not (folder / RESULT).exists():
        return False
    remove_unfinished(folder, below=False)  # Others may be making what lies below it.
    if stage.open_ended:
        return True
    remove_checkpoint(folder / CHECKPOINT)
    if stage.kind != PERSONAL_KIND:  # There the clients' models are what it is about.
        remove_named(folder / STATES, STATE_FILE)
    return True
