"""What populations are made of: a phase's samples, and how they are spread over clients."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from torch import Tensor

from coprefl_flwr.data import (
    SCHEMES,
    Dataset,
    Datasets,
    ImageDataset,
    Samples,
    as_dataset,
    partition,
)
from coprefl_flwr.data import relabel as relabelled
from coprefl_flwr.data.partition import NATURAL, Scheme
from coprefl_flwr.data.sources import StandIn
from coprefl_flwr.data.user_data import Pick
from coprefl_flwr.errors import SettingsError, short, unknown, wrong_type
from coprefl_flwr.options import check_declared, option
from coprefl_flwr.studies.identity import contents, values_of


class Source(ABC):
    """The dataset of a phase, and which of its classes, domains and samples the phase has."""

    @property
    @abstractmethod
    def dataset(self) -> Dataset:
        """The dataset."""

    @property
    @abstractmethod
    def classes(self) -> tuple[int, ...]:
        """The numbers of the phase's classes in the dataset, ascending."""

    @property
    def domains(self) -> tuple[int, ...]:
        """The numbers of its domains, () where the dataset has none."""
        return ()

    @property
    def in_memory(self) -> bool:
        """Whether the dataset was given by a program, so that its content alone says what it is."""
        return False

    @property
    def class_names(self) -> list[str]:
        """The names of its classes."""
        return [self.dataset.classes[number] for number in self.classes]

    @abstractmethod
    def samples(self, classes: tuple[int, ...]) -> Samples:
        """Return all samples of some of the classes, labelled by the positions of these."""

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return what its samples depend on: the same identity, the same samples."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How samples are spread over clients."""

    clients: int | None = option(100, "clients; not set: as many as the scheme makes", minimum=1)
    scheme: Scheme = "dirichlet"
    alpha: float = option(0.5, "concentration of the Dirichlet partition", above=0)
    classes_per_client: int = option(2, "classes a client has, `pathological` only", minimum=1)
    min_samples: int = option(10, "fewest samples a client may hold", unit="samples", minimum=2)

    def __post_init__(self) -> None:
        """Check each value."""
        check_declared(self)
        scheme = self.scheme
        if isinstance(scheme, type) or not (
            isinstance(scheme, str) or callable(scheme) or hasattr(scheme, "load_partition")
        ):
            needed = f"a text ({', '.join(SCHEMES)}), a function or a partitioner of flwr-datasets"
            raise wrong_type("scheme", scheme, needed, "IidPartitioner(num_partitions=10)")

    def over_clients(self, samples: Samples, seed: int, population: str) -> list[Samples]:
        """Return the samples of each client of a population.

        Raises a SettingsError if the partition cannot be had, or a client has too few samples.
        """
        groups = samples.dataset.groups
        if isinstance(samples.dataset, StandIn) and self.scheme != NATURAL:
            # Drawing a partition takes seconds, and on average it deals out as much.
            parts = np.array_split(np.arange(len(samples)), self.clients or 1)
        else:
            parts = partition(
                samples.labels,
                self.clients,
                self.scheme,
                alpha=self.alpha,
                classes_per_client=self.classes_per_client,
                seed_key=(seed, population, "partition"),
                min_samples=self.min_samples,
                groups=None if groups is None else groups[samples.indices],
            )
        return [samples.take(part) for part in parts]

    def identity(self) -> dict[str, Any]:
        """Return what a spread by a text depends on, besides the samples and the seed."""
        return {**vars(self), "contents": contents([str(self.scheme)])}


# ---- of settings ---------------------------------------------------------------------------------

_OF_BOTH = ("dataset", "samples-per-class", "relabel", "image-size", "pretraining-domains")
_OF_TASKS = ("task-dataset", "task-reserve", "downstream-domains")


