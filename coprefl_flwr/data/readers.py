"""Readers of .npz files and of LEAF's FEMNIST, which is stored as JSON."""

import json
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
from coprefl_flwr.errors import SettingsError, excerpt, one_line, unknown

# ---- .npz ----------------------------------------------------------------------------------------

_Arrays = dict[str, npt.NDArray[Any]]
_PARTS = ("train_", "val_", "test_")
_COLUMNS = ("images", "labels", "groups", "domains")
_UNREADABLE = (
    *(OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error),
    RuntimeError,  # The archive has an unknown compression or a password.
)


def read_npz(path: Path, labels: str = "labels", relabel: bool = False) -> Dataset:
    """Read an .npz file of the form that `load_dataset` describes.

    `labels` is the name of the array with the labels. `relabel` is as in `make_dataset`. Raises a
    SettingsError if the file has another form or an unknown key, or if it has no such labels.
    """
    arrays = arrays_in(path)
    parts = _parts(path, arrays)
    images = [arrays[f"{part}images"] for part in parts]
    fits = all(array.dtype == np.uint8 and array.ndim in (3, 4) for array in images)
    if not fits or len({array.shape[1:] for array in images}) > 1:
        kinds = " and ".join(f"{array.dtype} {array.shape}" for array in images)
        allowed = "uint8 (N, H, W) or (N, H, W, C), of one shape in all parts"
        raise SettingsError(f"{path}: images are {kinds}; allowed are {allowed}")
    columns = _columns(path, arrays, parts)
    known = ["labels", *sorted(columns.keys() - {"images", "labels"})]
    if labels not in known:
        raise SettingsError(f"{path}: {unknown('labels', labels, known)}")
    of_labels = "classes" if labels == "labels" else f"{labels}_classes"
    names = {key: arrays[key] for key in (of_labels, "domain_names") if key in arrays}
    for key, array in names.items():
        if array.ndim != 1:
            raise SettingsError(f"{path}: {key} has shape {array.shape}; allowed is (names,)")
    pixels, is_test = columns["images"], [part == "test_" for part in parts]
    pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)
    return make_dataset(
        str(path),
        torch.from_numpy(np.ascontiguousarray(pixels)),
        columns[labels],
        list(map(str, names[of_labels])) if of_labels in names else None,
        groups=columns.get("groups"),
        test=np.repeat(is_test, list(map(len, images))) if any(is_test) else None,
        domains=columns.get("domains"),
        domain_names=list(map(str, names["domain_names"])) if "domain_names" in names else None,
        relabel=relabel,
    )


def _parts(path: Path, arrays: _Arrays) -> tuple[str, ...]:
    """Return the splits' key prefixes, such as "train_"; SettingsError if a key is missing."""
    for parts in (("",), _PARTS, ("train_", "test_")):
        if {f"{part}{name}" for part in parts for name in ("images", "labels")} <= arrays.keys():
            return parts
    known = [f"{part}{name}" for part in ("", *_PARTS) for name in _COLUMNS]
    strange = [f"; {unknown('key', key, known)}" for key in sorted(arrays) if key not in known]
    raise SettingsError(
        f"{path}: has the keys {', '.join(sorted(arrays)) or '(none)'}; needed are images and "
        "labels, or train_images, train_labels, test_images and test_labels" + "".join(strange[:1])
    )


