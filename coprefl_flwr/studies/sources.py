"""What populations are made of: a phase's samples, and how they are spread over clients."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coprefl_flwr.data import Dataset, Datasets, Samples, partition
from coprefl_flwr.data.partition import NATURAL, Scheme
from coprefl_flwr.data.sources import StandIn
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
