"""Make datasets of images smaller: fewer samples per class, and smaller images."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr import seeds
from coprefl_flwr.data.dataset import Dataset, ImageDataset, Rows, make_dataset
from coprefl_flwr.errors import SettingsError

_RESIZED_AT_ONCE = 1000
"""Number of images that are resized at a time. The resize computes in float32, which needs four
times the memory of uint8."""


@dataclass(frozen=True)
class Reduction:
    """Reduction of a dataset of images in image size and in number of samples.

    Images become squares with a side of `image_size` pixels; 0: the original size. At most
    `samples_per_class` samples of each class are kept, drawn by `seed`; 0: all samples. Classes
    with fewer samples are kept whole.
    """

    image_size: int = 0
    samples_per_class: int = 0
    seed: int = 0

    def rows(self, labels: npt.NDArray[Any]) -> Rows:
        """Return the indices of the drawn samples, ascending, given the labels (N,) of all samples.

        Each class is drawn independently of the others. Of targets without classes, all are drawn.
        """
        if not self.samples_per_class or labels.ndim > 1 or labels.dtype.kind == "f":
            return np.arange(len(labels))
        drawn = []
        for label in np.unique(labels):
            rng = seeds.generator(self.seed, "samples-per-class", int(label))
            drawn.append(rng.permutation(np.flatnonzero(labels == label))[: self.samples_per_class])
        return np.sort(np.concatenate(drawn)).astype(np.int64)

    def resized(self, images: Tensor) -> Tensor:
        """Resize images from uint8 (..., C, H, W) to uint8 (..., C, image_size, image_size).

        The shorter side is resized as by torchvision's Resize (bilinear, antialiased); then the
        middle is cropped as by CenterCrop.
        """
        size = self.image_size
        if not size or images.shape[-2:] == (size, size):
            return images
        # Imported here, because the import takes seconds and the glyphs do not need torchvision.
        from torchvision.transforms import functional

        shorter = functional.resize(images, [size], antialias=True)
        resized: Tensor = functional.center_crop(shorter, [size, size])
        return resized

    def of(self, source: str, dataset: Dataset) -> Dataset:
        """Return the reduced dataset, normalised by the mean and std of the remaining images.

        Raises a SettingsError if the dataset has no images. `source` is its name in the message.
        """
        if self == Reduction(seed=self.seed):
            return dataset
        if not isinstance(dataset, ImageDataset):
            raise SettingsError(f"{source}: image-size and samples-per-class need images")
        rows = self.rows(dataset.labels)
        if len(rows) == len(dataset.labels) and self.resized(dataset.images[:1]).shape[1:] == (
            dataset.shape
        ):
            return dataset
        images = torch.split(dataset.images[torch.from_numpy(rows)], _RESIZED_AT_ONCE)
        columns = {name: getattr(dataset, name) for name in ("groups", "test", "domains")}
        return make_dataset(
            source,
            torch.cat([self.resized(part) for part in images]),
            (dataset.labels if dataset.targets is None else dataset.targets.numpy())[rows],
            dataset.classes,
            domain_names=dataset.domain_names,
            **{name: column[rows] for name, column in columns.items() if column is not None},
        )
