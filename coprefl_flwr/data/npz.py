"""Images and their labels in one NumPy file."""

import difflib
import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.labels import renumber
from coprefl_flwr.errors import SettingsError, one_line, short, unknown

_Arrays = dict[str, npt.NDArray[Any]]
_UNREADABLE = (
    *(OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error),
    RuntimeError,  # A compression that Python does not have, or a password.
)
_PARTS, _COLUMNS = ("train_", "val_", "test_"), ("images", "labels", "groups", "domains")


def load_npz(path: Path, labels: str = "labels", relabel: bool = False) -> ImageDataset:
    """Read an .npz file, laid out as `load_dataset` says, with the labels called `labels`.

    With `relabel` these are numbered 0, 1, 2, ... in their order. Raises a SettingsError if it is
    laid out otherwise, has a key that is none of these, or no such labels.
    """
    arrays = arrays_in(path)
    parts = _parts(path, arrays)
    images = [arrays[f"{part}images"] for part in parts]
    pixels = _pixels(path, images)
    _check_keys(path, arrays, parts)
    known = ["labels", *_other_labels(arrays, parts)]
    if labels not in known:
        raise SettingsError(f"{path}: {unknown('labels', labels, known)}")
    names = "classes" if labels == "labels" else f"{labels}_classes"
    columns = {
        name: _column(path, arrays, parts, name)
        for name in ("groups", "domains")
        if any(f"{part}{name}" in arrays for part in parts)
    }
    is_test = [part == "test_" for part in parts]
    numbers = _column(path, arrays, parts, labels)
    classes = _names(path, arrays, names)
    if relabel:
        numbers, classes = renumber(numbers, classes)
    return ImageDataset.of(
        str(path),
        torch.from_numpy(pixels),
        numbers,
        classes,
        test=np.repeat(is_test, list(map(len, images))) if any(is_test) else None,
        domain_names=_names(path, arrays, "domain_names"),
        **columns,
    )


