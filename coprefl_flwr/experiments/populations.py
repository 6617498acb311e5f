"""The clients of a study and what each holds: a function of the settings in every process."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coprefl_flwr import seeds
from coprefl_flwr.data import (
    Dataset,
    Samples,
    TextDataset,
    load_dataset,
    partition,
    relabel,
    split_classes,
    split_in_two,
)
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.settings import Settings

PRETRAINING = "pretrain"


@dataclass(frozen=True, eq=False)
class ClientData:
    """What one client holds; clients of the pre-training have no test samples."""

    train: Samples
    test: Samples | None = None


@dataclass(frozen=True, eq=False)
class Population:
    """A group of clients with a set of classes of their own.

    Parameters
    ----------
    classes : tuple[int, ...]
        The dataset's classes in it; a sample's label is the position of its class here.
    clients : tuple[ClientData, ...]
        By client id.
    """

    name: str
    classes: tuple[int, ...]
    clients: tuple[ClientData, ...]


def dataset(settings: Settings) -> Dataset:
    """Return the study's dataset, held once per process."""
    return load_dataset(settings.dataset, settings.data_dir)


def input_shape(settings: Settings) -> tuple[int, ...]:
    """Return the shape of one sample: (channels, height, width), or (length,) of a text."""
    return dataset(settings).shape


def class_split(settings: Settings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the classes of the pre-training and of the downstream tasks, each ascending."""
    return split_classes(
        len(dataset(settings).classes),
        downstream=settings.downstream_classes,
        pretraining=settings.pretraining_classes,
        allow_overlap=settings.allow_class_overlap,
        seed_key=(settings.seed, "class-split"),
    )


def task_name(number: int) -> str:
    """Return the population of the downstream task `number`, counted from 0."""
    return f"task-{number}"


def number_of_clients(settings: Settings, population: str) -> int:
    """Return how many clients a population has, without loading any data."""
    return settings.clients if population == PRETRAINING else settings.task_clients


def population(settings: Settings, name: str) -> Population:
    """Return the clients of "pretrain" or of "task-NUMBER".

    Raises
    ------
    SettingsError
        If the classes, the partition or a client's samples cannot be had as set.
    """
    return _population(_of_data(settings), name)


def _of_data(settings: Settings) -> Settings:
    """Return the settings without what says nothing about data: a key for caches."""
    return replace(settings, run_name="", output_dir="", resume=False, method="random")


# As many as a study has tasks and more: what is held is positions, a few kilobytes each.
@functools.lru_cache(maxsize=64)
def _population(settings: Settings, name: str) -> Population:
    return _pretraining(settings) if name == PRETRAINING else _task(settings, name)


@functools.lru_cache(maxsize=1)
def _reserve(settings: Settings) -> tuple[Samples, Samples]:
    """Return (the clients' samples of the pre-training, the server's reserve in random order)."""
    classes, _ = class_split(settings)
    everything = _of_classes(settings, classes)
    if settings.test_every:
        everything, _ = _by_source_part(everything)
    order = seeds.generator(settings.seed, PRETRAINING, "server").permutation(len(everything))
    reserved = order[: round(settings.server_reserve * len(everything))]
    kept = np.setdiff1d(np.arange(len(everything)), reserved)
    return everything.take(kept), everything.take(reserved)


def server_samples(settings: Settings) -> Samples:
    """Return the samples that the server uses, D^s: `server-share` of the pre-training's.

    A smaller share is a part of the same reserve, and the clients hold what they held (CoPreFL,
    Table 42 of the AAAI text: "keeping the configurations for clients unchanged").
    """
    clients, reserve = _reserve(_of_data(settings))
    if settings.server_share is None:
        return reserve
    used = round(settings.server_share * (len(clients) + len(reserve)))
    return reserve.take(np.arange(used))


def clients_samples(settings: Settings) -> Samples:
    """Return all that the clients of the pre-training hold, for centralised training."""
    return union([client.train for client in population(settings, PRETRAINING).clients])


def union(held: Sequence[Samples]) -> Samples:
    """Return all of the samples, which are of one dataset, in this order."""
    source = held[0].dataset
    indices = np.concatenate([samples.indices for samples in held])
    return Samples(source, indices, np.concatenate([samples.labels for samples in held]))


def samples_to_test_on(settings: Settings) -> Samples:
    """Return the dataset's own test samples of the pre-training classes.

    Raises
    ------
    SettingsError
        If the dataset has no test part.
    """
    classes, _ = class_split(settings)
    return _by_source_part(_of_classes(settings, classes))[1]


def _by_source_part(samples: Samples) -> tuple[Samples, Samples]:
    """Return the samples of the source's training part and of its test part."""
    test = samples.dataset.test
    if test is None or not test[samples.indices].any():
        raise SettingsError("test-every: the dataset has no test part of its own")
    of_test = test[samples.indices]
    return samples.take(np.flatnonzero(~of_test)), samples.take(np.flatnonzero(of_test))


def _pretraining(settings: Settings) -> Population:
    """Spread the samples of the pre-training classes over the clients, but for the reserve."""
    classes, _ = class_split(settings)
    everything, _ = _reserve(settings)
    parts = partition(
        everything.labels,
        settings.clients,
        settings.partition,
        alpha=settings.alpha,
        classes_per_client=settings.classes_per_client,
        seed_key=(settings.seed, PRETRAINING, "partition"),
        min_samples=settings.min_samples,
        groups=_groups(everything),
    )
    clients = tuple(ClientData(everything.take(part)) for part in parts)
    return Population(PRETRAINING, classes, clients)


def _task(settings: Settings, name: str) -> Population:
    """Draw a task's classes, spread their samples, and split each client's into train and test.

    All starting models meet the same tasks, since nothing here knows of them: a paired comparison.
    """
    _, downstream = class_split(settings)
    if isinstance(dataset(settings), TextDataset):
        # Windows overlap: a random test part would share most of its text with the training part.
        raise SettingsError(f"tasks = {settings.tasks}: texts have no tasks; set tasks = 0")
    if settings.task_classes > len(downstream):
        raise SettingsError(
            f"task-classes = {settings.task_classes}: there are only {len(downstream)} downstream "
            "classes"
        )
    rng = seeds.generator(settings.seed, name, "classes")
    drawn = rng.choice(len(downstream), settings.task_classes, replace=False)
    classes = tuple(sorted(downstream[position] for position in drawn))
    everything = _of_classes(settings, classes)
    parts = partition(
        everything.labels,
        settings.task_clients,
        settings.task_partition,
        alpha=settings.task_alpha,
        classes_per_client=settings.classes_per_client,
        seed_key=(settings.seed, name, "partition"),
        min_samples=settings.min_samples,
        groups=_groups(everything),
    )
    clients = []
    for client, part in enumerate(parts):
        split_rng = seeds.generator(settings.seed, name, client, "test-split")
        train, test = split_in_two(len(part), settings.task_train_fraction, split_rng)
        held = everything.take(part)
        clients.append(ClientData(held.take(train), held.take(test)))
    return Population(name, classes, tuple(clients))


def _of_classes(settings: Settings, classes: tuple[int, ...]) -> Samples:
    """Return all samples of some classes, labelled 0, 1, ... in the order of the classes."""
    source = dataset(settings)
    positions = np.flatnonzero(np.isin(source.labels, classes))
    return Samples(source, positions, relabel(source.labels[positions], classes))


def _groups(samples: Samples) -> npt.NDArray[np.int64] | None:
    """Return who each sample is from, where the dataset says so."""
    groups = samples.dataset.groups
    return None if groups is None else groups[samples.indices]
