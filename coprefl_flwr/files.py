"""Write files atomically, and only in folders that belong to this package.

A reader never sees a half-written file, and files of other programs are never changed. A folder
belongs to this package if it was new or empty at first. The package then writes a file MARK into
it, which also lists the files that may be replaced and removed. A half-written file has a name that
no other program uses: `.NAME.PROCESS.coprefl-part`, where PROCESS is the process id.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from coprefl_flwr.errors import SettingsError, excerpt, one_line, os_error_line

MARK = ".coprefl"
"""The name of the file that marks a folder of this package; a prefix of other files' names."""
LOCK, LOCKS = f"{MARK}.lock", f"{MARK}.locks"
"""The lock file that gives one process sole use of a folder, and a folder of such lock files."""

PART = ".coprefl-part"
"""The ending of the names of half-written files."""
_MARKED = "Files in this folder are written by coprefl-flwr, which may replace and remove these:"


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder instead of `~`."""
    return Path(path).expanduser()


def write_atomically(
    path: str | Path, content: bytes, *, durable: bool = True, reuse: Path | None = None
) -> None:
    """Write a file in one step, after its missing parent folders; a failed write leaves no file.

    Without `durable`, the file may be lost if the machine, not only this process, stops. `reuse`
    is a file in the same folder that is replaced: to overwrite it is faster than a new file.
    """
    path = Path(path)
    if reuse is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile, whose files have other permissions than files that `open` creates.
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        if reuse is not None:
            os.replace(reuse, temporary)
        with temporary.open("wb" if reuse is None else "r+b") as file:
            file.write(content)
            file.truncate()
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # The write already reported the error.
            temporary.unlink(missing_ok=True)


def remove_unfinished(folder: Path, *, below: bool = True) -> None:
    """Remove the half-written files of killed processes from a folder and, if `below`, subfolders.

    No other process may write into these folders meanwhile.
    """
    for file in (folder.rglob if below else folder.glob)(f".*{PART}"):
        file.unlink(missing_ok=True)


def remove_named(folder: Path, name: re.Pattern[str]) -> None:
    """Remove half-written files, files whose names match `name`, and then empty folders."""
    for place, _, files in os.walk(folder, topdown=False):
        for file in files:
            if name.fullmatch(file) or file.endswith(PART):
                Path(place, file).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # The folder is not empty.
            os.rmdir(place)


def check_own(folder: Path, option: str) -> None:
    """Raise a SettingsError, which names the option, if a folder holds files of other programs."""
    names = os.listdir(folder) if folder.is_dir() else []
    other = sorted(n for n in names if not n.startswith(f"{MARK}.") and not n.endswith(PART))
    if other and MARK not in names:
        has = f"{folder} has files that coprefl did not write, such as {other[0]!r}"
        raise SettingsError(f"{option}: {has}; choose a new or empty folder")


def own(folder: Path, option: str) -> None:
    """Mark a folder as a folder of this package; raise a SettingsError as `check_own` does."""
    check_own(folder, option)
    if not (folder / MARK).exists():
        _mark(folder, set())


def _mark(folder: Path, names: set[str]) -> None:
    write_atomically(folder / MARK, "\n".join([_MARKED, *sorted(names), ""]).encode())


def replace_files(folder: Path, contents: Mapping[str, bytes], option: str) -> None:
    """Write files into a folder of this package, and remove the files of the last call.

    `contents` maps the name of each file to its content. Raises a SettingsError before any change
    if the folder, or an existing file with one of the names, was not written by this package.
    """
    own(folder, option)
    before = set((folder / MARK).read_text().splitlines()[1:])
    for name in contents.keys() - before:
        if (folder / name).exists():
            raise SettingsError(f"{folder / name} was not written by coprefl: move it away")
    _mark(folder, before | contents.keys())  # First, so a killed process leaves no unlisted file.
    for name, content in contents.items():
        write_atomically(folder / name, content)
    for name in before - contents.keys():  # Last: an error above leaves all files of the last call.
        (folder / name).unlink(missing_ok=True)
    _mark(folder, set(contents))


def move_aside(folder: Path, patterns: Iterable[str], prefix: str) -> Path:
    """Move the files of a folder whose names match a pattern into a new subfolder; return it.

    The subfolder's name is `prefix` with the first free number, counted from 1.
    """
    places = (folder / f"{prefix}{number}" for number in itertools.count(1))
    aside = next(place for place in places if not place.exists())
    aside.mkdir()
    for path in sorted(folder.iterdir()):
        if any(map(path.match, patterns)):
            os.replace(path, aside / path.name)
    return aside


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; a SettingsError with the file's name if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; a SettingsError if it is not in UTF-8 or cannot be read."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not a text in UTF-8") from error


def read_json(path: Path) -> Any:
    """Return the value in a JSON file of this package.

    Raises a SettingsError with the file's name if the file does not exist or is not JSON.
    """
    text = read_bytes(path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise damaged(path, one_line(error)) from error


def inside(root: Path, name: str) -> Path:
    """Return the path `root`/`name`, for a name that comes from outside, such as from a message.

    Raises a SettingsError if the path would be outside `root`, or if no folder can have the name.
    """
    if {"", ".", ".."} & {*name.split("/")} or {*name} & {*"\\:\0"}:
        raise SettingsError(f"{excerpt(repr(name))} cannot name a folder of this node")
    return root / name


@contextmanager
def alone(lock: Path, problem: str) -> Iterator[None]:
    """Hold a lock file during this block; the lock also ends if this process dies.

    Raises a SettingsError: with the message `problem` if another process holds the lock, or with
    the system's message if the file's folder cannot be created or written to.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        acquired = filelock.FileLock(lock).acquire(blocking=False)
    except filelock.Timeout:
        raise SettingsError(problem) from None
    except OSError as error:
        raise SettingsError(os_error_line(error)) from error
    with acquired:
        yield


SUMS = "SHA256SUMS"
"""The name of the file with the checksums of a folder of results, for `sha256sum -c`."""


def write_sums(folder: Path, names: Iterable[str], contents: Mapping[str, bytes]) -> None:
    """Write the file of checksums of a folder.

    `names` are existing files of the folder. `contents` maps the names of files that will be
    written next to their contents.
    """
    sums = {name: sha256_of(folder / name) for name in names}
    sums |= {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    lines = [f"{sums[name]}  {name}\n" for name in sorted(sums)]
    write_atomically(folder / SUMS, "".join(lines).encode())


def check_sums(folder: Path, *names: str, needed: str = "") -> None:
    """Raise a SettingsError if files in a folder do not match their checksums.

    If `names` are given, only these files are checked. Missing files are not checked: the code that
    reads a missing file reports it. There must be a checksum of the file `needed`.
    """
    text = (folder / SUMS).read_text(errors="replace") if (folder / SUMS).exists() else ""
    sums = {name: digest for digest, _, name in (s.partition("  ") for s in text.splitlines())}
    if needed and needed not in sums:
        raise damaged(folder / SUMS, f"it has no checksum of {needed}")
    for name, digest in sums.items():
        file = folder / name
        if name in (names or sums) and file.is_file() and sha256_of(file) != digest:
            raise damaged(file, f"its checksum is not the one in {SUMS}")


def damaged(file: Path, why: str) -> SettingsError:
    """Return the error for a file of this package that is damaged, with the folder to remove."""
    remedy = f"remove the folder {file.parent}, and run the same command again"
    return SettingsError(f"{file} is damaged: {why}; {remedy}")


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of the content of a file, as a hexadecimal string."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
