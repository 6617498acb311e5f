"""FEMNIST as LEAF writes it (Caldas et al. 2018): handwritten characters, by writer."""

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.errors import SettingsError

# The numbering of LEAF and of EMNIST byclass.
_CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SIDE = 28


def is_leaf(root: Path) -> bool:
    """Tell whether a folder holds LEAF's JSON files."""
    return any((root / "train").glob("*.json"))


def load_leaf(root: Path) -> ImageDataset:
    """Read FEMNIST from train/*.json and test/*.json of a folder: uint8 (N, 1, 28, 28).

    A file holds {"users": [name], "user_data": {name: {"x": images, "y": labels}}, ...}, each image
    784 numbers in 0..1. Groups are the users, numbered in the order of their names. Unlike in
    EMNIST, the characters are dark on light. Raises a SettingsError for a file of another form.
    """
    found = [
        (*held, part == "test")
        for part in ("train", "test")
        for file in sorted((root / part).glob("*.json"))
        for held in _writers(file)
    ]
    if not found:
        raise SettingsError(f"{root}: its .json files hold no samples")
    writers, images, labels, test = zip(*found, strict=True)
    sizes = list(map(len, labels))
    return ImageDataset.of(
        str(root),
        torch.from_numpy(np.concatenate(images)).reshape(-1, 1, _SIDE, _SIDE),
        np.concatenate(labels),
        _CLASSES,
        groups=np.repeat(np.unique(writers, return_inverse=True)[1], sizes),
        test=np.repeat(test, sizes) if any((root / "test").glob("*.json")) else None,
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
        refused = SettingsError(
            f"{file}: user_data of {writer!r} must be x, lists of {_SIDE**2} numbers in 0..1, and "
            "as many whole numbers y"
        )
        try:
            data = stored["user_data"][writer]
            images = np.array(data["x"], dtype=np.float64)
            labels = np.array(data["y"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise refused from error
        if images.size == labels.size == 0:
            continue
        fits = labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)
        fits = fits and images.shape == (len(labels), _SIDE**2)
        # A NaN fails both comparisons, so it is refused too.
        if not fits or not ((images >= 0) & (images <= 1)).all():
            raise refused
        yield writer, np.rint(255 * images).astype(np.uint8), labels
