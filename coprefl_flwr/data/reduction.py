"""Reducing a dataset while it is loaded: fewer samples of a class, smaller images."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr import seeds
from coprefl_flwr.data.images import ImageDataset, of_rows

_AT_ONCE = 1000  # Images are resized as float32, four times their bytes, so not all at once.


@dataclass(frozen=True)
class Reduction:
    """What is kept of a dataset of images; 0 keeps everything.

    Images become squares of `image_size` pixels a side. A class has at most `samples_per_class`
    samples, drawn by `seed`; a smaller one is kept whole.
    """

    image_size: int = 0
    samples_per_class: int = 0
    seed: int = 0

    def rows(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the kept positions of `labels` (N,), ascending; each class is drawn by itself."""
        if not self.samples_per_class:
            return np.arange(len(labels))
        by_class = np.argsort(labels, kind="stable")
        found, begins = np.unique(labels[by_class], return_index=True)
        kept = []
        for label, members in zip(found, np.split(by_class, begins[1:]), strict=True):
            rng = seeds.generator(self.seed, "samples-per-class", int(label))
            kept.append(rng.permutation(members)[: self.samples_per_class])
        return np.sort(np.concatenate(kept)).astype(np.int64)

    def resized(self, images: Tensor) -> Tensor:
        """Return uint8 (..., C, H, W) as uint8 (..., C, image_size, image_size).

        As torchvision's Resize (bilinear, antialiased, of the shorter side) and CenterCrop do.
        """
        size = self.image_size
        if not size or images.shape[-2:] == (size, size):
            return images
        # Importing torchvision costs seconds, and the glyphs do without.
        from torchvision.transforms import functional

        shorter = functional.resize(images, [size], antialias=True)
        resized: Tensor = functional.center_crop(shorter, [size, size])
        return resized

    def of(self, source: str, dataset: ImageDataset) -> ImageDataset:
        """Return the reduced dataset, normalised by its own mean and std."""
        if not (self.image_size or self.samples_per_class):
            return dataset
        rows = self.rows(dataset.labels)
        parts = [
            self.resized(dataset.images[torch.from_numpy(rows[first : first + _AT_ONCE])])
            for first in range(0, len(rows), _AT_ONCE)
        ]
        return ImageDataset.of(
            source,
            torch.cat(parts),
            dataset.labels[rows],
            dataset.classes,
            domain_names=dataset.domain_names,
            **of_rows(rows, groups=dataset.groups, test=dataset.test, domains=dataset.domains),
        )
