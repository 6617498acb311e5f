"""The populations of a study, and what each of their clients holds: the same in every process."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from coprefl_flwr import seeds
from coprefl_flwr.data import Samples, TextDataset, as_samples, split_in_two
from coprefl_flwr.data.splits import rows_of
from coprefl_flwr.errors import SettingsError, concerning
from coprefl_flwr.models import as_array
from coprefl_flwr.options import check_declared, option
from coprefl_flwr.studies.sources import LoadedSource, Source, Spread

_FINGERPRINT = 64
"""Samples of a dataset that its hash takes, evenly spaced, besides all labels."""

PRETRAINING = "pretrain"
"""The population of the pre-training."""


def task_name(number: int) -> str:
    """Return the population of the downstream task `number`, counted from 0."""
    return f"task-{number}"


@dataclass(frozen=True, eq=False)
class ClientData:
    """What one client holds; clients of the pre-training have no test samples."""

    train: Samples
    test: Samples | None = None

    def __repr__(self) -> str:
        tested = f", {len(self.test)} to be tested on" if self.test else ""
        return f"<{len(self.train)} samples to train on{tested}>"


@dataclass(frozen=True, eq=False)
class Population:
    """A group of clients, by client id, with some classes of its dataset.

    A sample's label is the position of its class in `classes`.
    """

    name: str
    classes: tuple[int, ...]
    clients: tuple[ClientData, ...]

    def __repr__(self) -> str:
        sizes = [len(one.train) + len(one.test or ()) for one in self.clients]
        each = f"{min(sizes)} to {max(sizes)} samples each"
        return f"<{self.name}: {len(sizes)} clients, {each}, {len(self.classes)} classes>"


@dataclass(eq=False, repr=False)
class Clients:
    """The clients of a pre-training: `len` is their number, `[i]` a client's samples.

    Parameters
    ----------
    source : Source
        The samples of the pre-training.
    spread : Spread
        How they are spread over the clients.
    seed : int
        What the draws depend on.
    server_reserve : float
        Part of the samples, drawn at random, that no client holds.
    server_share : float, optional
        Part of the samples that the server uses, at most the reserve; not set: all of it.
    tested : bool
        Whether the dataset's own test part is kept from the clients.
    """

    source: Source
    spread: Spread
    seed: int = option(0, "what the draws depend on", minimum=0)
    _: KW_ONLY
    server_reserve: float = option(
        0.0, "part of the samples that no client holds", minimum=0, maximum=0.9
    )
    server_share: float | None = None
    tested: bool = False

    def __post_init__(self) -> None:
        """Check the seed and the reserve."""
        check_declared(self)

    @classmethod
    def of_datasets(cls, datasets: Sequence[Any]) -> "Clients":
        """Return clients that have a dataset each; the server has no samples.

        Raises a SettingsError for something that is not a dataset.
        """
        held = [as_samples(f"clients[{number}]", one) for number, one in enumerate(datasets)]
        # No client need have all classes, so these have the names of their labels.
        classes = tuple(range(1 + max(int(one.labels.max()) for one in held)))
        made = cls(LoadedSource(held[0].dataset, classes), Spread(clients=len(held)))
        made.population = Population(PRETRAINING, classes, tuple(map(ClientData, held)))
        return made

    @functools.cached_property
    @concerning("partition", "clients", "dataset")
    def population(self) -> Population:
        """What each client holds.

        Raises a SettingsError if the partition, or a client's samples, cannot be had as set.
        """
        everything, _ = self._reserve
        held = self.spread.over_clients(everything, self.seed, PRETRAINING)
        return Population(PRETRAINING, self.source.classes, tuple(map(ClientData, held)))

    @property
    def number(self) -> int:
        """How many clients there are."""
        return self.spread.clients or len(self.population.clients)

    @property
    def samples(self) -> tuple[Samples, ...]:
        """Each client's samples, with labels from 0 to the number of classes less 1."""
        return tuple(one.train for one in self.population.clients)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        return tuple(self.source.class_names)

    @functools.cached_property
    def _reserve(self) -> tuple[Samples, Samples]:
        """The clients' samples, and the server's reserve in random order."""
        everything = self.source.samples(self.source.classes)
        if self.tested:
            everything, _ = by_source_part(everything)
        order = seeds.generator(self.seed, PRETRAINING, "server").permutation(len(everything))
        reserved = order[: round(self.server_reserve * len(everything))]
        rest = np.sort(order[len(reserved) :])
        return everything.take(rest), everything.take(reserved)

    @property
    def server(self) -> Samples:
        """The samples that the server uses, and no client: scenario II's D^s.

        A smaller share is a part of the same reserve, and the clients hold what they held (CoPreFL,
        Table 42 of the AAAI text: "keeping the configurations for clients unchanged").
        """
        clients, reserve = self._reserve
        if self.server_share is None:
            return reserve
        used = round(self.server_share * (len(clients) + len(reserve)))
        return reserve.take(np.arange(used))

    def samples_of(self, whose: str) -> Samples:
        """Return the samples of the "server", of all "clients", or of "both"."""
        if whose == "server":
            return self.server
        several = [*self.samples, *([self.server] if whose == "both" else [])]
        indices = np.concatenate([samples.indices for samples in several])
        labels = np.concatenate([samples.labels for samples in several])
        return Samples(several[0].dataset, indices, labels)

    def test_samples(self) -> Samples:
        """Return the dataset's own test samples of the pre-training's classes and domains.

        Raises a SettingsError if the dataset has no test part.
        """
        return by_source_part(self.source.samples(self.source.classes))[1]

    def counts(self) -> pd.DataFrame:
        """Return how many samples of each class (a column) each client (a row) holds."""
        counted = [np.bincount(one.labels, minlength=len(self.classes)) for one in self.samples]
        return pd.DataFrame(counted, columns=list(self.classes)).rename_axis("client")

    def identity(self) -> dict[str, Any]:
        """Return what the samples of clients and server depend on."""
        if self.source.in_memory:
            return {"samples": hash_of_samples([*self.samples, self.server])}
        return {
            "source": self.source.identity(),
            "spread": self.spread.identity(),
            "seed": self.seed,
            "tested": self.tested,
            "server": [self.server_reserve, self.server_share],
        }

    def __len__(self) -> int:
        return len(self.population.clients)

    def __getitem__(self, client: int) -> Samples:
        return self.population.clients[client].train

    def __repr__(self) -> str:
        sizes = [len(one) for one in self.samples]
        each = f"{min(sizes)} to {max(sizes)} samples each"
        return f"<{len(self)} clients, {each}, {len(self.classes)} classes>"


