"""Labels with gaps, such as 0, 5, ..., 55: told in one line, or renumbered."""

from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from coprefl_flwr.data.samples import Dataset
from coprefl_flwr.errors import SettingsError

Labelled = TypeVar("Labelled", bound=Dataset)

_MOST_EMPTY = 10_000  # Labels so far apart are ids, of which there would be too many names.


def renumber(
    labels: npt.NDArray[Any], names: Sequence[str] | None
) -> tuple[npt.NDArray[np.int64], tuple[str, ...] | None]:
    """Return labels (N,) as 0, 1, 2, ... in their order, and the names of the classes they have.

    Without names a class is called by the number that it had. What cannot be renumbered, labels
    that are no integers or lie outside of the names, is returned as it is, for others to refuse.
    """
    named = None if names is None else tuple(map(str, names))
    if not np.issubdtype(labels.dtype, np.integer) or not len(labels):
        return labels, named
    seen, positions = np.unique(labels, return_inverse=True)
    if named is not None and not 0 <= seen[0] <= seen[-1] < len(named):
        return labels, named
    kept = tuple(str(number) if named is None else named[number] for number in seen.tolist())
    return positions.reshape(labels.shape).astype(np.int64), kept


def renumbered(source: str, dataset: Labelled) -> Labelled:
    """Return a dataset with the classes that have samples, numbered 0, 1, 2, ..."""
    if len(np.unique(dataset.labels)) == len(dataset.classes):
        return dataset
    if not is_dataclass(dataset):
        kind = type(dataset).__name__
        raise SettingsError(f"{source}: relabel is for datasets of this package, not {kind}")
    numbers, names = renumber(dataset.labels, dataset.classes)
    return cast(Labelled, replace(dataset, labels=numbers, classes=names))


def check_gaps(source: str, labels: npt.NDArray[Any], classes: int) -> None:
    """Raise a SettingsError, one line with what to do, if a class of 0..classes-1 has no label."""
    seen = np.unique(labels)
    empty = np.setdiff1d(np.arange(min(classes, seen[-1] + 1, len(labels) + 1)), seen).tolist()
    empty = empty or list(range(int(seen[-1]) + 1, classes))
    if empty:
        raise SettingsError(
            f"{source}: no sample is of class {_few(empty)}; labels must be 0, 1, 2, ... without "
            f"gaps, and are {_few(seen.tolist())} ({len(seen)} of them): relabel = true (in Python "
            "relabel=True) numbers them so"
        )


def check_numbers(source: str, dataset: Dataset) -> None:
    """Raise the SettingsError of `check_gaps` for classes that the source gives no names.

    A named class without a sample is one that a source knows and lacks, as a file of one writer.
    """
    numbers = tuple(map(str, range(len(dataset.classes))))
    if dataset.classes == numbers:
        check_gaps(source, dataset.labels, len(numbers))


def check_far(source: str, labels: npt.NDArray[Any]) -> None:
    """Raise the SettingsError of `check_gaps` if labels lie so far apart that they are ids."""
    if labels.max() >= len(labels) + _MOST_EMPTY:
        check_gaps(source, labels, int(labels.max()) + 1)


def _few(numbers: Sequence[Any]) -> str:
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
