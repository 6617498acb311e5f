"""Data of a user's own, as a `Dataset` of this package: read once, kept in memory."""

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.items import (
    Pick,
    Picker,
    check_map_style,
    class_names,
    is_hugging_face,
    pairs,
    parts_of,
    tensor,
)
from coprefl_flwr.data.labels import check_gaps, renumber, renumbered
from coprefl_flwr.data.samples import Dataset, Samples
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.transfer import on_device


@dataclass(frozen=True, eq=False)
class TensorDataset:
    """A `Dataset` of values that a model is given as they are, (N, *shape) of any dtype.

    Images of bytes are an `ImageDataset`, which normalises them. The other attributes are those of
    every `Dataset`.
    """

    values: Tensor
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    groups: npt.NDArray[np.int64] | None = None
    test: npt.NDArray[np.bool_] | None = None
    domains: npt.NDArray[np.int64] | None = None
    domain_names: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return tuple(self.values.shape[1:])

    def inputs(self, rows: npt.NDArray[np.int64], device: torch.device) -> Tensor:
        """Return the values of `rows` (b, *shape) on `device`."""
        return on_device(self.values[torch.from_numpy(rows)], device)


@dataclass(frozen=True)
class Columns:
    """Which keys of a dict hold what: "" is found by its name, but for `groups`, which is none."""

    label: str = ""
    image: str = ""
    groups: str = ""


def as_dataset(
    source: str,
    given: Any,
    relabel: bool = False,
    *,
    batch: Pick | None = None,
    columns: Columns | None = None,
) -> Dataset:
    """Return data of a user's own as a dataset of this package.

    Parameters
    ----------
    given : one of ours, which is returned as it is; or, read once and in order, a map-style torch
        Dataset, a DataLoader of one (through its collate_fn, never shuffled), a Hugging Face
        Dataset, or a dict of such as a DatasetDict, whose part "test" is the source's own test part
    relabel : number the labels 0, 1, 2, ... in their order, and leave out classes without samples
    batch : returns (input, label) of an item, or of a batch of the DataLoader; not set: an item is
        that pair, or a dict in which a key such as label and one such as image are alone of their
        kind, or named by `columns`

    An input is a PIL image, or a tensor, array or list of one shape; uint8 in two or three
    dimensions is an image, (H, W), (C, H, W), or of an array (H, W, C). A label is a whole number.
    Classes have the names of the attribute `classes`, also of what a Subset was taken of, or of a
    ClassLabel. Raises a SettingsError that begins with `source` where something is not so, or a
    class has no sample and `relabel` is false.
    """
    if is_ours(given):
        ours: Dataset = given
        return renumbered(source, ours) if relabel else ours
    read = _read(source, given, batch, columns or Columns())
    labels, names = read.labels, read.names
    if relabel:
        labels, names = renumber(labels, names)
    elif labels.min() >= 0:
        check_gaps(source, labels, len(names) if names else labels.max() + 1)
    if _are_images(read.values):
        return ImageDataset.of(
            source, read.values, labels, names, groups=read.groups, test=read.test
        )
    if names is None:
        names = tuple(map(str, range(labels.max() + 1)))
    if labels.min() < 0 or labels.max() >= len(names):
        raise SettingsError(f"{source}: labels must lie in 0..{len(names) - 1}")
    return TensorDataset(read.values, labels, names, read.groups, read.test)


def is_ours(given: Any) -> bool:
    """Return whether something is a `Dataset` of this package already."""
    return all(hasattr(given, name) for name in ("labels", "classes", "inputs", "domain_names"))


_samples: "weakref.WeakKeyDictionary[Any, Samples]" = weakref.WeakKeyDictionary()


def as_samples(source: str, given: Any) -> Samples:
    """Return all that a client holds as `Samples`, under the labels that they have.

    `given` is Samples, or what `as_dataset` takes. A client may lack classes. Images of bytes
    become numbers from 0 to 1: normalised by a client's own, they would differ between clients.
    What was read is remembered as long as `given` lives, as clients are made for every message.
    """
    if isinstance(given, Samples) or all(hasattr(given, one) for one in ("take", "batches")):
        held: Samples = given
        return held
    try:
        if given not in _samples:
            _samples[given] = _all_of(source, given)
        return _samples[given]
    except TypeError:  # Not to be remembered, such as a list.
        return _all_of(source, given)


