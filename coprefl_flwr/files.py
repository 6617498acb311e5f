"""Files that no reader finds half written, that one process has for itself, and that are whole."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from coprefl_flwr.errors import SettingsError, one_line

LONGEST_NAME = 255
"""Bytes that file systems allow the name of a file."""

_ABANDONED = 60.0
"""Seconds after which nobody is still writing a file, whoever it was."""


def expanded(path: str | Path) -> Path:
    """Return a path with the user's folder in the place of `~`, or raise a SettingsError."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise SettingsError(
            f"{path}: there is no user whose folder {Path(path).parts[0]} is"
        ) from error


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file, and its missing parent folders, in one step; a failed write leaves nothing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A plain open, not tempfile: the result should have the permissions of any other file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # As where the folder is gone: that is told already.
            temporary.unlink(missing_ok=True)


def remove_unfinished(folder: Path, *, shared: bool = False, below: bool = True) -> None:
    """Remove what killed processes were writing in a folder, and in those below it.

    In a `shared` one other processes may be writing: what was begun in the last minute stays.
    """
    for pattern in (".*.part", "*.partial"):
        for file in folder.rglob(pattern) if below else folder.glob(pattern):
            with contextlib.suppress(OSError):  # Another process was faster.
                if not shared or time.time() - file.stat().st_mtime > _ABANDONED:
                    file.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Return what a JSON file of this package holds.

    Raises a SettingsError with the file's name if it is not there, or damaged.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # Brackets within brackets, thousands deep.
        raise SettingsError(f"{path} is damaged: {one_line(error)}") from error


def inside(root: Path, name: str) -> Path:
    """Return the path of a name that somebody else gave, such as a message, in a folder of ours.

    Raises a SettingsError for a name that would lead out of the folder, or cannot be one.
    """
    parts = name.split("/")
    for part in parts:
        dots, wrong = part in ("", ".", ".."), any(one in part for one in "\\:\0")
        if dots or wrong or len(part.encode()) > LONGEST_NAME:
            raise SettingsError(f"{name[:LONGEST_NAME]!r} cannot name a folder of this node")
    return root.joinpath(*parts)


@contextmanager
def alone(lock: Path, problem: str) -> Iterator[None]:
    """Keep other processes from the same, as long as this one lives.

    Raises a SettingsError, which says `problem`, if one has it.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = filelock.FileLock(lock).acquire(blocking=False)
    except filelock.Timeout:
        raise SettingsError(problem) from None
    with held:
        yield
