"""Image files, read into one dataset."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.data.images import ImageDataset, of_rows
from coprefl_flwr.data.reduction import Reduction
from coprefl_flwr.errors import SettingsError


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


def _common_format(files: Sequence[Path], *, any_size: bool) -> tuple[tuple[int, int], bool]:
    """Return (width, height) of the first file, and whether all are grey."""
    from PIL import Image

    sizes: list[tuple[int, int]] = []
    grey = True
    for file in files:
        try:
            with Image.open(file) as image:
                size, mode = image.size, image.mode
        except OSError as error:
            raise SettingsError(f"{file}: not a readable image ({error})") from error
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
    from PIL import Image

    try:
        with Image.open(file) as image:
            pixels = np.array(image.convert("L" if grey else "RGB"))
    except OSError as error:
        raise SettingsError(f"{file}: not a readable image ({error})") from error
    channels_last = torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1))
    return reduction.resized(channels_last.permute(2, 0, 1))
