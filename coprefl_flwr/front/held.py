"""What the clients of a pre-training and of tasks hold, from a dataset that the caller has."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import pandas as pd
from torch import Tensor

from coprefl_flwr.data import SCHEMES, Dataset, ImageDataset, Samples, by_function, partition_with
from coprefl_flwr.data.division import Datasets, DataSettings
from coprefl_flwr.data.items import Pick
from coprefl_flwr.data.of_torch import as_dataset, as_samples, is_ours
from coprefl_flwr.errors import SettingsError, short, unknown
from coprefl_flwr.options import declared
from coprefl_flwr.studies.populations import (
    PRETRAINING,
    ClientData,
    Population,
    Populations,
    TaskSettings,
    task_name,
)
from coprefl_flwr.studies.stage import RunSettings

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Scheme = Union[str, Callable[..., Any], "Partitioner"]
"""How samples are spread over clients, as `partition` says."""

ARGUMENTS = {
    "task-train-fraction": "train_fraction",
    "downstream-classes": "only",
    "task-partition": "scheme",
    "classes-per-client": "classes_per_client",
    "task-classes": "classes",
    "task-clients": "clients",
    "server-reserve": "server_reserve",
    "min-samples": "min_samples",
    "task-alpha": "alpha",
    "tasks = ": "number = ",
}
"""What settings are called in the functions of this room, in messages."""


@dataclass(frozen=True, eq=False)
class Clients:
    """What each client of a pre-training holds; `len` is their number, `[i]` a client's samples.

    Made by `partition`, or by `pretrain` of a list of datasets, one a client.
    """

    populations: Populations
    classes: tuple[str, ...]
    """Names of the classes, in the order of their labels."""

    @functools.cached_property
    def samples(self) -> tuple[Samples, ...]:
        """Each client's samples, with labels 0..len(classes)-1."""
        return tuple(one.train for one in self.populations.population(PRETRAINING).clients)

    @property
    def server(self) -> Samples:
        """What no client holds and the server does: scenario II's D^s, `server_reserve` of all."""
        return self.populations.server_samples()

    def counts(self) -> pd.DataFrame:
        """Return how many samples of each class (a column) each client (a row) holds."""
        counted = [np.bincount(one.labels, minlength=len(self.classes)) for one in self.samples]
        return pd.DataFrame(counted, columns=list(self.classes)).rename_axis("client")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, client: int) -> Samples:
        return self.samples[client]

    def __repr__(self) -> str:
        sizes = [len(one) for one in self.samples]
        each = f"{min(sizes)} to {max(sizes)} samples each"
        return f"<{len(self)} clients, {each}, {len(self.classes)} classes>"


@dataclass(frozen=True, eq=False)
class Tasks:
    """Downstream tasks, made by `tasks`: each draws classes, and spreads their samples."""

    populations: Populations

    def __len__(self) -> int:
        return self.populations.tasks.tasks

    @property
    def classes(self) -> int:
        """How many classes a task has."""
        return self.populations.tasks.task_classes

    def __getitem__(self, number: int) -> Population:
        """Return a task: its classes, and each client's training and test samples."""
        if not 0 <= number < len(self):
            raise IndexError(f"task {number}: there are {len(self)}")
        return self.populations.population(task_name(number))

    def __repr__(self) -> str:
        clients = self.populations.tasks.task_clients
        return f"<{len(self)} tasks of {self.classes} classes and {clients} clients>"


def partition(
    dataset: Any,
    clients: int | None = None,
    scheme: "Scheme" = "dirichlet",
    *,
    alpha: float = 0.5,
    classes_per_client: int = 2,
    min_samples: int = 10,
    server_reserve: float = 0.0,
    only: Sequence[int | str] | None = None,
    relabel: bool = False,
    batch: Pick | None = None,
    seed: int = 0,
) -> Clients:
    """Spread a dataset over the clients of a pre-training.

    Parameters
    ----------
    dataset : a torch or Hugging Face Dataset, a DataLoader, or a dataset of this package
        Read once and kept in memory, so random augmentations are drawn once (see
        `coprefl_flwr.data.of_torch.as_dataset`). Bytes of images become floats in 0..1, as by
        torchvision's ToTensor; other values stay as they are.
    clients : int, optional
        How many clients; not set: 100, or as many as a ready-made partitioner makes.
    scheme : str, function, or flwr_datasets.partitioner.Partitioner
        "iid", "dirichlet" (proportions of each class drawn from Dirichlet(`alpha`)),
        "pathological" (`classes_per_client` classes a client), "natural" (a writer or speaker
        each), a class of flwr-datasets with its arguments, and others (see
        `coprefl_flwr.data.partition`); a function of (labels (n,), clients, rng) that returns a
        list of positions for each client; or a partitioner of flwr-datasets that is ready made.
    min_samples : int
        Fewest samples a client may hold.
    server_reserve : float
        Part of the samples, drawn at random, that the server holds in the clients' place.
    only : sequence of int or str, optional
        The classes that are used, by number or name; labels are then their positions in it,
        ascending. Not set: all.
    relabel : bool
        Whether labels with gaps, such as 0, 5, 10, are numbered 0, 1, 2.
    batch : function, optional
        Returns (input, label) of an item, or of a DataLoader's batch; not set: it is that pair, or
        a dict such as {"img": ..., "label": ...}.
    seed : int
        What the draws depend on; the same one gives the clients that a study of these settings has.

    Raises
    ------
    SettingsError
        If the dataset is none, or the partition cannot be had.
    """
    with as_arguments(ARGUMENTS):
        settings = DataSettings(
            clients=100 if clients is None else clients,
            partition=_text(scheme),
            alpha=alpha,
            classes_per_client=classes_per_client,
            min_samples=min_samples,
            server_reserve=server_reserve,
        )
        datasets = _Given.of(dataset, settings, seed, only, relabel, batch)
        spread = _Spread(settings, TaskSettings(tasks=0), seed, datasets, scheme, clients)
        made = Clients(spread, tuple(datasets.source.classes[n] for n in datasets.only))
        # A ready-made partitioner makes as many as it was made for.
        spread.data = replace(settings, clients=len(made))
    return made


