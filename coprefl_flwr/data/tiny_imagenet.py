"""Tiny-ImageNet (Le and Yang 2015), as its archive unpacks."""

from pathlib import Path

import numpy as np

from coprefl_flwr.data.image_files import read_images
from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.reduction import Reduction
from coprefl_flwr.errors import SettingsError

_CLASSES, _NAMES, _ANNOTATIONS = "wnids.txt", "words.txt", "val/val_annotations.txt"


def is_tiny_imagenet(root: Path) -> bool:
    """Tell whether a folder is laid out as Tiny-ImageNet."""
    return (root / _CLASSES).is_file() and (root / _ANNOTATIONS).is_file()


def load_tiny_imagenet(root: Path, reduction: Reduction) -> ImageDataset:
    """Read train/WNID/images/* and val/images/*, the classes in the order of their WordNet ids.

    The validation images, 50 a class beside 500, are the test part; Tiny-ImageNet's own test images
    have no labels and are left out. The classes' names are those of words.txt.

    Raises a SettingsError if a list or an image cannot be read, or a file has an unlisted class.
    """
    wnids = sorted(_lines(root / _CLASSES))
    files, labels, test = [], [], []
    for label, wnid in enumerate(wnids):
        found = sorted((root / "train" / wnid / "images").glob("*.JPEG"))
        files += found
        labels += [label] * len(found)
        test += [False] * len(found)
    for line in _lines(root / _ANNOTATIONS):
        file, wnid = (*line.split("\t"), "")[:2]
        if wnid not in wnids:
            raise SettingsError(f"{root / _ANNOTATIONS}: '{line}' names no class of {_CLASSES}")
        files.append(root / "val" / "images" / file)
        labels.append(wnids.index(wnid))
        test.append(True)
    if not files:
        raise SettingsError(f"{root}: no images found; the layout is train/WNID/images/file.JPEG")
    rows = reduction.rows(np.array(labels))
    return ImageDataset.of(
        str(root),
        read_images([files[row] for row in rows], reduction),
        np.array(labels)[rows],
        _class_names(root, wnids),
        test=np.array(test)[rows],
    )


def _class_names(root: Path, wnids: list[str]) -> list[str]:
    """Return what words.txt calls each class, such as "goldfish, Carassius auratus"."""
    if not (root / _NAMES).is_file():
        return wnids
    words = dict(line.split("\t", 1) for line in _lines(root / _NAMES) if "\t" in line)
    return [words.get(wnid, wnid) for wnid in wnids]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: not readable as text ({error})") from error
