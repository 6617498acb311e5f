"""A torch Dataset of a user's own, as a `Dataset` of this package: read once, kept in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.samples import Dataset
from coprefl_flwr.errors import SettingsError, one_line


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
        return self.values[torch.from_numpy(rows)].to(device)


def as_dataset(source: str, given: Any) -> Dataset:
    """Return what a user's function gave as a dataset of this package.

    Parameters
    ----------
    given : Dataset or torch.utils.data.Dataset
        One of ours is returned as it is. Of a map-style torch Dataset every item, (input, label),
        is read once, in order: an input is a PIL image, or a tensor or array of one shape; uint8 in
        two or three dimensions is an image, (H, W), (C, H, W), or of an array (H, W, C). A label
        is a whole number. Its attribute `classes`, if it has one, names the classes.

    Raises a SettingsError that begins with `source` where that is not so, or a class has no sample.
    """
    if all(hasattr(given, name) for name in ("labels", "classes", "inputs", "domain_names")):
        ours: Dataset = given
        return ours
    if not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
        kind = type(given).__name__
        raise SettingsError(f"{source}: a map-style torch Dataset is needed, not {kind}")
    if not len(given):
        raise SettingsError(f"{source}: the dataset is empty")
    values, labels = _read(source, given)
    names = getattr(given, "classes", None)
    classes = [str(name) for name in names] if isinstance(names, Sequence) else None
    seen = np.unique(labels)
    wanted = np.arange(len(classes) if classes else min(seen[-1], len(labels)) + 1)
    empty = np.setdiff1d(wanted, seen).tolist()
    if empty and labels.min() >= 0:
        few = ", ".join(map(str, empty[:5])) + (", ..." if len(empty) > 5 else "")
        raise SettingsError(
            f"{source}: no sample is of class {few}; labels must be 0, 1, 2, ... without gaps"
        )
    if values.dtype == torch.uint8 and values.ndim == 4:
        return ImageDataset.of(source, values, labels, classes)
    if classes is None:
        classes = [str(number) for number in range(labels.max() + 1)]
    if labels.min() < 0 or labels.max() >= len(classes):
        raise SettingsError(f"{source}: labels must lie in 0..{len(classes) - 1}")
    if values.dtype == torch.float64:  # NumPy's default, which no network takes.
        values = values.float()
    return TensorDataset(values, labels, tuple(classes))


def _read(source: str, given: Any) -> tuple[Tensor, npt.NDArray[np.int64]]:
    """Return all inputs (N, *shape) and labels (N,)."""
    inputs, labels = [], []
    for position in range(len(given)):
        try:
            value, label = given[position]
            number = int(label)
        except Exception as error:  # Whatever the user's own code raises.
            line = f"{source}: item {position} must be (input, label): {one_line(error)}"
            raise SettingsError(line) from error
        if number != label:
            raise SettingsError(f"{source}: item {position} has label {label}; whole numbers only")
        inputs.append(_tensor(source, value))
        labels.append(number)
    shapes = {tuple(one.shape) for one in inputs}
    if len(shapes) > 1:
        some = " and ".join(map(str, sorted(shapes)[:2]))
        raise SettingsError(f"{source}: inputs are of several shapes ({some}); one is needed")
    return torch.stack(inputs), np.array(labels, dtype=np.int64)


def _tensor(source: str, value: Any) -> Tensor:
    """Return an input as a tensor, an image of bytes as (C, H, W)."""
    if isinstance(value, Tensor):
        return value[None] if value.dtype == torch.uint8 and value.ndim == 2 else value
    if not (isinstance(value, np.ndarray) or hasattr(value, "getbands")):
        kind = type(value).__name__
        raise SettingsError(
            f"{source}: inputs are {kind}; allowed are PIL images, tensors and NumPy arrays"
        )
    array = torch.from_numpy(np.array(value))
    if array.dtype != torch.uint8 or array.ndim not in (2, 3):
        return array
    return array[None] if array.ndim == 2 else array.permute(2, 0, 1)