def _columns(path: Path, arrays: _Arrays, parts: tuple[str, ...]) -> _Arrays:
    """Return {name: concatenated splits} of images, labels and other integers per image."""
    # A key that is neither such a column nor a list of names, such as a misspelt key, is an error.
    columns, unread = _Arrays(), set(arrays)
    names = {key[len(part) :] for part in parts for key in arrays if key.startswith(part)}
    for name in sorted(names):
        keys = [f"{part}{name}" for part in parts]
        if name not in _COLUMNS and not all(
            key in arrays
            and np.issubdtype(arrays[key].dtype, np.integer)
            and arrays[key].shape in ((n := len(arrays[f"{part}images"]),), (n, 1))
            for part, key in zip(parts, keys, strict=True)
        ):
            continue
        missing = [key for key in keys if key not in arrays]
        if missing:
            raise SettingsError(f"{path}: has no {missing[0]}, but another part has {name}")
        pieces = [arrays[key] for key in keys]
        try:
            columns[name] = np.concatenate(pieces)
        except ValueError as error:
            shapes = " and ".join(str(piece.shape) for piece in pieces)
            line = f"{path}: {name} have shape {shapes}; allowed is (N,)"
            raise SettingsError(line) from error
        unread.difference_update(keys)
    others = ["classes", "domain_names", *(f"{name}_classes" for name in columns)]
    known = [*(f"{part}{name}" for part in parts for name in _COLUMNS), *others]
    for key in sorted(unread.difference(others)):
        line = f"{unknown('key', key, known)} (other labels need an integer per image)"
        raise SettingsError(f"{path}: {line}")
    return columns


def arrays_in(path: Path) -> _Arrays:
    """Return the arrays of an .npz file by name.

    Raises a SettingsError if the file is no .npz, or holds Python objects.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except _UNREADABLE as error:
        why = excerpt(one_line(error), 200)
        raise SettingsError(f"{path}: not a readable .npz of plain arrays ({why})") from error


# ---- LEAF ----------------------------------------------------------------------------------------

# The classes in the order of LEAF and of EMNIST byclass.
_CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SIDE = 28


def read_leaf(root: Path) -> Dataset:
    """Read FEMNIST in LEAF's format (Caldas et al. 2018) as images uint8 (N, 1, 28, 28).

    Each of the files train/*.json and test/*.json holds {"users": [name], "user_data": {name: {"x":
    images, "y": labels}}, ...}, where an image is a list of 784 numbers in 0..1. Groups are the
    users (writers), numbered in the order of their names. The characters are dark on light, unlike
    in EMNIST. Raises a SettingsError if a file has another form.
    """
    files = [file for part in ("train", "test") for file in sorted((root / part).glob("*.json"))]
    records = [(*record, file.parent.name == "test") for file in files for record in _writers(file)]
    if not records:
        raise SettingsError(f"{root}: its .json files have no samples")
    writers, images, labels, test = zip(*records, strict=True)
    sizes = list(map(len, labels))
    return make_dataset(
        str(root),
        torch.from_numpy(np.concatenate(images)).reshape(-1, 1, _SIDE, _SIDE),
        np.concatenate(labels),
        _CHARACTERS,
        groups=np.repeat(np.unique(writers, return_inverse=True)[1], sizes),
        test=np.repeat(test, sizes) if files[-1].parent.name == "test" else None,
    )


def _writers(file: Path) -> Iterator[tuple[str, npt.NDArray[np.uint8], npt.NDArray[Any]]]:
    """Yield (writer, uint8 images (n, 784), labels (n,)) of a file; skip writers without images."""
    try:
        stored = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: not readable as JSON ({error})") from error
    if not isinstance(stored, dict) or not isinstance(stored.get("users"), list):
        form = "{users: [...], user_data: {...}}"
        raise SettingsError(f"{file}: is not in LEAF's format, {form}")
    for writer in stored["users"]:
        try:
            user_data = stored["user_data"][writer]
            images, labels = np.array(user_data["x"], np.float64), np.array(user_data["y"])
            if images.size == labels.size == 0:
                continue
            # A NaN is neither >= 0 nor <= 1, so it is refused.
            if not (images.shape == (len(labels), _SIDE**2) and (images >= 0).all()):
                raise ValueError
            if not ((images <= 1).all() and labels.ndim == 1 and labels.dtype.kind in "iu"):
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SettingsError(
                f"{file}: user_data of {writer!r} must have x, lists of {_SIDE**2} numbers in "
                "0..1, and y, one whole number for each list"
            ) from error
        yield str(writer), np.rint(255 * images).astype(np.uint8), labels
