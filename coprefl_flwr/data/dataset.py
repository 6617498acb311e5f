"""Datasets in memory, samples of them, and the check of a dataset's arrays (`make_dataset`)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from coprefl_flwr.data.inputs import Inputs, joined, mapped, tensors_of
from coprefl_flwr.errors import SettingsError, excerpt
from coprefl_flwr.transfer import on_device, tensor_of

Rows = npt.NDArray[np.int64]
"""An int64 array: indices of samples, labels, or numbers of groups or domains."""
AnyDataset = TypeVar("AnyDataset", bound="Dataset")

TOKENS_AT_ONCE = 8192
"""Tokens of a batch of whole sets: the memory of a transformer grows with their number."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(ABC):
    """All N samples of a source, such as a file or a torchvision dataset.

    If the source is split, its training samples come first, then validation, then test samples.

    Attributes
    ----------
    labels : int64 (N,), in 0..len(classes)-1; all 0 if there are `targets`
    classes : names of the classes; an empty name for each output of a network if there are
        `targets`: 1 for floats (N,) or (N, H, W), k for (N, k), C for (N, C, H, W), and for integer
        images (N, H, W), or sequences (N, L) with places of -100, their highest number plus 1
    targets : float32 or int64 (N, *shape), for regression, several labels per sample, or images of
        classes; None if the targets are classes, the `labels`
    groups : int64 (N,), number of the writer or speaker of each sample; None if the source does not
        name writers or speakers
    test : bool (N,), whether each sample is in the source's test split; None if the source has no
        test split
    domains : int64 (N,), index in `domain_names` for each sample; None if the source has no domains
    domain_names : names of the domains, such as photo and sketch
    """

    labels: Rows
    classes: tuple[str, ...]
    groups: Rows | None = None
    test: npt.NDArray[np.bool_] | None = None
    domains: Rows | None = None
    domain_names: tuple[str, ...] = ()
    targets: Tensor | None = None

    @property
    def has_classes(self) -> bool:
        """Whether the target of a sample is a class, its label."""
        return self.targets is None

    def target_kind(self, classes: int | str = "several") -> str:
        """Return what the targets are: "5 classes", or the dtype and the shape of each target."""
        if self.targets is None:
            return f"{classes} classes"
        return f"targets {self.targets.numpy().dtype} {tuple(self.targets.shape[1:])}"

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, or of the first of several: (C, H, W), or (length,) for a text."""

    @abstractmethod
    def inputs(self, rows: Rows, device: torch.device) -> Inputs:
        """Return the model inputs (b, *shape) of the samples `rows` (b,), on `device`."""


@dataclass(frozen=True, eq=False)
class TensorDataset(Dataset):
    """Dataset whose inputs are a tensor (N, *shape) of any dtype, given to the model unchanged.

    Several inputs are a tuple or a dict of such tensors (see `data.inputs`). A tensor is in memory
    or in a memory-mapped file. uint8 images are an `ImageDataset` instead, which normalises them.
    """

    values: Inputs

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, or of the first of several."""
        return tuple(tensors_of(self.values)[0].shape[1:])

    def inputs(self, rows: Rows, device: torch.device) -> Inputs:
        """Return the inputs (b, *shape) of the samples `rows` (b,), on `device`."""
        return mapped(lambda tensor: _rows_on(tensor, rows, device), self.values)


