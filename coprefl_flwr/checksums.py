"""Checksums, by which a file that was damaged on disk is found before it is used.

A folder of results has them in a file of its own, which `sha256sum -c SHA256SUMS` reads; arrays
that are saved as safetensors carry theirs in the file's header. What was written before there were
checksums has none, and is taken as it is.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import read_bytes, write_atomically

SUMS = "SHA256SUMS"
IN_HEADER = "sha256"

_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


def of_arrays(arrays: Arrays, text: str = "") -> str:
    """Return the SHA-256 of arrays, in whatever order, and of a text that belongs to them."""
    made = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        made.update(f"\0{name} {array.dtype.str} {array.shape}\0".encode())
        made.update(array.reshape(-1).view(np.uint8).data)  # Its bytes, not a copy of them.
    return made.hexdigest()


def sealed(arrays: Arrays, text: str) -> str:
    """Return the checksum of arrays and a text, and the text: an entry of the arrays' file.

    One entry for both, as safetensors writes several in an order of chance.
    """
    return f"{of_arrays(arrays, text)} {text}"


def write_sums(folder: Path, names: Iterable[str], contents: Mapping[str, bytes]) -> None:
    """Write the checksums of files of a folder, and of others that are about to be written."""
    found = {name: of_file(folder / name) for name in names}
    found |= {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    lines = [f"{found[name]}  {name}\n" for name in sorted(found)]
    write_atomically(folder / SUMS, "".join(lines).encode())


def damaged(folder: Path, *names: str, needed: Iterable[str] = ()) -> list[str]:
    """Return which files of a folder are not what their checksums say; of `names`, if any.

    One that is not there is left to whoever needs it. Where the file of checksums cannot be read,
    is cut short or lacks one that is `needed`, it is that one that is damaged.
    """
    sums = folder / SUMS
    if not os.path.lexists(sums):
        return []
    try:
        text = read_bytes(sums).decode(errors="replace")
    except SettingsError:  # A folder, a device, or one that may not be read.
        return [SUMS]
    lines = text.splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    known = {one[2]: one[1] for one in found if one}
    if len(known) < len(lines) or not known or not text.endswith("\n"):
        return [SUMS]
    if set(needed) - known.keys():
        return [SUMS]
    wanted = [name for name in known if not names or name in names]
    there = [name for name in wanted if (folder / name).exists()]
    return [name for name in there if _sum(folder / name) != known[name]]


def _sum(file: Path) -> str:
    """Return the SHA-256 of a file, "" of what cannot be read, as a folder in its place."""
    try:
        return of_file(file) if file.is_file() else ""
    except OSError:
        return ""


def of_file(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
