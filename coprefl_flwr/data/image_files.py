"""Image files, read into one array."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coprefl_flwr.data.reduction import Reduction
from coprefl_flwr.errors import SettingsError


def read_images(files: Sequence[Path], reduction: Reduction) -> Tensor:
    """Return uint8 (len(files), C, H, W), in colour unless every image is grey.

    Each is resized as soon as it is read, as ImageNet in full size would not fit into memory.

    Raises
    ------
    SettingsError
        If a file cannot be read, or the sizes differ and no `image_size` is set.
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
        if size != first and not any_size:
            raise SettingsError(
                f"{file}: is {size[0]}x{size[1]} but {files[0]} is {first[0]}x{first[1]}; "
                "all images must have one size: set image-size"
            )
        grey = grey and mode in ("1", "L", "LA")
    assert first is not None  # the caller has at least one file
    return first, grey


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