@dataclass(frozen=True, eq=False)
class DividedSource(Source):
    """The part of datasets that one phase has: 0 the pre-training, 1 the tasks."""

    datasets: Datasets
    phase: int

    @property
    def dataset(self) -> Dataset:
        """The dataset."""
        return self.datasets.loaded[self.phase]

    @property
    def classes(self) -> tuple[int, ...]:
        """The numbers of the phase's classes, ascending."""
        return self.datasets.classes[self.phase]

    @property
    def domains(self) -> tuple[int, ...]:
        """The numbers of its domains."""
        return self.datasets.domains[self.phase]

    def samples(self, classes: tuple[int, ...]) -> Samples:
        """Return all samples of some classes, but those that only the other phase has."""
        return self.datasets.samples(self.phase, classes)

    def identity(self) -> Mapping[str, Any]:
        """Return the settings of the datasets, the contents of their files, and the classes."""
        settings = self.datasets.settings
        every, named = values_of(settings), [settings.dataset]
        about = {key: every[key] for key in _OF_BOTH} | {"seed": self.datasets.seed}
        if self.phase or settings.task_reserve:  # Then some samples are kept for the tasks.
            about |= {key: every[key] for key in _OF_TASKS} | {
                "downstream": self.datasets.classes[1]
            }
            named.append(settings.task_dataset)
        # Grey images become colour where those of the tasks' dataset are.
        about |= {"classes": self.classes, "shape": self.dataset.shape}
        return about | {"contents": contents(named)}


# ---- of a program --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LoadedSource(Source):
    """A dataset in memory, and the classes of it that are used.

    Parameters
    ----------
    loaded : Dataset
        The dataset.
    used : tuple of int
        The numbers of its classes, ascending.
    """

    loaded: Dataset
    used: tuple[int, ...]
    in_memory = True

    @classmethod
    def of(
        cls,
        given: Any,
        only: Sequence[int | str] | None = None,
        relabel: bool = False,
        batch: Pick | None = None,
    ) -> "LoadedSource":
        """Return the source of a dataset that a program gives (see `data.as_dataset`).

        Images of bytes become floats in 0..1, so a model that was trained here takes the inputs
        that the program's own loaders give. `only` are numbers or names of classes; None: all.

        Raises a SettingsError for something else, or a class that the dataset does not have.
        """
        _check_dataset(given)
        loaded = as_dataset("dataset", given, relabel, batch=batch)
        if isinstance(loaded, ImageDataset) and not isinstance(given, Dataset):
            loaded = loaded.unscaled()
        names = list(loaded.classes)
        if only is None:
            return cls(loaded, tuple(range(len(names))))
        if isinstance(only, str) or not isinstance(only, Iterable):
            raise wrong_type("only", only, "a list of class numbers or names", "[0, 1, 2]")
        used = {_class_number(one, names) for one in only}
        if not used:
            raise SettingsError("only = []: at least one class is needed")
        return cls(loaded, tuple(sorted(used)))

    @property
    def dataset(self) -> Dataset:
        """The dataset."""
        return self.loaded

    @property
    def classes(self) -> tuple[int, ...]:
        """The numbers of the classes."""
        return self.used

    @property
    def class_names(self) -> list[str]:
        """The names of the classes; a number for a class that other clients' datasets have."""
        names = self.loaded.classes
        return [names[n] if n < len(names) else str(n) for n in self.used]

    def samples(self, classes: tuple[int, ...]) -> Samples:
        """Return all samples of some of the classes."""
        rows = np.flatnonzero(np.isin(self.loaded.labels, classes))
        return Samples(self.loaded, rows, relabelled(self.loaded.labels[rows], classes))

    def identity(self) -> Mapping[str, Any]:
        """Return the number of samples and the classes; the clients' samples say the rest."""
        return {"samples": len(self.loaded.labels), "classes": self.used}


def _check_dataset(given: Any) -> None:
    """Raise a SettingsError for what is often given instead of a dataset."""
    arrays = isinstance(given, tuple) and all(isinstance(one, Tensor | np.ndarray) for one in given)
    of_dataset = isinstance(given, Samples) or isinstance(getattr(given, "source", None), Source)
    if arrays or of_dataset or isinstance(given, str | type | Tensor | np.ndarray):
        example = "torch.utils.data.TensorDataset(inputs, labels)"
        if isinstance(given, str):
            example = f"cp.load_dataset({short(repr(given))})"
        raise wrong_type("dataset", given, "a torch or Hugging Face Dataset", example)


def _class_number(given: Any, names: Sequence[str]) -> int:
    """Return the number of a class from its number or its name."""
    value = given.item() if isinstance(given, Tensor) else given
    if isinstance(value, str):
        if value not in names:
            raise SettingsError(f"only: {unknown('class', value, names)}")
        return names.index(value)
    if not isinstance(value, Integral):
        raise SettingsError(f"only: {short(repr(value))}: must be a whole number or a name")
    number = int(value)
    if not 0 <= number < len(names):
        raise SettingsError(f"only: class {number}; classes are 0..{len(names) - 1}")
    return number
