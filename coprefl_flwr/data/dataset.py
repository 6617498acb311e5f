"""Datasets in memory, checked by `make_dataset` whatever they come from, and samples of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from coprefl_flwr.errors import SettingsError, short
from coprefl_flwr.transfer import on_device

Rows = npt.NDArray[np.int64]
"""Positions of samples."""
AnyDataset = TypeVar("AnyDataset", bound="Dataset")

_MOST_EMPTY = 10_000  # Labels with larger gaps are ids, of which there would be too many names.


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(ABC):
    """All N samples of a source; its parts, if any, in the order train, validation, test.

    Attributes
    ----------
    labels : int64 (N,), in 0..len(classes)-1
    classes : names of the classes
    groups : int64 (N,), number of the writer or speaker; None if the source does not name them
    test : bool (N,), whether a sample is in the source's own test part; None if it has none
    domains : int64 (N,), positions in `domain_names`; None if the source has no domains
    domain_names : names such as photo and sketch
    """

    labels: Rows
    classes: tuple[str, ...]
    groups: Rows | None = None
    test: npt.NDArray[np.bool_] | None = None
    domains: Rows | None = None
    domain_names: tuple[str, ...] = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: (C, H, W) of an image, (length,) of a text."""

    @abstractmethod
    def inputs(self, rows: Rows, device: torch.device) -> Tensor:
        """Return the input of a model for `rows` (b,), of shape (b, *shape), on `device`."""


@dataclass(frozen=True, eq=False)
class TensorDataset(Dataset):
    """Values (N, *shape) of any dtype that a model takes as they are, in memory or a mapped file.

    Images of bytes are an `ImageDataset`, which normalises them.
    """

    values: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return tuple(self.values.shape[1:])

    def inputs(self, rows: Rows, device: torch.device) -> Tensor:
        """Return the values of `rows` (b, *shape) on `device`."""
        return on_device(_rows_of(self.values, torch.from_numpy(rows)), device)


@dataclass(frozen=True, eq=False)
class ImageDataset(Dataset):
    """Images of one size, uint8 (N, C, H, W), normalised when a batch of them is asked for.

    `mean` and `std` are float32 (C,), by which images / 255 are normalised.
    """

    images: Tensor
    mean: Tensor
    std: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image, (C, H, W)."""
        return tuple(self.images.shape[1:])

    def in_colour(self) -> "ImageDataset":
        """Return the dataset with its images, if grey, as three equal channels, without a copy."""
        if self.shape[0] != 1:
            return self
        channels = self.images.expand(-1, 3, -1, -1)
        return replace(self, images=channels, mean=self.mean.expand(3), std=self.std.expand(3))

    def normalised_on(self, rows: Rows) -> "ImageDataset":
        """Return the dataset normalised by the mean and std of `rows` alone."""
        mean, std = _moments(self.images[torch.from_numpy(rows)])
        return replace(self, mean=mean, std=std)

    def normalised_as(self, other: "ImageDataset") -> "ImageDataset":
        """Return the dataset normalised by the mean and std of `other` (same channels)."""
        return replace(self, mean=other.mean, std=other.std)

    def without_normalisation(self) -> "ImageDataset":
        """Return the dataset with pixels from 0 to 1, as torchvision's ToTensor gives them."""
        return replace(self, mean=torch.zeros_like(self.mean), std=torch.ones_like(self.std))

    def inputs(self, rows: Rows, device: torch.device) -> Tensor:
        """Return the images of `rows`, float32 (b, C, H, W), normalised on `device`.

        Their memory is channels last, which makes convolutions faster (1.3 times on a CPU).
        """
        stored = on_same_device(self.images, device)
        where = on_device(torch.from_numpy(rows), stored.device)
        images = on_device(_rows_of(stored, where), device)
        mean, std = (
            on_same_device(values, device)[:, None, None] for values in (self.mean, self.std)
        )
        images = images.float().contiguous(memory_format=torch.channels_last)
        return images.div_(255).sub_(mean).div_(std)


