"""Images of one size, held as bytes and normalised batch by batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.errors import SettingsError


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A `Dataset` of images.

    Attributes
    ----------
    images : uint8 (N, C, H, W)
    labels : int64 (N,), in 0..len(classes)-1
    classes : names of the classes
    mean, std : float32 (C,), of images / 255 over the whole dataset
    groups : int64 (N,), whom each image is from, or None
    test : bool (N,), the source's own test part, or None
    """

    images: Tensor
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    mean: Tensor
    std: Tensor
    groups: npt.NDArray[np.int64] | None = None
    test: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls,
        source: str,
        images: Tensor,
        labels: npt.NDArray[Any],
        classes: Sequence[str] | None,
        *,
        groups: npt.NDArray[Any] | None = None,
        test: npt.NDArray[np.bool_] | None = None,
    ) -> "ImageDataset":
        """Check the parts and measure mean and std; `classes` None means "0", "1", ...

        Raises SettingsError, which begins with `source`, where images are not uint8 (N, C, H, W),
        labels not N integers in 0..len(classes)-1, or groups not N integers.
        """
        if images.dtype != torch.uint8 or images.ndim != 4 or not 0 < images.shape[1] <= 4:
            raise SettingsError(
                f"{source}: images are {str(images.dtype).removeprefix('torch.')} of shape "
                f"(N, C, H, W) = {tuple(images.shape)}; allowed are uint8 with 1 to 4 channels"
            )
        _check_column(source, "labels", labels, len(images))
        if groups is not None:
            _check_column(source, "groups", groups, len(images))
        if not images.numel():
            raise SettingsError(f"{source}: there are no images")
        lowest, highest = int(labels.min()), int(labels.max())
        names = tuple(map(str, range(highest + 1) if classes is None else classes))
        if lowest < 0 or highest >= len(names):
            raise SettingsError(
                f"{source}: labels run from {lowest} to {highest}; with {len(names)} classes "
                f"they must lie in 0..{len(names) - 1}"
            )
        return cls(
            images.contiguous(),
            labels.astype(np.int64),
            names,
            *_moments(images),
            groups=None if groups is None else groups.astype(np.int64),
            test=test,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image, (C, H, W)."""
        return tuple(self.images.shape[1:])

    def inputs(self, rows: npt.NDArray[np.int64], device: torch.device) -> Tensor:
        """Return the images of `rows`, float32 (b, C, H, W), normalised on `device`.

        They lie channels last in memory, which convolutions take faster (1.3 times on a CPU).
        """
        images = self.images[torch.from_numpy(rows)].to(device)
        mean = self.mean.to(device)[:, None, None]
        std = self.std.to(device)[:, None, None]
        images = images.float().contiguous(memory_format=torch.channels_last)
        return images.div_(255).sub_(mean).div_(std)


def _check_column(source: str, name: str, column: npt.NDArray[Any], n: int) -> None:
    if column.shape != (n,) or not np.issubdtype(column.dtype, np.integer):
        raise SettingsError(
            f"{source}: {name} are {column.dtype} of shape {column.shape}; "
            f"{n} integers are needed, one per image"
        )


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std of images / 255 per channel, exact, without a float copy of the images."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(dim=1):
        counts = torch.bincount(channel.reshape(-1), minlength=256).double()
        mean = (counts @ values) / counts.sum()
        variance = (counts @ (values - mean) ** 2) / counts.sum()
        means.append(mean)
        # A channel that never varies must not be divided by zero.
        stds.append(variance.sqrt() if variance > 0 else torch.ones_like(variance))
    return torch.stack(means).float(), torch.stack(stds).float()