def tasks(
    dataset: Any,
    number: int = 3,
    classes: int = 5,
    clients: int = 10,
    scheme: "Scheme" = "dirichlet",
    *,
    alpha: float = 0.5,
    classes_per_client: int = 2,
    min_samples: int = 10,
    train_fraction: float = 0.8,
    only: Sequence[int | str] | None = None,
    relabel: bool = False,
    batch: Pick | None = None,
    seed: int = 0,
) -> Tasks:
    """Draw downstream tasks from a dataset.

    A task draws so many `classes` of the dataset, or of `only`, spreads their samples over its
    `clients`, and splits those of each: `train_fraction` to train on, the rest to be tested on. The
    other parameters are as in `partition`.

    Raises a SettingsError if a task cannot be had so.
    """
    with as_arguments(ARGUMENTS):
        if number == 0:
            raise SettingsError("number = 0: at least one task is needed")
        settings = DataSettings(classes_per_client=classes_per_client, min_samples=min_samples)
        of_tasks = TaskSettings(
            tasks=number,
            task_classes=classes,
            task_clients=clients,
            task_partition=_text(scheme),
            task_alpha=alpha,
            task_train_fraction=train_fraction,
        )
        datasets = _Given.of(dataset, settings, seed, only, relabel, batch)
        made = Tasks(_Spread(settings, of_tasks, seed, datasets, scheme, clients))
        for one in range(number):
            made.populations.population(task_name(one))
    return made


def clients_of(given: Any) -> Clients:
    """Return clients as they are given: those of `partition`, or a dataset for each.

    Raises a SettingsError for anything else.
    """
    if isinstance(given, Clients):
        return given
    if not isinstance(given, Sequence) or isinstance(given, str) or not len(given):
        kind = type(given).__name__
        wanted = "those that cp.partition(dataset, clients=N) makes, or a list of datasets"
        raise SettingsError(f"clients are {kind}; allowed are {wanted}, one a client")
    held = [as_samples(f"clients[{number}]", one) for number, one in enumerate(given)]
    # No client need have them all, so they are called by their labels.
    classes = tuple(range(1 + max(int(one.labels.max()) for one in held)))
    settings = DataSettings(clients=len(held), server_reserve=0.0)
    datasets = _Given(settings, 0, held[0].dataset, classes)
    populations = Populations(settings, TaskSettings(tasks=0), 0, datasets)
    everyone = Population(PRETRAINING, classes, tuple(map(ClientData, held)))
    return Clients(populations.holding(everyone), tuple(map(str, classes)))


@dataclass(frozen=True)
class _Given(Datasets):
    """A dataset that is there already, for the one phase that it is given to."""

    source: Dataset
    only: tuple[int, ...]

    @classmethod
    def of(
        cls,
        given: Any,
        settings: DataSettings,
        seed: int,
        only: Sequence[int | str] | None,
        relabel: bool,
        batch: Pick | None,
    ) -> "_Given":
        declared(RunSettings)["seed"].checked(seed, "seed")
        source = _in_memory(given, relabel, batch)
        return cls(settings, seed, source, _chosen(source.classes, only))

    @property
    def loaded(self) -> tuple[Dataset, Dataset]:
        """The dataset, in the place of both phases'."""
        return self.source, self.source

    @property
    def classes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Its classes, in the place of both phases'."""
        return self.only, self.only

    @property
    def class_names(self) -> list[str]:
        """The names of its classes; of labels that only other clients have, the labels."""
        names = self.source.classes
        return [names[n] if n < len(names) else str(n) for n in self.only]


