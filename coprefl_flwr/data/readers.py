"""Readers of arrays in files: .npz, and the JSON of LEAF's FEMNIST."""

import json
import os
import string
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coprefl_flwr.data.dataset import Dataset, make_dataset
from coprefl_flwr.errors import SettingsError, one_line, short, unknown

# ---- .npz ----------------------------------------------------------------------------------------

_Arrays = dict[str, npt.NDArray[Any]]
_PARTS = ("train_", "val_", "test_")
_COLUMNS = ("images", "labels", "groups", "domains")
_UNREADABLE = (
    *(OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error),
    RuntimeError,  # A compression that Python does not have, or a password.
)


def read_npz(path: Path, labels: str = "labels", relabel: bool = False) -> Dataset:
    """Read an .npz file, laid out as `load_dataset` says, with the labels called `labels`.

    Raises a SettingsError if it is laid out otherwise, has a key that is none of these, or no such
    labels. `relabel` is as in `make_dataset`.
    """
    arrays = arrays_in(path)
    parts = _parts(path, arrays)
    images = [arrays[f"{part}images"] for part in parts]
    first = images[0]
    if any(
        one.dtype != np.uint8 or one.ndim not in (3, 4) or one.shape[1:] != first.shape[1:]
        for one in images
    ):
        found = " and ".join(f"{one.dtype} {one.shape}" for one in images)
        allowed = "uint8 (N, H, W) or (N, H, W, C), of one shape in all parts"
        raise SettingsError(f"{path}: images are {found}; allowed are {allowed}")
    others = _other_labels(path, arrays, parts)
    if labels not in (known := ["labels", *others]):
        raise SettingsError(f"{path}: {unknown('labels', labels, known)}")
    columns = {
        name: _column(path, arrays, parts, name)
        for name in ("groups", "domains")
        if any(f"{part}{name}" in arrays for part in parts)
    }
    is_test = [part == "test_" for part in parts]
    pixels = np.concatenate(images)
    pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)
    return make_dataset(
        str(path),
        torch.from_numpy(np.ascontiguousarray(pixels)),
        _column(path, arrays, parts, labels),
        _names(path, arrays, "classes" if labels == "labels" else f"{labels}_classes"),
        test=np.repeat(is_test, list(map(len, images))) if any(is_test) else None,
        domain_names=_names(path, arrays, "domain_names"),
        relabel=relabel,
        **columns,
    )


def arrays_in(path: Path) -> _Arrays:
    """Return the arrays of an .npz file by name.

    Raises a SettingsError if it is none, holds anything but plain arrays, or too much to load: a
    few bytes of an archive can unpack to as many zeros as there is memory for.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            total, most = sum(entry.file_size for entry in archive.infolist()), most_bytes()
        if total > most:
            problem = f"holds {total / 2**30:.1f} GiB, and half of this machine's memory is"
            raise SettingsError(f"{path}: {problem} {most / 2**30:.1f} GiB")
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except SettingsError:
        raise
    except _UNREADABLE as error:
        why = short(one_line(error), 200)
        raise SettingsError(f"{path}: not a readable .npz of plain arrays ({why})") from error


def most_bytes() -> int:
    """Return the most bytes to load: half of the memory, as parts of a dataset are put together."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # A system that does not say.
        return 16 * 2**30


def _parts(path: Path, arrays: _Arrays) -> tuple[str, ...]:
    """Return the prefixes of the parts' keys; SettingsError if keys are missing."""
    for parts in (("",), _PARTS, ("train_", "test_")):
        if {f"{part}{name}" for part in parts for name in ("images", "labels")} <= arrays.keys():
            return parts
    known = [f"{part}{name}" for part in ("", *_PARTS) for name in _COLUMNS]
    strange = [f"; {unknown('key', key, known)}" for key in sorted(arrays) if key not in known]
    raise SettingsError(
        f"{path}: has the keys {', '.join(sorted(arrays)) or '(none)'}; needed are images and "
        "labels, or train_images, train_labels, test_images and test_labels" + "".join(strange[:1])
    )


