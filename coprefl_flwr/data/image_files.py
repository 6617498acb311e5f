"""Image files, read into one dataset."""

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.data.images import ImageDataset, of_rows
from coprefl_flwr.data.reduction import Reduction
from coprefl_flwr.errors import SettingsError, one_line

if TYPE_CHECKING:
    import PIL.Image


FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What a file is read as, whatever its name ends with: for EPS, Pillow would run Ghostscript."""


def read_dataset(
    root: Path,
    layout: str,
    files: Sequence[Path],
    labels: Sequence[int],
    classes: Sequence[str],
    reduction: Reduction,
    domain_names: Sequence[str] | None = None,
    **columns: npt.NDArray[Any] | None,
) -> ImageDataset:
    """Return the images of a folder's files that the reduction keeps; no others are decoded.

    Labels and `columns`, as `ImageDataset.of` takes them, have a value for each file. Raises a
    SettingsError if there are none, one cannot be read, or they differ in size and are not resized.
    """
    if not files:
        raise SettingsError(f"{root}: no images found; the layout is {layout}")
    numbers = np.array(labels, dtype=np.int64)
    rows = reduction.rows(numbers)
    return ImageDataset.of(
        str(root),
        _read_images([files[row] for row in rows], reduction),
        numbers[rows],
        classes,
        domain_names=domain_names,
        **of_rows(rows, **columns),
    )


def _read_images(files: Sequence[Path], reduction: Reduction) -> Tensor:
    """Return uint8 (len(files), C, H, W), in colour unless every image is grey.

    Each is resized as soon as it is read, as ImageNet in full size would not fit into memory.
    """
    (width, height), grey = _common_format(files, any_size=reduction.image_size > 0)
    side = reduction.image_size
    shape = (1 if grey else 3, side or height, side or width)
    images = torch.empty((len(files), *shape), dtype=torch.uint8)
    with ThreadPoolExecutor() as pool:
        read = partial(_read_image, grey=grey, reduction=reduction)
        for row, image in enumerate(pool.map(read, files)):
            images[row] = image
    return images


@contextmanager
def without_ghostscript() -> Iterator[None]:
    """Have Pillow refuse EPS where another library opens images by it, whatever they are called."""
    from PIL import EpsImagePlugin

    before = EpsImagePlugin.gs_binary
    EpsImagePlugin.gs_binary = False
    try:
        yield
    finally:
        EpsImagePlugin.gs_binary = before


@contextmanager
def _opened(file: Path) -> Iterator["PIL.Image.Image"]:
    """Open an image; a SettingsError for whatever Pillow raises while it is read."""
    from PIL import Image

    try:
        with Image.open(file, formats=FORMATS) as image:
            yield image
    except Exception as error:
        why = f"{one_line(error)}; allowed are {', '.join(FORMATS)}"
        raise SettingsError(f"{file}: not a readable image ({why})") from error


def _common_format(files: Sequence[Path], *, any_size: bool) -> tuple[tuple[int, int], bool]:
    """Return (width, height) of the first file, and whether all are grey."""
    from PIL import Image

    sizes: list[tuple[int, int]] = []
    grey = True
    for file in files:
        with warnings.catch_warnings():
            # Of twice as many pixels it raises by itself.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with _opened(file) as image:
                size, mode = image.size, image.mode
        if mode.startswith(("I", "F")):
            raise SettingsError(f"{file}: has pixels of mode {mode}; allowed are 8-bit images")
        sizes.append(size)
        if size != sizes[0] and not any_size:
            raise SettingsError(
                f"{file}: is {size[0]}x{size[1]} but {files[0]} is {sizes[0][0]}x{sizes[0][1]}; "
                "all images must have one size: set image-size"
            )
        grey = grey and mode in ("1", "L", "LA")
    return sizes[0], grey


def _read_image(file: Path, grey: bool, reduction: Reduction) -> Tensor:
    """Return uint8 (C, H, W)."""
    with _opened(file) as image:
        pixels = np.array(image.convert("L" if grey else "RGB"))
    channels_last = torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1))
    return reduction.resized(channels_last.permute(2, 0, 1))