@dataclass(frozen=True, eq=False)
class ImageDataset(Dataset):
    """Dataset of uint8 images (N, C, H, W), all of one size, normalised batch by batch.

    A batch is (images / 255 - mean) / std, with `mean` and `std` float32 (C,).
    """

    images: Tensor
    mean: Tensor
    std: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image, (C, H, W)."""
        return tuple(self.images.shape[1:])

    def in_colour(self) -> "ImageDataset":
        """Return the dataset with grey images expanded to three equal channels, without a copy.

        If the images do not have exactly one channel, the dataset is returned unchanged.
        """
        if self.shape[0] != 1:
            return self
        channels = self.images.expand(-1, 3, -1, -1)
        return replace(self, images=channels, mean=self.mean.expand(3), std=self.std.expand(3))

    def normalised_on(self, rows: Rows) -> "ImageDataset":
        """Return the dataset normalised by the mean and std of the images `rows` only."""
        mean, std = _moments(self.images[tensor_of(rows)])
        return replace(self, mean=mean, std=std)

    def normalised_as(self, other: "ImageDataset") -> "ImageDataset":
        """Return the dataset normalised by the mean and std of `other`, with as many channels."""
        return replace(self, mean=other.mean, std=other.std)

    def without_normalisation(self) -> "ImageDataset":
        """Return the dataset with mean 0 and std 1: pixels in 0..1, as ToTensor returns them."""
        return replace(self, mean=torch.zeros_like(self.mean), std=torch.ones_like(self.std))

    def inputs(self, rows: Rows, device: torch.device) -> Tensor:
        """Return the images `rows` (b,), normalised, float32 (b, C, H, W) on `device`.

        The memory format is channels last, which makes convolutions faster (1.3 times on a CPU).
        """
        images = _rows_on(self.images, rows, device)
        of_channels = (on_same_device(values, device) for values in (self.mean, self.std))
        mean, std = (on_device(values, device)[:, None, None] for values in of_channels)
        images = images.float().contiguous(memory_format=torch.channels_last)
        return images.div_(255).sub_(mean).div_(std)


def _rows_on(tensor: Tensor, rows: Rows, device: torch.device) -> Tensor:
    """Return some rows of a tensor on `device`, where a copy of the tensor may be."""
    stored = on_same_device(tensor, device)
    where = on_device(tensor_of(rows), stored.device)
    # `index_select` takes half the time. It has the same layout only if the tensor is contiguous.
    taken = stored.index_select(0, where) if stored.is_contiguous() else stored[where]
    return on_device(taken, device)


def make_dataset(
    source: str,
    inputs: Inputs,
    labels: npt.NDArray[Any],
    classes: Sequence[str] | None = None,
    *,
    groups: npt.NDArray[Any] | None = None,
    test: npt.NDArray[np.bool_] | None = None,
    domains: npt.NDArray[Any] | None = None,
    domain_names: Sequence[str] | None = None,
    may_lack: bool = True,
) -> ImageDataset | TensorDataset:
    """Return a dataset made of these arrays, after a check of their dtypes, shapes and values.

    There is at least one sample.
    Raises a SettingsError that begins with `source` if an array has a wrong dtype or shape, if an
    input holds a NaN or an infinity, or if a label or a domain is not an index of a name.

    Parameters
    ----------
    inputs : images uint8 (N, C, H, W), normalised by the mean and std of each channel; or a tensor
        (N, *shape) of any other dtype or shape, which is kept as it is; or a tuple or a dict of
        such tensors, if a model has several inputs
    labels : class numbers, integers (N,) or (N, 1); or other targets, numbers (N, *shape), such as
        floats (N,): then there are no classes, and `classes` is not used
    groups, domains : integers (N,) or (N, 1)
    classes, domain_names : names; a label is an index in `classes`, a domain an index in
        `domain_names`; None: the names are "0", "1", ...
    test : bool (N,), whether each input is in the source's test split
    may_lack : whether classes may be without inputs, as in a file with the data of one writer; if
        false, a class without inputs raises a SettingsError
    """
    tensors = tensors_of(inputs)
    n, is_one = len(tensors[0]), isinstance(inputs, Tensor)
    are_images = is_one and inputs.dtype == torch.uint8 and inputs.ndim == 4
    if are_images and inputs.shape[1] > 4:
        shape = tuple(inputs.shape)
        raise SettingsError(f"{source}: images (N, C, H, W) = {shape} must have 1 to 4 channels")
    for tensor in tensors:
        _check_finite(source, "item", tensor)
    targets = _targets(source, labels, n)
    if targets is not None:
        classes, may_lack = [""] * _outputs_for(targets), True
        labels = np.zeros(n, np.int64)
    numbers = _integers(source, "labels", labels, n)
    if not may_lack:
        _check_gaps(source, numbers, len(classes or ()) or int(numbers.max()) + 1)
    names = _names(source, "labels", numbers, classes)
    columns = dict[str, Any](labels=numbers, classes=names, test=test, targets=targets)
    if groups is not None:
        columns["groups"] = _integers(source, "groups", groups, n)
    if domains is not None:
        columns["domains"] = positions = _integers(source, "domains", domains, n)
        columns["domain_names"] = _names(source, "domains", positions, domain_names)
    if are_images:
        mean, std = _moments(inputs)
        return ImageDataset(inputs.contiguous(), mean, std, **columns)
    return TensorDataset(inputs, **columns)


def _check_finite(source: str, what: str, values: Tensor) -> None:
    """Raise a SettingsError if `values`, (N, ...), has a NaN or an infinity in a row."""
    # The sum needs no memory. It may be infinite for finite values, so the values are looked at.
    if values.is_floating_point() and not values.sum().isfinite():
        wrong = (~values.isfinite().reshape(len(values), -1).all(dim=1)).nonzero()
        if len(wrong):
            raise SettingsError(f"{source}: {what} {int(wrong[0])} has a NaN or an infinity")


def _targets(source: str, labels: npt.NDArray[Any], n: int) -> Tensor | None:
    """Return targets that are no classes, float32 or int64 (n, *shape); None for class numbers."""
    kind = labels.dtype.kind
    if kind not in "fbiu" or len(labels) != n or (kind != "f" and labels.size == n):
        return None
    targets = torch.from_numpy(labels.astype(np.int64 if kind in "iu" else np.float32))
    _check_finite(source, "the target of item", targets)
    return targets


def _outputs_for(targets: Tensor) -> int:
    """Return the number of a network's outputs for targets (see `Dataset.classes`)."""
    if not targets.is_floating_point() and (targets.ndim > 2 or bool((targets == -100).any())):
        return int(targets.max()) + 1
    return 1 if targets.ndim in (1, 3) else targets.shape[1]


