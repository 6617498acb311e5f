"""Files that no reader finds half written, and folders in which nobody else's files are touched.

A folder that this package fills is new or empty at first. It then has a file MARK in it, which also
lists files that may be replaced and removed. A half written file has a name that no other program
gives: `.NAME.PROCESS.coprefl-part`. Nothing is written or removed through a link below a folder
that the user named.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
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

MARK = ".coprefl"
"""What a folder of this package has in it; its other files with general names begin so."""
LOCK, LOCKS = f"{MARK}.lock", f"{MARK}.locks"
"""What a process holds that has a folder for itself; the folder of several of these."""

_ABANDONED = 60.0
"""Seconds after which no process is still writing a file."""
_PART = re.compile(r"\..+\.[0-9]+\.coprefl-part", re.DOTALL)
"""Names of half written files."""
_MARKED = "Files in this folder are written by coprefl-flwr, which may replace and remove these:\n"


def expanded(path: str | Path) -> Path:
    """Return a path with the user's folder instead of `~`, or raise a SettingsError."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise SettingsError(
            f"{path}: there is no user whose folder {Path(path).parts[0]} is"
        ) from error


@contextmanager
def written_beside(path: Path, content: bytes) -> Iterator[Path]:
    """Write a file under another name, for its user to rename; it is removed where it was not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A plain open, not tempfile: the result should have the permissions of any other file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.coprefl-part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):  # As where the folder is gone: that is told already.
            temporary.unlink(missing_ok=True)


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file, and its missing parent folders, in one step; a failed write leaves nothing."""
    with written_beside(Path(path), content) as temporary:
        os.replace(temporary, path)


def remove_unfinished(folder: Path, *, shared: bool = False, below: bool = True) -> None:
    """Remove what killed processes of this package were writing in a folder, and in those below it.

    In a `shared` one other processes may be writing: what was begun in the last minute stays.
    """
    for place, inner, names in os.walk(folder):
        if not below:
            inner.clear()
        for file in (Path(place, name) for name in names if _PART.fullmatch(name)):
            with contextlib.suppress(OSError):  # Another process was faster.
                if not shared or time.time() - file.lstat().st_mtime > _ABANDONED:
                    file.unlink(missing_ok=True)


def remove_named(folder: Path, name: re.Pattern[str]) -> None:
    """Remove the files below a folder that have such names, and folders that are empty then."""
    for place, _, files in os.walk(folder, topdown=False):
        for file in files:
            if name.fullmatch(file) or _PART.fullmatch(file):
                Path(place, file).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # It holds something else.
            os.rmdir(place)


def check_links(root: Path, *paths: Path) -> None:
    """Raise a SettingsError if one of the paths, or a folder between `root` and it, is a link."""
    for path in paths:
        for place in (path, *path.parents):
            if place == root:
                break
            if place.is_symlink():
                line = f"{place} is a link, through which nothing is written or removed"
                raise SettingsError(f"{line}: put a folder or a file in its place, or move it away")


def check_own(folder: Path, option: str) -> None:
    """Raise a SettingsError, which names the option, if a folder holds what is not ours."""
    names = os.listdir(folder) if folder.exists() else []
    mark = folder / MARK
    if MARK in names and mark.is_file() and not mark.is_symlink():
        return
    other = sorted(n for n in names if not n.startswith(f"{MARK}.") and not _PART.fullmatch(n))
    if other:
        raise SettingsError(
            f"{option}: {folder} holds files that coprefl did not write, such as {other[0]!r}; "
            "give a folder that is new or empty"
        )


def own(folder: Path, option: str) -> None:
    """Make a folder ours, if it is not; a SettingsError, as of `check_own`, if it cannot be."""
    check_own(folder, option)
    _mark(folder, _listed(folder))


def _mark(folder: Path, names: set[str]) -> None:
    text = _MARKED + "".join(f"{name}\n" for name in sorted(names))
    write_atomically(folder / MARK, text.encode())


def _listed(folder: Path) -> set[str]:
    """Return the names of files in a folder of this package that may be replaced and removed."""
    mark = folder / MARK
    text = mark.read_text(errors="replace") if mark.exists() else ""
    lines = text.removeprefix(_MARKED).splitlines() if text.startswith(_MARKED) else []
    return {line for line in lines if line and not {"", ".", ".."} & {*line.split("/")}}


