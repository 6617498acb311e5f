"""Images in a folder per class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.errors import SettingsError


def load_folder(root: Path) -> ImageDataset:
    """Read a folder of images laid out as `load_dataset` says.

    SettingsError where it holds no images, or images that differ in size or cannot be read.
    """
    parts = _parts(root)
    # Over all parts, so that a class missing from one of them shifts no label.
    classes = sorted({folder.name for part in parts for folder in _folders(part)})
    found = [_files(part, classes) for part in parts]
    files = [Path(file) for part in found for file, _ in part]
    labels = np.array([label for part in found for _, label in part], dtype=np.int64)
    if not files:
        raise SettingsError(f"{root}: no images found; the layout is class/file")
    size, grey = _common_format(files)
    pixels = np.empty((len(files), size[1], size[0], 1 if grey else 3), dtype=np.uint8)
    for row, file in enumerate(files):
        pixels[row] = _read_image(file, grey).reshape(pixels.shape[1:])
    is_test = [part == root / "test" for part in parts]
    return ImageDataset.of(
        str(root),
        torch.from_numpy(pixels).permute(0, 3, 1, 2),
        labels,
        classes,
        test=np.repeat(is_test, [len(part) for part in found]) if any(is_test) else None,
    )


def _parts(root: Path) -> list[Path]:
    """Return train/ and test/ or val/ of a divided folder, else the folder itself."""
    train = root / "train"
    others = [root / name for name in ("val", "test") if (root / name).is_dir()]
    # A class may be called "train": a part is told by the folders in it.
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


def _common_format(files: Sequence[Path]) -> tuple[tuple[int, int], bool]:
    """Return the (width, height) that all files share, and whether all are grey."""
    from PIL import Image

    first: tuple[int, int] | None = None
    grey = True
    for file in files:
        try:
            with Image.open(file) as image:
                size, mode = image.size, image.mode
        except OSError as error:
            raise SettingsError(f"{file}: not a readable image ({error})") from error
        if mode.startswith(("I", "F")):
            raise SettingsError(f"{file}: has pixels of mode {mode}; allowed are 8-bit images")
        first = first or size
        if size != first:
            raise SettingsError(
                f"{file}: is {size[0]}x{size[1]} but {files[0]} is {first[0]}x{first[1]}; "
                "all images must have one size"
            )
        grey = grey and mode in ("1", "L", "LA")
    assert first is not None  # the caller has at least one file
    return first, grey


def _read_image(file: Path, grey: bool) -> npt.NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(file) as image:
            return np.asarray(image.convert("L" if grey else "RGB"))
    except OSError as error:
        raise SettingsError(f"{file}: not a readable image ({error})") from error