def _all_of(source: str, given: Any) -> Samples:
    if is_ours(given):
        ours: Dataset = given
        return Samples(ours, np.arange(len(ours.labels)), ours.labels)
    read = _read(source, given, None, Columns())
    values, labels = read.values, read.labels
    if labels.min() < 0:
        raise SettingsError(f"{source}: labels must be 0 or more; the least is {labels.min()}")
    names = tuple(map(str, range(labels.max() + 1)))
    dataset: Dataset = TensorDataset(values, labels, names)
    if _are_images(values):
        channels = values.shape[1]
        dataset = ImageDataset(values, labels, names, torch.zeros(channels), torch.ones(channels))
    return Samples(dataset, np.arange(len(labels)), labels)


def _are_images(values: Tensor) -> bool:
    return values.dtype == torch.uint8 and values.ndim == 4


@dataclass(frozen=True, eq=False)
class _Read:
    """All samples: inputs (N, *shape), labels (N,), and columns as a `Dataset` has them."""

    values: Tensor
    labels: npt.NDArray[np.int64]
    names: tuple[str, ...] | None
    groups: npt.NDArray[np.int64] | None
    test: npt.NDArray[np.bool_] | None


def _read(source: str, given: Any, batch: Pick | None, columns: Columns) -> _Read:
    """Read all samples of all parts."""
    inputs: list[Tensor] = []
    labels: list[int] = []
    sizes: list[int] = []
    parts = parts_of(source, given)
    for _, part in parts:
        check_map_style(source, part)
        picker = Picker(source, batch, columns.label, columns.image)
        for value, label in pairs(source, _as_arrays(part), picker):
            inputs.append(tensor(source, value))
            labels.append(label)
        sizes.append(len(labels) - sum(sizes))
    numbers = np.array(labels, dtype=np.int64)
    is_test = np.repeat([name == "test" for name, _ in parts], sizes)
    return _Read(
        _stacked(source, inputs),
        numbers,
        _fitting(*class_names(parts[0][1], picker.label), int(numbers.max())),
        _groups(source, [part for _, part in parts], columns.groups),
        is_test if is_test.any() and not is_test.all() else None,
    )


def _as_arrays(part: Any) -> Any:
    """Return a Hugging Face Dataset whose one column of arrays, if it has one, comes as such.

    By itself it gives lists, which no longer tell bytes from other integers.
    """
    if not is_hugging_face(part) or part.format["type"] is not None:
        return part
    found = {k: one for k, one in part.features.items() if type(one).__name__.startswith("Array")}
    if len(found) != 1:
        return part
    ((key, feature),) = found.items()
    return part.with_format("numpy", [key], output_all_columns=True, dtype=feature.dtype)


def _stacked(source: str, inputs: list[Tensor]) -> Tensor:
    """Return inputs of one shape as one tensor, in colour where some images are."""
    shapes = {tuple(one.shape) for one in inputs}
    images = all(one.dtype == torch.uint8 and one.ndim == 3 for one in inputs)
    if images and {shape[0] for shape in shapes} == {1, 3}:
        inputs = [one.expand(3, *one.shape[1:]) for one in inputs]
        shapes = {tuple(one.shape) for one in inputs}
    if len(shapes) > 1:
        some = " and ".join(map(str, sorted(shapes)[:2]))
        raise SettingsError(f"{source}: inputs are of several shapes ({some}); one is needed")
    values = torch.stack(inputs)
    # float64 is NumPy's default, which no network takes.
    return values.float() if values.dtype == torch.float64 else values


def _fitting(names: list[str] | None, exact: bool, highest: int) -> tuple[str, ...] | None:
    """Return the names of the classes, as far as they fit where they are not of these samples."""
    if names is None or (not exact and highest >= len(names)):
        return None
    return tuple(names if exact else names[: highest + 1])


def _groups(source: str, parts: list[Any], column: str) -> npt.NDArray[np.int64] | None:
    """Return the number of each sample's group, in the order of their names."""
    if not column:
        return None
    for part in parts:
        if not is_hugging_face(part) or column not in part.column_names:
            known = ", ".join(getattr(part, "column_names", ())) or "none"
            raise SettingsError(f"{source}: has no column {column} of groups; its columns: {known}")
    found = np.concatenate([np.asarray(part.with_format(None)[column][:]) for part in parts])
    numbers: npt.NDArray[np.int64] = np.unique(found, return_inverse=True)[1]
    return numbers.reshape(-1)