def _rows_of(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of a tensor; `index_select` takes half the time of `tensor[rows]`.

    Only of contiguous tensors do both give the same layout in memory.
    """
    return tensor.index_select(0, rows) if tensor.is_contiguous() else tensor[rows]


def make_dataset(
    source: str,
    inputs: Tensor,
    labels: npt.NDArray[Any],
    classes: Sequence[str] | None = None,
    *,
    groups: npt.NDArray[Any] | None = None,
    test: npt.NDArray[np.bool_] | None = None,
    domains: npt.NDArray[Any] | None = None,
    domain_names: Sequence[str] | None = None,
    relabel: bool = False,
    may_lack: str = "named",
) -> ImageDataset | TensorDataset:
    """Check the parts of a dataset, and return it.

    Raises a SettingsError that begins with `source` for parts of another dtype or shape, numbers
    outside of their names, and labels with gaps.

    Parameters
    ----------
    inputs : uint8 (N, C, H, W), which are images and normalised by their mean and std by channel,
        or values (N, *shape) of any other dtype or shape
    labels, groups, domains : integers (N,) or (N, 1)
    classes, domain_names : names, of which labels and domains are positions; None: "0", "1", ...
    test : whether each input is in the source's own test part
    relabel : number the classes that have inputs 0, 1, 2, ... in their order, with their names
    may_lack : which classes may have no input: "named" ones, which a source knows and lacks, as a
        file of one writer, "any" or "none"
    """
    if not inputs.numel():
        raise SettingsError(f"{source}: there are no images or other inputs")
    are_images = inputs.dtype == torch.uint8 and inputs.ndim == 4
    if are_images and inputs.shape[1] > 4:
        shape = tuple(inputs.shape)
        raise SettingsError(f"{source}: images (N, C, H, W) = {shape} must have 1 to 4 channels")
    numbers = _integers(source, "labels", labels, len(inputs))
    if relabel:
        numbers, classes = _renumber(source, numbers, classes)
    names = _names(source, "labels", "classes", numbers, classes)
    if may_lack == "none" or (may_lack == "named" and classes is None):
        _check_gaps(source, numbers, len(names))
    columns: dict[str, Any] = {"labels": numbers, "classes": names, "test": test}
    if groups is not None:
        columns["groups"] = _integers(source, "groups", groups, len(inputs))
    if domains is not None:
        columns["domains"] = positions = _integers(source, "domains", domains, len(inputs))
        columns["domain_names"] = _names(source, "domains", "domain names", positions, domain_names)
    if are_images:
        mean, std = _moments(inputs)
        return ImageDataset(inputs.contiguous(), mean, std, **columns)
    return TensorDataset(inputs, **columns)


def _integers(source: str, name: str, column: npt.NDArray[Any], n: int) -> Rows:
    """Return a column of n integers as int64 (n,)."""
    if column.shape not in ((n,), (n, 1)) or not np.issubdtype(column.dtype, np.integer):
        raise SettingsError(
            f"{source}: {name} are {column.dtype} of shape {column.shape}; {n} integers are "
            "needed, one per input"
        )
    return column.reshape(n).astype(np.int64)


def renumbered(source: str, dataset: AnyDataset) -> AnyDataset:
    """Return a dataset with the classes that have samples, numbered 0, 1, 2, ..."""
    numbers, names = _renumber(source, dataset.labels, dataset.classes)
    return replace(dataset, labels=numbers, classes=tuple(names))


def _renumber(source: str, labels: Rows, names: Sequence[str] | None) -> tuple[Rows, list[str]]:
    """Return labels as 0, 1, 2, ... in their order, and the names of the classes they have.

    Without names a class is called by the number that it had.
    """
    if names is not None:
        _names(source, "labels", "classes", labels, names)
    seen, positions = np.unique(labels, return_inverse=True)
    remaining = [str(number) if names is None else names[number] for number in seen.tolist()]
    return positions.reshape(labels.shape).astype(np.int64), remaining


def _names(
    source: str, what: str, named: str, numbers: Rows, names: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the names, by default the numbers; all numbers must be positions in them."""
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest < 0 or (names is not None and highest >= len(names)):
        allowed = "they must be 0 or more"
        if names is not None:
            allowed = f"with {len(names)} {named} they must be in 0..{len(names) - 1}"
        raise SettingsError(f"{source}: {what} run from {lowest} to {highest}; {allowed}")
    if names is None and highest >= len(numbers) + _MOST_EMPTY:
        _check_gaps(source, numbers, highest + 1)
    return tuple(map(str, range(highest + 1) if names is None else names))


def check_numbers(source: str, dataset: Dataset) -> None:
    """Raise a SettingsError if a class that has a number for a name has no sample.

    Other names say which classes a source knows, also those that it lacks, as a file of one writer.
    """
    if dataset.classes == tuple(map(str, range(len(dataset.classes)))):
        _check_gaps(source, dataset.labels, len(dataset.classes))


def _check_gaps(source: str, labels: Rows, classes: int) -> None:
    """Raise a SettingsError, one line with what to do, if a class of 0..classes-1 has no label."""
    seen = np.unique(labels)
    empty = np.setdiff1d(np.arange(min(classes, seen[-1] + 1, len(labels) + 1)), seen).tolist()
    empty = empty or list(range(int(seen[-1]) + 1, classes))
    if empty:
        missing, known = (short(str(numbers)[1:-1]) for numbers in (empty[:20], seen[:20].tolist()))
        raise SettingsError(
            f"{source}: no sample is of class {missing}; labels must be 0, 1, 2, ... without gaps, "
            f"and are {known} ({len(seen)} of them): relabel = true (in Python relabel=True) "
            "numbers them so"
        )


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and std of images / 255 by channel, exact, without a float copy of them."""
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


# ---- the samples of a client ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples of a dataset under a task's labels: what a client holds.

    No input is copied until a batch is asked for. `indices` (n,) are rows of the dataset and
    `labels` (n,) the labels of the task, both int64; the dataset's own labels are not used.
    """

    dataset: Dataset
    indices: Rows
    labels: Rows

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"<{len(self)} samples of {len(np.unique(self.labels))} classes>"

    def take(self, positions: Rows) -> "Samples":
        """Return the samples at `positions` (into these samples, not the dataset)."""
        return Samples(self.dataset, self.indices[positions], self.labels[positions])

    def batch(self, positions: Rows | slice, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the dataset's inputs, and labels, int64 (b,), both on `device`."""
        inputs = self.dataset.inputs(self.indices[positions], device)
        # Where positions are an array, NumPy has made a copy.
        labels = self.labels[positions].astype(np.int64, copy=isinstance(positions, slice))
        return inputs, on_device(torch.from_numpy(labels), device)

    def batches(self, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all samples once, in order, in the batches of `batch_slices`."""
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


# ---- a dataset on the GPU ------------------------------------------------------------------------

GPU_SHARE = 0.25
"""Part of a GPU's free memory that a tensor may fill, as models and batches need the rest."""

_copies: MutableMapping[Tensor, dict[torch.device, Tensor | None]] = WeakTensorKeyDictionary()
"""By tensor, {device: its copy there, None where it does not fit}, as long as the tensor lives."""


def on_same_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`, or the tensor itself if the device lacks the memory.

    The copy is made once per process, so the caller must not change the tensor afterwards. Batches
    are then indexed on the device, and only row indices are copied to it. Tested on
    a simulated accelerator, not yet on a GPU.
    """
    if device.type == tensor.device.type:
        return tensor
    copies = _copies.setdefault(tensor, {})
    if device not in copies:
        fits = tensor.nbytes <= GPU_SHARE * _free_bytes(device)
        copies[device] = tensor.to(device) if fits else None
    copy = copies[device]
    return tensor if copy is None else copy


def _free_bytes(device: torch.device) -> float:
    """Return the free bytes of a device; one that shares the CPU's memory has room."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")
