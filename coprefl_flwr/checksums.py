"""Checksums, by which a file that was damaged on disk is found before it is used.

A folder of results has them in a file of its own, which `sha256sum -c SHA256SUMS` reads; arrays
that are saved as safetensors carry theirs in the file's header.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.files import read_bytes, write_atomically

SUMS = "SHA256SUMS"
IN_HEADER = "coprefl"
"""The entry of a safetensors file's header that holds a checksum, and behind it a text."""


def of_arrays(arrays: Arrays, text: str = "") -> str:
    """Return the SHA-256 of arrays, in whatever order, and of a text that belongs to them."""
    made = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        made.update(f"\0{name} {array.dtype.str} {array.shape}\0".encode())
        made.update(array.reshape(-1).view(np.uint8).data)  # Its bytes, not a copy of them.
    return made.hexdigest()


def write_sealed(file: str | Path, arrays: Arrays, text: str) -> None:
    """Write arrays, a text and the checksum of both as a safetensors file, in one step."""
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # One entry for text and checksum, as safetensors writes several in an order of chance.
    write_atomically(file, save(whole, {IN_HEADER: f"{of_arrays(whole, text)} {text}"}))


def read_sealed(file: str | Path) -> tuple[Arrays, str]:
    """Return the arrays and the text that `write_sealed` wrote.

    Raises a ValueError that says what is wrong if the file is not there, or damaged.
    """
    try:
        with safe_open(str(file), framework="numpy") as opened:
            found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            known, _, text = opened.metadata()[IN_HEADER].partition(" ")
    except (OSError, SafetensorError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(one_line(error)) from error
    if known != of_arrays(found, text):
        raise ValueError("it is damaged, as its checksum says")
    return found, text


def write_sums(folder: Path, names: Iterable[str], contents: Mapping[str, bytes]) -> None:
    """Write the checksums of files of a folder, and of others that are about to be written."""
    found = {name: of_file(folder / name) for name in names}
    found |= {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    lines = [f"{found[name]}  {name}\n" for name in sorted(found)]
    write_atomically(folder / SUMS, "".join(lines).encode())


def damaged(folder: Path, *names: str, needed: str = "") -> list[str]:
    """Return the files of a folder that are not what their checksums say; of `names`, if any.

    A missing file is left to whoever needs it. Where the file of checksums cannot be read, is cut
    short or lacks the one that is `needed`, it is itself what is damaged.
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
        return of_file(file) if file.is_file() else ""
    except OSError:
        return ""


def of_file(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
