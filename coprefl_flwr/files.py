"""Files that no reader finds half written, that one process has for itself, and that are whole."""

import contextlib
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import filelock

from coprefl_flwr.errors import SettingsError, one_line, short

LONGEST_NAME = 255
"""Bytes that file systems allow the name of a file."""

LARGEST_TEXT = 4 * 2**20
"""Bytes of a text that people write, of which the longest recipes have 10,000."""
LARGEST_RESULT = 2**30
"""Bytes of what this package writes; a task of the most clients has a fifth of it."""
LARGEST_INTEGER = 2**63 - 1
"""The largest whole number that a message can hold, and arrays and tables can."""

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


def read_bytes(path: Path, most: int = LARGEST_RESULT) -> bytes:
    """Return the content of a regular file of at most so many bytes.

    Raises a SettingsError with the file's name if it is not there, larger, or a device or a pipe,
    which may have no end.
    """
    try:
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise SettingsError(f"{path} cannot be read: it is not a regular file")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > most:
        raise SettingsError(f"{path}: has more than {most} bytes")
    return content


def read_text(path: Path, most: int = LARGEST_TEXT) -> str:
    """Return the text in UTF-8 that a file holds; raises as `read_bytes` does, or if it is none."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not a text in UTF-8") from error


def parse_json(text: str | bytes, *, infinite: bool = False) -> Any:
    """Return what a JSON text holds; where numbers may be `infinite`, also NaN and Infinity.

    Raises a ValueError for what is no JSON, has brackets within brackets thousands deep, or holds a
    number that no int64 or float64 can hold.
    """
    constant = float if infinite else _refused_number
    try:
        return json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=constant)
    except RecursionError:
        raise ValueError("brackets within brackets, too deep") from None


def _integer(text: str) -> int:
    if len(text) > len(str(LARGEST_INTEGER)) + 1 or abs(int(text)) > LARGEST_INTEGER:
        _refused_number(text)
    return int(text)


def _number(text: str) -> float:
    found = float(text)
    return found if math.isfinite(found) else _refused_number(text)


def _refused_number(text: str) -> NoReturn:
    raise ValueError(f"the number {short(text)} is not finite, or too large")


def read_json(path: Path, kind: type = object) -> Any:
    """Return what a JSON file of this package holds, of a type such as dict.

    Raises a SettingsError with the file's name if it is not there, or damaged.
    """
    try:
        found = parse_json(read_bytes(path))
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(f"{path} is damaged: {one_line(error)}") from error
    if not isinstance(found, kind):
        raise SettingsError(
            f"{path} is damaged: it holds a {type(found).__name__}, and not a {kind.__name__}"
        )
    return found


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
