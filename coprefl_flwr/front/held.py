"""`partition` and `tasks`: the clients of a pre-training and of tasks, of a dataset in memory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from torch import Tensor

from coprefl_flwr.data import (
    SCHEMES,
    Dataset,
    DataSettings,
    ImageDataset,
    Samples,
    as_dataset,
    as_samples,
)
from coprefl_flwr.data import relabel as relabelled
from coprefl_flwr.data.partition import Scheme
from coprefl_flwr.data.user_data import Pick
from coprefl_flwr.errors import SettingsError, short, unknown
from coprefl_flwr.options import declared
from coprefl_flwr.studies.populations import Clients, Tasks
from coprefl_flwr.studies.sources import Source, Spread
from coprefl_flwr.studies.stage import RunSettings
from coprefl_flwr.studies.task_settings import TaskSettings


@dataclass(frozen=True, eq=False)
class LoadedSource(Source):
    """A dataset in memory, and the classes of it that are used."""

    loaded: Dataset
    used: tuple[int, ...]
    in_memory = True

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
        """Return the number of samples and the classes: clients' samples say the rest."""
        return {"samples": len(self.loaded.labels), "classes": self.used}


def partition(
    dataset: Any,
    clients: int | None = None,
    scheme: Scheme = "dirichlet",
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
        `coprefl_flwr.data.as_dataset`). Bytes of images become floats in 0..1, as by
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
    check("server-reserve", server_reserve, "server_reserve")
    check("seed", seed, "seed")
    spread = Spread(
        clients=clients if _is_partitioner(scheme) or clients is not None else 100,
        scheme=_checked_scheme(scheme),
        alpha=alpha,
        classes_per_client=classes_per_client,
        min_samples=min_samples,
    )
    source = _source(dataset, relabel, only, batch)
    made = Clients(source, spread, seed, server_reserve=server_reserve)
    _ = made.population  # What cannot be spread so is refused here.
    return made


def tasks(
    dataset: Any,
    number: int = 3,
    classes: int = 5,
    clients: int = 10,
    scheme: Scheme = "dirichlet",
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
    if number == 0:
        raise SettingsError("number = 0: at least one task is needed")
    check("tasks", number, "number")
    check("task-classes", classes, "classes")
    check("task-train-fraction", train_fraction, "train_fraction")
    check("seed", seed, "seed")
    spread = Spread(
        clients=clients,
        scheme=_checked_scheme(scheme),
        alpha=alpha,
        classes_per_client=classes_per_client,
        min_samples=min_samples,
    )
    source = _source(dataset, relabel, only, batch)
    made = Tasks(source, number, classes, spread, train_fraction, seed)
    for task in range(number):
        _ = made[task]
    return made


def check(key: str, value: Any, name: str) -> Any:
    """Return the value of an argument as the setting of this key allows it.

    Raises a SettingsError in which the argument has its own name.
    """
    for group in (DataSettings, TaskSettings, RunSettings):
        if key in declared(group):
            return declared(group)[key].checked(value, name)
    raise KeyError(key)


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
    return Clients.holding(LoadedSource(held[0].dataset, classes), held)


def _source(
    given: Any, relabel: bool, only: Sequence[int | str] | None, batch: Pick | None
) -> LoadedSource:
    loaded = _in_memory(given, relabel, batch)
    return LoadedSource(loaded, _chosen(loaded.classes, only))


def _is_partitioner(scheme: Any) -> bool:
    """Return whether something is a partitioner of flwr-datasets, or a class of such."""
    return hasattr(scheme, "load_partition")


def _checked_scheme(scheme: Scheme) -> Scheme:
    """Return a scheme, or raise a SettingsError for what can be none."""
    if isinstance(scheme, type):
        name = scheme.__name__
        how = f"make one of it, or write '{name}'" if _is_partitioner(scheme) else "call it"
        raise SettingsError(f"scheme is the class {name}: {how}")
    if not (isinstance(scheme, str) or callable(scheme) or _is_partitioner(scheme)):
        allowed = f"a text ({', '.join(SCHEMES)}), a function or a partitioner of flwr-datasets"
        raise SettingsError(f"scheme is of type {type(scheme).__name__}; needed is {allowed}")
    return scheme


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
    if isinstance(found, ImageDataset) and not isinstance(given, Dataset):
        return found.unscaled()
    return found


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
