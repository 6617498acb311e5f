"""The interface of a dataset, and the samples of one that a client holds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.transfer import on_device


class Dataset(Protocol):
    """All N samples of a source; its parts, if any, in the order train, validation, test."""

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Labels (N,), in 0..len(classes)-1."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""

    @property
    def groups(self) -> npt.NDArray[np.int64] | None:
        """Number of the writer or speaker of each sample (N,); None if the source does not say."""

    @property
    def test(self) -> npt.NDArray[np.bool_] | None:
        """Whether each sample (N,) is in the source's own test part; None if it has none."""

    @property
    def domains(self) -> npt.NDArray[np.int64] | None:
        """Number in `domain_names` of each sample's domain (N,); None if the source has none."""

    @property
    def domain_names(self) -> tuple[str, ...]:
        """Names of the domains, such as photo and sketch; empty if the source has none."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: (C, H, W) of an image, (length,) of a text."""

    def inputs(self, rows: npt.NDArray[np.int64], device: torch.device) -> Tensor:
        """Return what a model is given for `rows` (b,), of shape (b, *shape), on `device`."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples of a dataset under a task's labels: what a client holds.

    No input is copied until a batch is asked for. `indices` (n,) are rows of the dataset and
    `labels` (n,) the labels of the task, both int64; the dataset's own labels are not used.
    """

    dataset: Dataset
    indices: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"<{len(self)} samples of {len(np.unique(self.labels))} classes>"

    def take(self, positions: npt.NDArray[np.int64]) -> "Samples":
        """Return the samples at `positions` (into these samples, not the dataset)."""
        return Samples(self.dataset, self.indices[positions], self.labels[positions])

    def batch(
        self, positions: npt.NDArray[np.int64] | slice, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return the dataset's inputs, and labels, int64 (b,), both on `device`."""
        inputs = self.dataset.inputs(self.indices[positions], device)
        labels = torch.tensor(self.labels[positions], dtype=torch.int64)
        return inputs, on_device(labels, device)

    def batches(self, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every sample once, in order, cut as `batch_slices` says."""
        for part in batch_slices(len(self), batch_size):
            yield self.batch(part, device)


def batch_slices(n: int, batch_size: int) -> list[slice]:
    """Cut 0..n-1 into batches; a last batch of one sample joins the one before it.

    BatchNorm cannot take a single sample in train mode.
    """
    if batch_size < 1:
        raise SettingsError(f"batch size {batch_size}: at least 1 is needed")
    starts = list(range(0, n, batch_size))
    if len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], n], strict=False)]