@dataclass(eq=False, repr=False)
class Tasks:
    """Downstream tasks: each draws classes, and spreads their samples over its clients.

    `len` is their number, `[i]` a task. All starting models meet the same tasks, since nothing here
    knows of them: a paired comparison.

    Parameters
    ----------
    source : Source
        The samples of all tasks.
    spread : Spread
        How a task's samples are spread over its clients.
    number : int
        How many tasks there are.
    classes : int
        How many classes a task draws.
    train_fraction : float
        Part of a client's samples to train on; it is tested on the others.
    seed : int
        What the draws depend on.
    names : Mapping[str, str], optional
        What errors call the parameters, if not by their names.
    """

    source: Source
    spread: Spread
    number: int = option(3, "downstream tasks", minimum=0)
    classes: int = option(5, "classes a task draws", minimum=2)
    train_fraction: float = option(
        0.8, "part of a client's samples to train on", above=0, maximum=0.99
    )
    seed: int = option(0, "what the draws depend on", minimum=0)
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check each value; no task is drawn yet."""
        check_declared(self)
        self._made: dict[int, Population] = {}

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, number: int) -> Population:
        """Return a task: its classes, and each client's training and test samples.

        Raises a SettingsError if the classes, the partition or a client's samples cannot be had.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"task {number}: there are {len(self)}")
        if number not in self._made:
            with concerning("task-partition", "task-clients"):
                self._made[number] = self._task(number)
        return self._made[number]

    def __repr__(self) -> str:
        clients = self.spread.clients
        return f"<{len(self)} tasks of {self.classes} classes and {clients} clients>"

    def _task(self, number: int) -> Population:
        """Draw a task's classes, spread their samples, split each client's into train and test."""
        name = task_name(number)
        classes, clients = self._draw_classes(name), []
        everything = self.source.samples(classes)
        for client, own in enumerate(self.spread.over_clients(everything, self.seed, name)):
            rng = seeds.generator(self.seed, name, client, "test-split")
            with concerning("task-train-fraction"):
                train, test = split_in_two(len(own), self.train_fraction, rng)
            clients.append(ClientData(own.take(train), own.take(test)))
        return Population(name, classes, tuple(clients))

    def _draw_classes(self, name: str) -> tuple[int, ...]:
        """Draw the classes of a task, ascending."""
        known, wanted = self.source.classes, self.classes
        if isinstance(self.source.dataset, TextDataset):
            # Windows overlap: a random test part would share most of its text with the other.
            what = self._named("number")
            problem = f"{what} = {self.number}: texts have no tasks; set {what} = 0"
            raise SettingsError(problem, "tasks", "dataset")
        if wanted > len(known):
            what, only = self._named("classes"), "downstream-classes"
            problem = f"{what} = {wanted}: there are only {len(known)} downstream classes"
            raise SettingsError(problem, "task-classes", only)
        self._check_samples(known)
        rng = seeds.generator(self.seed, name, "classes")
        drawn = rng.choice(len(known), wanted, replace=False)
        return tuple(sorted(known[position] for position in drawn))

    def _check_samples(self, classes: tuple[int, ...]) -> None:
        """Raise a SettingsError if a task could draw a class without a sample."""
        dataset, only = self.source.dataset, self._named("only")
        present = np.unique(dataset.labels[rows_of(dataset, classes, self.source.domains)])
        empty = [dataset.classes[number] for number in classes if number not in present]
        if empty:
            raise SettingsError(
                f"{only}: no sample is of {abridged(empty)}; name those that have samples "
                "(list:...), or set relabel = true, which leaves out the others",
                "downstream-classes",
                "dataset",
            )

    def _named(self, parameter: str) -> str:
        return self.names.get(parameter, parameter)

    def identity(self) -> dict[str, Any]:
        """Return what the samples of the tasks' clients depend on; each task's number besides."""
        if self.source.in_memory:
            every = [client for number in range(len(self)) for client in self[number].clients]
            parts = [part for one in every for part in (one.train, one.test) if part is not None]
            return {"samples": hash_of_samples(parts)}
        return {
            "source": self.source.identity(),
            "spread": self.spread.identity(),
            "seed": self.seed,
            "classes": self.classes,
            "train-fraction": self.train_fraction,
        }


def by_source_part(samples: Samples) -> tuple[Samples, Samples]:
    """Return the samples of the source's training part and of its test part."""
    test = samples.dataset.test
    if test is None or not test[samples.indices].any():
        raise SettingsError("test-every: the dataset has no test part of its own", "test-every")
    of_test = test[samples.indices]
    return samples.take(np.flatnonzero(~of_test)), samples.take(np.flatnonzero(of_test))


def hash_of_samples(held: Sequence[Samples]) -> str:
    """Return a hash of which samples with which labels are whose, and of some of their inputs."""
    made = hashlib.sha256()
    for samples in held:
        made.update(samples.indices.tobytes() + samples.labels.tobytes())
        some = np.linspace(0, len(samples) - 1, min(len(samples), _FINGERPRINT)).astype(np.int64)
        inputs, _ = samples.batch(some, torch.device("cpu"))
        made.update(as_array(inputs.contiguous(), "an input").tobytes())
    return made.hexdigest()


def abridged(names: Sequence[str]) -> str:
    """Return the first five names, and whether there are more."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