def replace_files(folder: Path, contents: Mapping[str, bytes], option: str) -> None:
    """Write files, by their names in a folder of this package, instead of those of the last call.

    Raises a SettingsError before any change if the folder, or a file of such a name, is not ours.
    """
    check_own(folder, option)
    before = _listed(folder)
    check_links(folder, *(folder / name for name in before | contents.keys()))
    for name in contents.keys() - before:
        if (folder / name).exists():
            raise SettingsError(f"{folder / name} was not written by coprefl: move it away")
    _mark(folder, before | contents.keys())  # First, so that what a kill leaves is known as ours.
    for name in before - contents.keys():
        with contextlib.suppress(IsADirectoryError, NotADirectoryError):
            (folder / name).unlink(missing_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    _mark(folder, set(contents))


def read_bytes(path: Path, most: int = LARGEST_RESULT) -> bytes:
    """Return the content of a regular file of at most this many bytes.

    Raises a SettingsError with the file's name if it is not there, larger, or a device or a pipe,
    which may have no end.
    """
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
            raise SettingsError(f"{path} cannot be read: it is not a regular file")
        with path.open("rb") as file:
            # Python takes the memory for as many bytes as it is asked for.
            content = file.read(min(most, about.st_size) + 1)
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
        raise ValueError("brackets are nested too deeply") from None


def _integer(text: str) -> int:
    if len(text) > len(str(LARGEST_INTEGER)) + 1 or abs(int(text)) > LARGEST_INTEGER:
        _refused_number(text)
    return int(text)


def _number(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refused_number(text)


def _refused_number(text: str) -> NoReturn:
    raise ValueError(f"the number {short(text)} is not finite, or too large")


def read_json(path: Path, kind: type = object) -> Any:
    """Return what a JSON file of this package holds, of a type such as dict.

    Raises a SettingsError with the file's name if it is not there, or damaged.
    """
    try:
        content = parse_json(read_bytes(path))
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(f"{path} is damaged: {one_line(error)}") from error
    if not isinstance(content, kind):
        raise SettingsError(
            f"{path} is damaged: it holds a {type(content).__name__}, and not a {kind.__name__}"
        )
    return content


def inside(root: Path, name: str) -> Path:
    """Return the path of a name from outside, such as a message's, in a folder of this package.

    Raises a SettingsError for a name that would lead out of the folder, or cannot be one.
    """
    parts = name.split("/")
    for part in parts:
        dots, wrong = part in ("", ".", ".."), any(sign in part for sign in "\\:\0")
        if dots or wrong or len(part.encode()) > LONGEST_NAME:
            raise SettingsError(f"{name[:LONGEST_NAME]!r} cannot name a folder of this node")
    return root.joinpath(*parts)


@contextmanager
def alone(lock: Path, problem: str) -> Iterator[None]:
    """Keep other processes from the same, as long as this one lives.

    Raises a SettingsError, which says `problem`, if one has it, or if the lock is a link.
    """
    check_links(lock.parent, lock)
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        acquired = filelock.FileLock(lock).acquire(blocking=False)
    except filelock.Timeout:
        raise SettingsError(problem) from None
    with acquired:
        yield


SUMS = "SHA256SUMS"
"""The file with the checksums of a folder of results, which `sha256sum -c` reads."""


def write_sums(folder: Path, names: Iterable[str], contents: Mapping[str, bytes]) -> None:
    """Write the checksums of files of a folder, and of others that are about to be written."""
    sums = {name: sha256_of(folder / name) for name in names}
    sums |= {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    lines = [f"{sums[name]}  {name}\n" for name in sorted(sums)]
    write_atomically(folder / SUMS, "".join(lines).encode())


def damaged(folder: Path, *names: str, needed: str = "") -> list[str]:
    """Return the files of a folder that are not what their checksums say; of `names`, if any.

    A missing file is left to the code that reads it. Where the file of checksums cannot be read, is
    cut short or lacks the one that is `needed`, it is itself what is damaged.
    """
    if not os.path.lexists(folder / SUMS):
        return [SUMS] if needed else []
    try:
        text = read_bytes(folder / SUMS).decode(errors="replace")
    except SettingsError:  # A folder, a device, or a file that may not be read.
        return [SUMS]
    lines = [line.split("  ", 1) for line in text.splitlines()]
    if not text.endswith("\n") or any(len(line) < 2 for line in lines):
        return [SUMS]
    known = {name: digest for digest, name in lines}
    if needed and needed not in known:
        return [SUMS]
    there = [name for name in known if name in (names or known) and (folder / name).exists()]
    return [name for name in there if _sum(folder / name) != known[name]]


def _sum(file: Path) -> str:
    """Return the SHA-256 of a file, "" of what cannot be read, as a folder in its place."""
    try:
        return sha256_of(file) if file.is_file() else ""
    except OSError:
        return ""


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