def arrays_in(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an .npz file by name.

    Raises a SettingsError if it is none, holds anything but plain arrays, or too much to load.
    """
    try:
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except SettingsError:
        raise
    except _UNREADABLE as error:
        why = short(one_line(error), 200)
        raise SettingsError(f"{path}: not a readable .npz of plain arrays ({why})") from error


def _check_sizes(path: Path) -> None:
    """Raise a SettingsError for arrays that are not of the size they say, or too large to load.

    Of a few bytes an archive can make as many zeros as there is memory for.
    """
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                version = np.lib.format.read_magic(file)
                known = {(1, 0): np.lib.format.read_array_header_1_0}
                read = known.get(version, np.lib.format.read_array_header_2_0)
                shape, _, dtype = read(file)
                said = file.tell() + math.prod(shape) * dtype.itemsize
            if said != entry.file_size and not dtype.hasobject:
                problem = f"{entry.filename} says {said} bytes and has {entry.file_size}"
                raise SettingsError(f"{path}: {problem}")
        total, most = sum(entry.file_size for entry in archive.infolist()), most_bytes()
    if total > most:
        problem = f"holds {total / 2**30:.1f} GiB, and half of this machine's memory is"
        raise SettingsError(f"{path}: {problem} {most / 2**30:.1f} GiB")


def most_bytes() -> int:
    """Return the most bytes to load: half of the memory, as parts of a dataset are put together."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # A system that does not say.
        return 16 * 2**30


def _parts(path: Path, arrays: _Arrays) -> tuple[str, ...]:
    """Return the prefixes of the parts' keys; SettingsError if keys are missing."""
    if {"images", "labels"} <= arrays.keys():
        return ("",)
    if {"train_images", "train_labels", "test_images", "test_labels"} <= arrays.keys():
        has_val = {"val_images", "val_labels"} <= arrays.keys()
        return ("train_", "val_", "test_") if has_val else ("train_", "test_")
    raise SettingsError(
        f"{path}: has the keys {', '.join(sorted(arrays)) or '(none)'}; needed are images and "
        f"labels, or train_images, train_labels, test_images and test_labels{_misspelt(arrays)}"
    )


def _misspelt(arrays: _Arrays) -> str:
    """Return a hint at the first key that is nearly one of those that are known."""
    known = [f"{part}{name}" for part in ("", *_PARTS) for name in _COLUMNS]
    for key in sorted(arrays):
        near = difflib.get_close_matches(key.lower(), known, n=1)
        if near and key not in known:
            return f"; '{key}': did you mean '{near[0]}'?"
    return ""


def _check_keys(path: Path, arrays: _Arrays, parts: tuple[str, ...]) -> None:
    """Raise a SettingsError for a key that nothing would read, such as a misspelt one.

    An integer per image, whatever it is called, is other labels (see `_other_labels`).
    """
    others = _other_labels(arrays, parts)
    known = [f"{part}{name}" for part in parts for name in _COLUMNS]
    known += ["classes", "domain_names", *(f"{name}_classes" for name in others)]
    allowed = {*known, *(f"{part}{name}" for part in parts for name in others)}
    for key in sorted(arrays.keys() - allowed):
        raise SettingsError(
            f"{path}: {unknown('key', key, known)} (other labels are an integer per image)"
        )


def _pixels(path: Path, images: list[npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """Return the images of all parts, (N, C, H, W)."""
    if any(part.dtype != np.uint8 or part.ndim not in (3, 4) for part in images):
        found = ", ".join(f"{part.dtype} {part.shape}" for part in images)
        allowed = "uint8 (N, H, W) or (N, H, W, C)"
        raise SettingsError(f"{path}: images are {found}; allowed are {allowed}")
    if len({part.shape[1:] for part in images}) > 1:
        found = " and ".join(str(part.shape[1:]) for part in images)
        raise SettingsError(f"{path}: its parts hold images of different shapes, {found}")
    pixels = np.concatenate(images)
    pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)
    return np.ascontiguousarray(pixels)


def _column(path: Path, arrays: _Arrays, parts: tuple[str, ...], name: str) -> npt.NDArray[Any]:
    """Return `name` of all parts, one value per image."""
    missing = [f"{part}{name}" for part in parts if f"{part}{name}" not in arrays]
    if missing:
        raise SettingsError(f"{path}: has no {missing[0]}, and another part has {name}")
    columns = [arrays[f"{part}{name}"] for part in parts]
    flat = [part[:, 0] if part.ndim == 2 and part.shape[1] == 1 else part for part in columns]
    if any(part.ndim != 1 for part in flat):
        found = ", ".join(str(part.shape) for part in columns)
        raise SettingsError(f"{path}: {name} have shape {found}; allowed are (N,) or (N, 1)")
    return np.concatenate(flat)


def _names(path: Path, arrays: _Arrays, key: str) -> tuple[str, ...] | None:
    """Return the names of classes or domains, in the order of their numbers; None for none."""
    if key not in arrays:
        return None
    if arrays[key].ndim != 1:
        raise SettingsError(f"{path}: {key} has shape {arrays[key].shape}; allowed is (names,)")
    return tuple(map(str, arrays[key]))


def _other_labels(arrays: _Arrays, parts: tuple[str, ...]) -> list[str]:
    """Return the names, apart from "labels", under which each part has an integer per image."""

    def labels_a_part(part: str, name: str) -> bool:
        column, n = arrays.get(f"{part}{name}", np.empty(0)), len(arrays[f"{part}images"])
        return np.issubdtype(column.dtype, np.integer) and column.shape in ((n,), (n, 1))

    names = {key.removeprefix(parts[0]) for key in arrays if key.startswith(parts[0])}
    names -= {"images", "labels"}
    return sorted(name for name in names if all(labels_a_part(part, name) for part in parts))
