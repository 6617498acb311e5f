"""Images in one folder per class, or in one per domain that has a folder per class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coprefl_flwr.data.image_files import read_images
from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.reduction import Reduction
from coprefl_flwr.errors import SettingsError


def load_folder(root: Path, reduction: Reduction) -> ImageDataset:
    """Read a folder of images, laid out as `load_dataset` says; only kept images are decoded.

    Raises
    ------
    SettingsError
        If there are no images, one cannot be read, or they differ in size and are not resized.
    """
    parts = _parts(root)
    domains = _domains(root) if parts == [root] else []
    parts = domains or parts
    # From all parts, so that labels do not shift where one part lacks a class.
    classes = sorted({folder.name for part in parts for folder in _folders(part)})
    found = [_files(part, classes) for part in parts]
    files = [Path(file) for part in found for file, _ in part]
    labels = np.array([label for part in found for _, label in part], dtype=np.int64)
    if not files:
        raise SettingsError(f"{root}: no images found; the layout is class/file")
    part_of = np.repeat(np.arange(len(parts)), [len(part) for part in found])
    # A domain, like a class, may be called "test".
    is_test = np.array([part == root / "test" and not domains for part in parts])
    rows = reduction.rows(labels)
    return ImageDataset.of(
        str(root),
        read_images([files[row] for row in rows], reduction),
        labels[rows],
        classes,
        test=is_test[part_of[rows]] if is_test.any() else None,
        domains=part_of[rows] if domains else None,
        domain_names=[domain.name for domain in domains],
    )


def _domains(root: Path) -> list[Path]:
    """Return the folders of the domains, or none if the folder is not laid out by domains.

    Domains hold no images directly, and at least two folders (classes) are found in all of them.
    """
    folders = _folders(root)
    if len(folders) < 2 or any(map(_holds_images, folders)):
        return []
    shared = set.intersection(*({inner.name for inner in _folders(part)} for part in folders))
    return folders if len(shared) > 1 else []


def _holds_images(folder: Path) -> bool:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    return any(file.suffix.lower() in IMG_EXTENSIONS for file in folder.iterdir())


def _parts(root: Path) -> list[Path]:
    """Return train/, val/ and test/ if the folder is divided into these, else the folder itself."""
    train = root / "train"
    others = [root / name for name in ("val", "test") if (root / name).is_dir()]
    # A class may be called "train" too, but it has no folders in it.
    if train.is_dir() and _folders(train):
        return [train, *others]
    return [root]


def _folders(parent: Path) -> list[Path]:
    return [p for p in sorted(parent.iterdir()) if p.is_dir() and not p.name.startswith(".")]


def _files(part: Path, classes: Sequence[str]) -> list[tuple[str, int]]:
    """Return the image files of a part, each with its label."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    index = {name: label for label, name in enumerate(classes)}
    files: list[tuple[str, int]] = make_dataset(str(part), index, IMG_EXTENSIONS, allow_empty=True)
    return files
