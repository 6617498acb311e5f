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
import json
import logging
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import filelock

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import (
    LOCK,
    LOCKS,
    MARK,
    alone,
    check_links,
    check_own,
    own,
    read_json,
    remove_unfinished,
    write_atomically,
)
from coprefl_flwr.studies.identity import portable
from coprefl_flwr.studies.stage import Stage, settle
from coprefl_flwr.studies.stage_files import MADE_OF, RESULT, SECONDS, is_done, read_result

logger = logging.getLogger("flwr.coprefl")

EARLIER = "earlier-"


class Layout(Enum):
    """How the folder of a stage is called."""

    KEY = "key"
    PATH = "path"
    SINGLE = ""


@dataclass(frozen=True)
class Store:
    """A folder with the results of stages.

    `checkpoints` says whether stages under way leave any.
    """

    root: Path
    layout: Layout = Layout.KEY
    checkpoints: bool = True

    @property
    def base(self) -> Path:
        """The folder from which clients count: it is theirs to know, and no message's to say."""
        return self.root if self.layout is Layout.KEY else self.root.parent

    def folder(self, stage: Stage) -> Path:
        """Return the folder of a stage."""
        return self.root / getattr(stage, self.layout.value) if self.layout.value else self.root

    def shared(self, key: str) -> Path:
        """Return the folder of what several stages share, by a hash of what it depends on."""
        return self.root / "features" / key

    def has(self, stage: Stage) -> bool:
        """Return whether a stage is done."""
        return is_done(self.folder(stage))

    def done(self, stages: Sequence[Stage]) -> bool:
        """Return whether all stages are done."""
        return all(map(self.has, stages))

    def result(self, stage: Stage) -> dict[str, list[dict[str, Any]]]:
        """Return {"rows", "rounds"} of a stage, both empty if it is not done."""
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
    def held(self, stage: Stage) -> Iterator[None]:
        """Keep other processes from making the same stage; wait for one that does."""
        if self.layout is not Layout.KEY:  # The whole store is held.
            yield
            return
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

    # ---- what a stage is made of -----------------------------------------------------------------

    def prepare(self, stages: Sequence[Stage]) -> None:
        """Put aside results that were made of other parts, and log which stages run again."""
        if self.layout is Layout.KEY:
            return
        for stage in stages:
            file = self.folder(stage) / MADE_OF
            made_of = json.loads(json.dumps(portable(stage.identity()), default=str))
            before = read_json(file, dict) if file.exists() else {}
            begun = file.exists() or (self.folder(stage) / RESULT).exists()
            if begun and before != made_of:
                self._put_aside(stage, [key for key in made_of if made_of[key] != before.get(key)])
            if before != made_of:
                write_atomically(file, json.dumps(made_of, indent=1).encode())

    def _put_aside(self, stage: Stage, changed: Sequence[str]) -> None:
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