def _other_labels(path: Path, arrays: _Arrays, parts: tuple[str, ...]) -> list[str]:
    """Return the names, apart from "labels", of columns with an integer for each image.

    Raises a SettingsError for a key that nothing would read, such as a misspelt one.
    """

    def is_column(part: str, name: str) -> bool:
        column, n = arrays.get(f"{part}{name}", np.empty(0)), len(arrays[f"{part}images"])
        return np.issubdtype(column.dtype, np.integer) and column.shape in ((n,), (n, 1))

    names = {key.removeprefix(parts[0]) for key in arrays if key.startswith(parts[0])}
    names -= {"images", "labels"}
    others = sorted(name for name in names if all(is_column(part, name) for part in parts))
    known = [f"{part}{name}" for part in parts for name in _COLUMNS]
    known += ["classes", "domain_names", *(f"{name}_classes" for name in others)]
    allowed = {*known, *(f"{part}{name}" for part in parts for name in others)}
    for key in sorted(arrays.keys() - allowed):
        line = f"{unknown('key', key, known)} (other labels are an integer per image)"
        raise SettingsError(f"{path}: {line}")
    return others


def _column(path: Path, arrays: _Arrays, parts: tuple[str, ...], name: str) -> npt.NDArray[Any]:
    """Return `name` of all parts; `make_dataset` checks that it has a value for each image."""
    missing = [f"{part}{name}" for part in parts if f"{part}{name}" not in arrays]
    if missing:
        raise SettingsError(f"{path}: has no {missing[0]}, and another part has {name}")
    columns = [arrays[f"{part}{name}"] for part in parts]
    try:
        return np.concatenate(columns)
    except ValueError as error:
        found = " and ".join(str(one.shape) for one in columns)
        raise SettingsError(f"{path}: {name} have shape {found}; allowed is (N,)") from error


def _names(path: Path, arrays: _Arrays, key: str) -> tuple[str, ...] | None:
    """Return the names of classes or domains, in the order of their numbers; None for none."""
    if key in arrays and arrays[key].ndim != 1:
        raise SettingsError(f"{path}: {key} has shape {arrays[key].shape}; allowed is (names,)")
    return tuple(map(str, arrays[key])) if key in arrays else None


# ---- LEAF ----------------------------------------------------------------------------------------

# The numbering of LEAF and of EMNIST byclass.
_CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SIDE = 28


def read_leaf(root: Path) -> Dataset:
    """Read FEMNIST as LEAF writes it (Caldas et al. 2018): uint8 (N, 1, 28, 28), by writer.

    A file of train/*.json and test/*.json holds {"users": [name], "user_data": {name: {"x": images,
    "y": labels}}, ...}, each image 784 numbers in 0..1. Groups are the users, numbered in the order
    of their names. Unlike in EMNIST, the characters are dark on light. Raises a SettingsError for a
    file of another form.
    """
    writers: list[str] = []
    images: list[npt.NDArray[np.uint8]] = []
    labels: list[npt.NDArray[Any]] = []
    test: list[bool] = []
    for part in ("train", "test"):
        for file in sorted((root / part).glob("*.json")):
            for writer, pixels, numbers in _writers(file):
                writers += [writer] * len(numbers)
                test += [part == "test"] * len(numbers)
                images.append(pixels)
                labels.append(numbers)
    if not images:
        raise SettingsError(f"{root}: its .json files hold no samples")
    return make_dataset(
        str(root),
        torch.from_numpy(np.concatenate(images)).reshape(-1, 1, _SIDE, _SIDE),
        np.concatenate(labels),
        _CHARACTERS,
        groups=np.unique(writers, return_inverse=True)[1],
        test=np.array(test) if any((root / "test").glob("*.json")) else None,
    )


def _writers(file: Path) -> Iterator[tuple[str, npt.NDArray[np.uint8], npt.NDArray[Any]]]:
    """Yield (writer, images (n, 784), labels (n,)) of a file, without writers of no images."""
    try:
        stored = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: not readable as JSON ({error})") from error
    if not isinstance(stored, dict) or not isinstance(stored.get("users"), list):
        form = "{users: [...], user_data: {...}}"
        raise SettingsError(f"{file}: does not hold what LEAF writes, {form}")
    for writer in stored["users"]:
        try:
            of_writer = stored["user_data"][writer]
            images, labels = np.array(of_writer["x"], np.float64), np.array(of_writer["y"])
            if images.size == labels.size == 0:
                continue
            # A NaN fails both comparisons.
            if not (images.shape == (len(labels), _SIDE**2) and (images >= 0).all()):
                raise ValueError
            if not ((images <= 1).all() and labels.ndim == 1 and labels.dtype.kind in "iu"):
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SettingsError(
                f"{file}: user_data of {writer!r} must be x, lists of {_SIDE**2} numbers in 0..1, "
                "and as many whole numbers y"
            ) from error
        yield str(writer), np.rint(255 * images).astype(np.uint8), labels