class _Spread(Populations):
    """Clients among whom a function or a partitioner, if one is given, spreads the samples.

    `wanted` is the number of clients that was asked for, None for as many as it makes.
    """

    def __init__(
        self,
        data: DataSettings,
        tasks: TaskSettings,
        seed: int,
        datasets: Datasets,
        scheme: "Scheme",
        wanted: int | None,
    ) -> None:
        super().__init__(data, tasks, seed, datasets)
        self.scheme, self.wanted = scheme, wanted

    def spread(
        self, samples: Samples, name: str, clients: int, scheme: str, alpha: float
    ) -> list[Samples]:
        own, key, fewest = self.scheme, (self.seed, name, "partition"), self.data.min_samples
        if isinstance(own, str):
            return super().spread(samples, name, clients, scheme, alpha)
        if _is_partitioner(own):
            groups = samples.dataset.groups
            of_each = None if groups is None else groups[samples.indices]
            parts = partition_with(
                own, samples.labels, seed_key=key, groups=of_each, min_samples=fewest
            )
            if self.wanted not in (None, len(parts)):
                made = f"{type(own).__name__} makes {len(parts)} clients"
                raise SettingsError(f"scheme: {made}, and clients = {self.wanted}")
        else:
            what = getattr(own, "__name__", type(own).__name__)
            parts = by_function(
                what, own, samples.labels, clients, seed_key=key, min_samples=fewest
            )
        return [samples.take(part) for part in parts]


def _is_partitioner(given: Any) -> bool:
    """Return whether something is a partitioner of flwr-datasets, or a class of such."""
    return hasattr(given, "load_partition")


def _text(scheme: "Scheme") -> str:
    """Return a scheme that is a text; in the place of others "iid", which nothing is asked of.

    Raises a SettingsError for what can be no scheme.
    """
    if isinstance(scheme, str):
        return scheme
    if isinstance(scheme, type):
        name = scheme.__name__
        how = f"make one of it, or write '{name}'" if _is_partitioner(scheme) else "call it"
        raise SettingsError(f"scheme is the class {name}: {how}")
    if not callable(scheme) and not _is_partitioner(scheme):
        allowed = f"a text ({', '.join(SCHEMES)}), a function or a partitioner of flwr-datasets"
        raise SettingsError(f"scheme is of type {type(scheme).__name__}; needed is {allowed}")
    return "iid"


def _in_memory(given: Any, relabel: bool, batch: Pick | None) -> Dataset:
    """Return what was given as a dataset of this package, images of bytes as floats in 0..1.

    So a module that was trained here takes what the caller's own loaders give.
    """
    if isinstance(given, str):
        how = f"load it, as in cp.load_dataset({short(repr(given))})"
        raise SettingsError(f"dataset is a text: {how}")
    if isinstance(given, type):
        raise SettingsError(f"dataset is the class {given.__name__}: make one of it")
    if isinstance(given, Clients | Tasks | Samples):
        problem = f"dataset is of type {type(given).__name__}, which was made of a dataset"
        raise SettingsError(f"{problem}; give the dataset itself")
    arrays = isinstance(given, tuple) and all(isinstance(one, Tensor | np.ndarray) for one in given)
    if arrays or isinstance(given, Tensor | np.ndarray):
        how = "torch.utils.data.TensorDataset(inputs, labels), both tensors"
        raise SettingsError(f"dataset is of type {type(given).__name__}: write {how}")
    found = as_dataset("dataset", given, relabel, batch=batch)
    return found.unscaled() if isinstance(found, ImageDataset) and not is_ours(given) else found


def _chosen(names: Sequence[str], only: Sequence[int | str] | None) -> tuple[int, ...]:
    """Return numbers of classes, ascending; all if none are named."""
    if only is None:
        return tuple(range(len(names)))
    if isinstance(only, str) or not isinstance(only, Iterable):
        raise SettingsError(f"only = {short(repr(only))}: must be a list of numbers or names")
    found = set()
    for one in [one.item() if isinstance(one, Tensor) else one for one in only]:
        if not isinstance(one, str | Integral):
            raise SettingsError(f"only: {short(repr(one))}: must be a whole number or a name")
        known = one in names if isinstance(one, str) else 0 <= one < len(names)
        if not known:
            line = unknown("class", one, names) if isinstance(one, str) else f"class {one}"
            raise SettingsError(f"only: {line}; classes are 0..{len(names) - 1}")
        found.add(names.index(one) if isinstance(one, str) else int(one))
    if not found:
        raise SettingsError("only = []: at least one class is needed")
    return tuple(sorted(found))


@contextmanager
def as_arguments(names: Mapping[str, str]) -> Iterator[None]:
    """Have errors call settings as the arguments are called."""
    try:
        yield
    except SettingsError as error:
        line = str(error)
        for setting, argument in sorted(names.items(), key=lambda one: -len(one[0])):
            line = line.replace(setting, argument).replace(setting.replace("-", "_"), argument)
        raise SettingsError(line) from error