def _integers(source: str, name: str, column: npt.NDArray[Any], n: int) -> Rows:
    """Return n integers, (n,) or (n, 1), as int64 (n,); SettingsError for other shapes, dtypes."""
    if column.shape not in ((n,), (n, 1)) or not np.issubdtype(column.dtype, np.integer):
        got = f"{column.dtype} of shape {column.shape}"
        raise SettingsError(f"{source}: {name} are {got}; {n} integers are needed")
    return column.reshape(n).astype(np.int64)


def renumbered(dataset: AnyDataset) -> AnyDataset:
    """Return a dataset without its empty classes; the labels of the others become 0, 1, 2, ...

    The classes keep their names and their order. Targets that are no classes are unchanged.
    """
    if not dataset.has_classes:
        return dataset
    seen, positions = np.unique(dataset.labels, return_inverse=True)
    names = tuple(dataset.classes[number] for number in seen.tolist())
    return replace(dataset, labels=positions.reshape(-1).astype(np.int64), classes=names)


def _names(source: str, what: str, numbers: Rows, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names, by default "0", "1", ...; SettingsError if a number is not an index."""
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest < 0 or (names is not None and highest >= len(names)):
        allowed = f"in 0..{len(names) - 1}, as there are names" if names else "0 or more"
        if lowest in (-1, -100):
            allowed = f"{allowed} ({lowest} marks samples without a label: leave these out)"
        line = f"{source}: {what} run from {lowest} to {highest}; they must be {allowed}"
        raise SettingsError(line)
    return tuple(map(str, range(highest + 1) if names is None else names))


def check_numbers(source: str, dataset: Dataset) -> None:
    """Raise a SettingsError if the classes are named "0", "1", ... and a class has no sample.

    Classes with other names may be empty: a file of one writer lists all classes and need not have
    samples of each.
    """
    if dataset.classes == tuple(map(str, range(len(dataset.classes)))):
        _check_gaps(source, dataset.labels, len(dataset.classes))


def _check_gaps(source: str, labels: Rows, classes: int) -> None:
    """Raise a SettingsError, with the remedy, if a class of 0..classes-1 occurs in no label."""
    # Labels may be large ids: among the first len(labels) + 1 numbers, one then occurs in no label.
    empty = np.setdiff1d(np.arange(min(classes, len(labels) + 1)), labels).tolist()
    if empty:
        missing = excerpt(", ".join(map(str, empty)))
        needed = "labels must be 0, 1, 2, ... without gaps: set relabel = true (relabel=True)"
        raise SettingsError(f"{source}: no sample is of class {missing}; {needed}")


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exact mean and std, float32 (C,), of images / 255, without a float copy."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(dim=1):
        counts = torch.bincount(channel.reshape(-1), minlength=256).double()
        mean = (counts @ values) / counts.sum()
        variance = (counts @ (values - mean) ** 2) / counts.sum()
        means.append(mean)
        # The std of a constant channel is 1 instead of 0, so that nothing is divided by zero.
        stds.append(variance.sqrt() if variance > 0 else torch.ones_like(variance))
    return torch.stack(means).float(), torch.stack(stds).float()


# ---- the samples of a client ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples of a dataset with the labels of a task, such as the data of a client.

    `indices`, int64 (n,), are the samples' indices in the dataset. `labels`, int64 (n,), are the
    labels in the task; the labels of the dataset are not used. Inputs are copied only when a batch
    is requested.
    """

    dataset: Dataset
    indices: Rows
    labels: Rows

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"<{len(self)} samples of {self.dataset.target_kind(len(np.unique(self.labels)))}>"

    def take(self, positions: Rows) -> "Samples":
        """Return the samples at `positions`: indices in these samples, not in the dataset."""
        return Samples(self.dataset, self.indices[positions], self.labels[positions])

    def batch(self, positions: Rows | slice, device: torch.device) -> tuple[Inputs, Tensor]:
        """Return (inputs, targets) of the samples at `positions`, on `device`.

        The targets are the labels, int64 (b,), or rows of the dataset's `targets`, (b, *shape).
        """
        rows = self.indices[positions]
        inputs = self.dataset.inputs(rows, device)
        if self.dataset.targets is not None:
            return inputs, _rows_on(self.dataset.targets, rows, device)
        # If positions are an array, NumPy has already made a copy; a slice gives a view.
        labels = self.labels[positions].astype(np.int64, copy=isinstance(positions, slice))
        return inputs, on_device(tensor_of(labels), device)

    def batches(self, batch_size: int, device: torch.device) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield (inputs, targets) of all samples once, in order; the batches are `batch_slices`.

        If sequences have several inputs, a batch has at most TOKENS_AT_ONCE tokens.
        """
        values, shape = getattr(self.dataset, "values", None), self.dataset.shape
        if isinstance(values, dict | tuple) and len(shape) == 1:
            batch_size = min(batch_size, max(1, TOKENS_AT_ONCE // shape[0]))
        for part in batch_slices(len(self), batch_size):
            yield self.batch(part, device)


def pooled(parts: Sequence[Samples]) -> Samples:
    """Return all samples of several parts. Inputs of different datasets are copied into one."""
    dataset, labels = parts[0].dataset, np.concatenate([part.labels for part in parts])
    if all(part.dataset is dataset for part in parts):
        return Samples(dataset, np.concatenate([part.indices for part in parts]), labels)
    batches = [part.batch(slice(None), torch.device("cpu")) for part in parts]
    inputs, targets = (joined(column, torch.cat) for column in zip(*batches, strict=True))
    classes = max((part.dataset.classes for part in parts), key=len)
    together = TensorDataset(
        inputs, labels=labels, classes=classes, targets=None if dataset.has_classes else targets
    )
    return Samples(together, np.arange(len(labels)), labels)


@dataclass(frozen=True, eq=False)
class ClientData:
    """The samples of one client. In a pre-training, `test` are the validation samples, if any."""

    train: Samples
    test: Samples | None = None

    def __repr__(self) -> str:
        tested = f", {len(self.test)} test samples" if self.test else ""
        return f"<{len(self.train)} training samples{tested}>"


def batch_slices(n: int, batch_size: int) -> list[slice]:
    """Split the indices 0..n-1 into batches; a single last sample joins the previous batch.

    In train mode BatchNorm does not accept a batch of one sample.
    """
    starts = list(range(0, n, batch_size))
    if len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], n], strict=False)]


# ---- a dataset on the GPU ------------------------------------------------------------------------

GPU_SHARE = 0.25
"""Fraction of a GPU's memory, as it was without them, that copies of tensors may fill together;
models and batches need the rest."""

_copies: MutableMapping[Tensor, dict[torch.device, Tensor | None]] = WeakTensorKeyDictionary()
"""{tensor: {device: copy of the tensor, or None if it does not fit}}, while the tensor exists."""


def on_same_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a tensor on `device`, or the tensor itself if the device lacks the memory.

    The tensor itself is also returned if it is on a device of this type. The copy is made once per
    process, so the caller must not change the tensor afterwards. With such a copy, batches are
    indexed on the device, and only row indices are transferred to it.
    """
    if device.type == tensor.device.type:
        return tensor
    copies = _copies.setdefault(tensor, {})
    if device not in copies:
        held = sum(c.nbytes for of in _copies.values() if (c := of.get(device)) is not None)
        fits = held + tensor.nbytes <= GPU_SHARE * (held + _free_bytes(device))
        copies[device] = tensor.to(device) if fits else None
    copy = copies[device]
    return tensor if copy is None else copy


def _free_bytes(device: torch.device) -> float:
    """Return the free bytes of a CUDA device, or infinity for other devices."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")
