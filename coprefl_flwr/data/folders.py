"""Folders of images: one per class, one per domain that has those, or Tiny-ImageNet's."""

from pathlib import Path

import numpy as np

from coprefl_flwr.data.image_files import read_dataset
from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.reduction import Reduction
from coprefl_flwr.errors import SettingsError

_LAYOUT = "class/file"
# The lists of Tiny-ImageNet (Le and Yang 2015), as its archive unpacks.
_CLASSES, _NAMES, _ANNOTATIONS = "wnids.txt", "words.txt", "val/val_annotations.txt"


def load_folder(root: Path, reduction: Reduction) -> ImageDataset:
    """Read a folder of images, laid out as `load_dataset` says."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    parts = _parts(root)
    domains = _domains(root) if parts == [root] else []
    parts = domains or parts
    # From all parts, so that labels do not shift where one part lacks a class.
    classes = sorted({folder.name for part in parts for folder in _folders(part)})
    numbers = {name: label for label, name in enumerate(classes)}
    if not classes:
        raise SettingsError(f"{root}: no images found; the layout is {_LAYOUT}")
    found = [make_dataset(str(part), numbers, IMG_EXTENSIONS, allow_empty=True) for part in parts]
    part_of = np.repeat(np.arange(len(parts)), [len(part) for part in found])
    # A domain, like a class, may be called "test".
    is_test = np.array([part == root / "test" and not domains for part in parts])
    return read_dataset(
        root,
        _LAYOUT,
        [Path(file) for part in found for file, _ in part],
        [label for part in found for _, label in part],
        classes,
        reduction,
        test=is_test[part_of] if is_test.any() else None,
        domains=part_of if domains else None,
        domain_names=[domain.name for domain in domains],
    )


def _domains(root: Path) -> list[Path]:
    """Return the folders of the domains, or none if the folder is not laid out by domains.

    Domains hold no images directly, and at least two folders (classes) are found in all of them.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    folders = _folders(root)
    inside = (file for folder in folders for file in folder.iterdir())
    if len(folders) < 2 or any(file.suffix.lower() in IMG_EXTENSIONS for file in inside):
        return []
    shared = set.intersection(*({inner.name for inner in _folders(part)} for part in folders))
    return folders if len(shared) > 1 else []


def _parts(root: Path) -> list[Path]:
    """Return train/, val/ and test/ if the folder is divided into these, else the folder itself."""
    train = root / "train"
    others = [root / name for name in ("val", "test") if (root / name).is_dir()]
    # A class may be called "train" too, but it has no folders in it.
    return [train, *others] if train.is_dir() and _folders(train) else [root]


def _folders(parent: Path) -> list[Path]:
    return [p for p in sorted(parent.iterdir()) if p.is_dir() and not p.name.startswith(".")]


def is_tiny_imagenet(root: Path) -> bool:
    """Tell whether a folder is laid out as Tiny-ImageNet."""
    return (root / _CLASSES).is_file() and (root / _ANNOTATIONS).is_file()


def load_tiny_imagenet(root: Path, reduction: Reduction) -> ImageDataset:
    """Read train/WNID/images/* and val/images/*, the classes in the order of their WordNet ids.

    The validation images, 50 a class beside 500, are the test part; Tiny-ImageNet's own test images
    have no labels and are left out. The classes' names are those of words.txt. Raises a
    SettingsError if a list or an image cannot be read, or a file has an unlisted class.
    """
    wnids = sorted(_lines(root / _CLASSES))
    files, labels = [], []
    for label, wnid in enumerate(wnids):
        found = sorted((root / "train" / wnid / "images").glob("*.JPEG"))
        files += found
        labels += [label] * len(found)
    trained_on = len(files)
    for line in _lines(root / _ANNOTATIONS):
        file, wnid = (*line.split("\t"), "")[:2]
        if wnid not in wnids:
            raise SettingsError(f"{root / _ANNOTATIONS}: '{line}' names no class of {_CLASSES}")
        files.append(root / "val" / "images" / file)
        labels.append(wnids.index(wnid))
    test = np.arange(len(files)) >= trained_on
    names, layout = _class_names(root, wnids), "train/WNID/images/file.JPEG"
    return read_dataset(root, layout, files, labels, names, reduction, test=test)


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
