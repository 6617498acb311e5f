"""Read .npz files: images with labels and other columns, or windows of a text."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coprefl_flwr.data.dataset import Dataset, make_dataset, renumbered
from coprefl_flwr.data.text import CHARACTERS, TextDataset
from coprefl_flwr.errors import SettingsError, prefixed, unknown

_Arrays = dict[str, npt.NDArray[Any]]
_PARTS = ("train_", "val_", "test_")


def read_npz(path: Path, labels: str = "labels", relabel: bool = False) -> Dataset:
    """Read an .npz file of the form that `load_dataset` describes.

    `labels` is the name of the array with the labels. `relabel` is as in `as_dataset`. Raises a
    SettingsError if the file has another form, or if it has no such labels.
    """
    problem = prefixed(f"{path}: not a readable .npz of plain arrays", of=Exception)
    with problem, np.load(path, allow_pickle=False) as stored:
        arrays = dict(stored)
    if {"text", "starts"} <= arrays.keys():
        columns = {name: arrays[name] for name in ("text", "starts", "labels", "groups", "test")}
        return TextDataset(**columns, length=int(arrays["length"]), classes=CHARACTERS)
    parts = _parts(path, arrays)
    images = [arrays[f"{part}images"] for part in parts]
    fits = all(array.dtype == np.uint8 and array.ndim in (3, 4) for array in images)
    if not fits or len({array.shape[1:] for array in images}) > 1:
        kinds = " and ".join(f"{array.dtype} {array.shape}" for array in images)
        raise SettingsError(f"{path}: images are {kinds}, not uint8 (N, H, W) or (N, H, W, C)")
    columns = _columns(arrays, parts)
    if labels not in columns or labels == "images":
        known = ["labels", *sorted(columns.keys() - {"images", "labels"})]
        raise SettingsError(f"{path}: {unknown('labels', labels, known)}")
    of_labels = "classes" if labels == "labels" else f"{labels}_classes"
    names = {
        key: list(map(str, arrays[key])) for key in (of_labels, "domain_names") if key in arrays
    }
    pixels, is_test = np.concatenate(images), [part == "test_" for part in parts]
    pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)
    dataset = make_dataset(
        str(path),
        torch.from_numpy(np.ascontiguousarray(pixels)),
        columns[labels],
        names.get(of_labels),
        groups=columns.get("groups"),
        test=np.repeat(is_test, list(map(len, images))) if any(is_test) else None,
        domains=columns.get("domains"),
        domain_names=names.get("domain_names"),
    )
    return renumbered(dataset) if relabel else dataset


def _parts(path: Path, arrays: _Arrays) -> tuple[str, ...]:
    """Return the splits' key prefixes, such as "train_"; SettingsError if a key is missing."""
    for parts in (("",), _PARTS, ("train_", "test_")):
        if {f"{part}{name}" for part in parts for name in ("images", "labels")} <= arrays.keys():
            return parts
    keys = ", ".join(sorted(arrays)) or "(none)"
    raise SettingsError(f"{path}: has the keys {keys}; needed are images and labels")


def _columns(arrays: _Arrays, parts: tuple[str, ...]) -> _Arrays:
    """Return {name: concatenated splits} of the labels and other numbers per image."""
    columns = _Arrays()
    for name in {key.removeprefix(parts[0]) for key in arrays} - {"images"}:
        keys = [f"{part}{name}" for part in parts]
        pieces = [np.atleast_1d(arrays[key]) for key in keys if key in arrays]
        numbers = all(np.issubdtype(piece.dtype, np.number) for piece in pieces)
        if len(pieces) == len(parts) and (numbers or name in ("labels", "groups", "domains")):
            columns[name] = np.concatenate(pieces)
    return columns
