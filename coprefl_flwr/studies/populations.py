"""The clients of a study and what each holds: a function of the settings in every process."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coprefl_flwr import seeds
from coprefl_flwr.data import (
    Dataset,
    ImageDataset,
    Samples,
    TextDataset,
    choose_classes,
    choose_domains,
    load_dataset,
    partition,
    relabel,
    split_classes,
    split_in_two,
)
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.studies.settings import Settings, training_fields

PRETRAINING = "pretrain"

_DEFAULTS = Settings()


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
        Its dataset's classes in it; a sample's label is the position of its class here.
    clients : tuple[ClientData, ...]
        By client id.
    """

    name: str
    classes: tuple[int, ...]
    clients: tuple[ClientData, ...]


def dataset(settings: Settings) -> Dataset:
    """Return the dataset of the pre-training, held once per process."""
    return _datasets(_of_data(settings))[0]


def task_dataset(settings: Settings) -> Dataset:
    """Return the dataset of the tasks: the same one, unless `task-dataset` names another.

    Its pixels are normalised as those of the pre-training, whose mean and std are part of the
    starting model: the first layer was trained on such inputs, and a federation that is given the
    model need not agree on numbers of its own. Where one has grey and the other colour images, the
    grey ones become three equal channels.
    """
    return _datasets(_of_data(settings))[1]


def input_shape(settings: Settings) -> tuple[int, ...]:
    """Return the shape of one sample: (channels, height, width), or (length,) of a text."""
    return dataset(settings).shape


def class_split(settings: Settings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the classes of the pre-training and of the downstream tasks, each ascending.

    Numbers of either's own dataset. They may be the same where datasets or domains differ.
    """
    key = (settings.seed, "class-split")
    if _has_task_dataset(settings):
        counts = [len(source.classes) for source in (dataset(settings), task_dataset(settings))]
        pretraining, downstream = settings.pretraining_classes, settings.downstream_classes
        return (
            choose_classes("pretraining-classes", pretraining, counts[0], seed_key=key),
            choose_classes("downstream-classes", downstream, counts[1], seed_key=key),
        )
    pretraining_domains, task_domains = domain_split(settings)
    apart = bool(pretraining_domains) and not set(pretraining_domains) & set(task_domains)
    return split_classes(
        len(dataset(settings).classes),
        downstream=settings.downstream_classes,
        pretraining=settings.pretraining_classes,
        allow_overlap=settings.allow_class_overlap or apart,
        seed_key=key,
    )


def domain_split(settings: Settings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the domains of the pre-training and of the tasks; () where a dataset has none."""
    names = dataset(settings).domain_names, task_dataset(settings).domain_names
    return (
        choose_domains("pretraining-domains", settings.pretraining_domains, names[0]),
        choose_domains("downstream-domains", settings.downstream_domains, names[1]),
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
    training = {name: getattr(_DEFAULTS, name) for name in training_fields()}
    training |= {"participants": 1, "min_replies": 1}
    return replace(settings, run_name="", output_dir="", resume=False, **training)


def _has_task_dataset(settings: Settings) -> bool:
    return settings.task_dataset not in ("", settings.dataset)


# What is held are views of the datasets, which are loaded once.
@functools.lru_cache(maxsize=8)
def _datasets(settings: Settings) -> tuple[Dataset, Dataset]:
    """Return the datasets of the pre-training and of the tasks, of one shape."""
    source = load_dataset(
        settings.dataset,
        settings.data_dir,
        image_size=settings.image_size,
        samples_per_class=settings.samples_per_class,
        seed=settings.seed,
    )
    names = source.domain_names
    domains = choose_domains("pretraining-domains", settings.pretraining_domains, names)
    if isinstance(source, ImageDataset) and len(domains) < len(names):
        # A held-out domain must not be known by its brightness.
        every_class = tuple(range(len(source.classes)))
        source = source.measured_on(_rows(source, every_class, domains))
    if not _has_task_dataset(settings):
        return source, source
    other = load_dataset(settings.task_dataset, settings.data_dir, image_size=settings.image_size)
    return _alike(settings, source, other)


def _alike(settings: Settings, source: Dataset, other: Dataset) -> tuple[Dataset, Dataset]:
    """Return two datasets with as many channels, the second normalised as the first."""
    names = f"task-dataset = '{settings.task_dataset}' and dataset = '{settings.dataset}'"
    if not (isinstance(source, ImageDataset) and isinstance(other, ImageDataset)):
        raise SettingsError(f"{names}: both must be images, as texts have no tasks")
    if {source.shape[0], other.shape[0]} == {1, 3}:
        source, other = source.in_colour(), other.in_colour()
    if source.shape != other.shape:
        shapes = ["x".join(map(str, one.shape)) for one in (other, source)]
        raise SettingsError(
            f"{names}: images are {shapes[0]} and {shapes[1]} (channels, height, width); set "
            "image-size to make them alike"
        )
    return source, other.normalised_as(source)


# As many as a comparison has tasks: what is held is positions, some ten kilobytes each.
@functools.lru_cache(maxsize=256)
def _population(settings: Settings, name: str) -> Population:
    return _pretraining(settings) if name == PRETRAINING else _task(settings, name)


@functools.lru_cache(maxsize=8)
def _reserve(settings: Settings) -> tuple[Samples, Samples]:
    """Return (the clients' samples of the pre-training, the server's reserve in random order)."""
    everything = _of_pretraining(settings)
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
    """Return the dataset's own test samples of the pre-training's classes and domains.

    Raises
    ------
    SettingsError
        If the dataset has no test part.
    """
    return _by_source_part(_of_pretraining(settings))[1]


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
    if isinstance(task_dataset(settings), TextDataset):
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
    _check_head(settings, classes)
    everything = _of_task(settings, classes)
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


def _check_head(settings: Settings, classes: tuple[int, ...]) -> None:
    """Raise a SettingsError if a task cannot go on with the pre-trained head."""
    pretraining, _ = class_split(settings)
    learnt = [dataset(settings).classes[number] for number in pretraining]
    found = [task_dataset(settings).classes[number] for number in classes]
    if settings.head == "keep" and found != learnt:
        raise SettingsError(
            f"head = keep: a task has {len(found)} classes ({_abridged(found)}), and the "
            f"pre-training {len(learnt)} ({_abridged(learnt)}); they must be the same"
        )


def _abridged(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _of_pretraining(settings: Settings) -> Samples:
    """Return all samples of the pre-training, labelled by the positions of their classes."""
    classes, _ = class_split(settings)
    domains, _ = domain_split(settings)
    source = dataset(settings)
    rows = np.setdiff1d(_rows(source, classes, domains), _shared_out(settings)[1])
    return Samples(source, rows, relabel(source.labels[rows], classes))


def _of_task(settings: Settings, classes: tuple[int, ...]) -> Samples:
    """Return all samples that a task of these classes uses, labelled by their positions."""
    _, domains = domain_split(settings)
    source = task_dataset(settings)
    rows = np.setdiff1d(_rows(source, classes, domains), _shared_out(settings)[0])
    return Samples(source, rows, relabel(source.labels[rows], classes))


def _rows(
    source: Dataset, classes: tuple[int, ...], domains: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """Return the positions of all samples of some classes, in some domains if there are any."""
    chosen = np.isin(source.labels, classes)
    if source.domains is not None:
        chosen &= np.isin(source.domains, domains)
    return np.flatnonzero(chosen)


def _shared_out(settings: Settings) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return which samples of the classes of both phases are only the pre-training's or a task's.

    Both are empty where `task-reserve` is 0: what both want, both have.
    """
    pretraining, downstream = class_split(settings)
    domains = tuple(set.intersection(*map(set, domain_split(settings))))
    none = np.empty(0, dtype=np.int64)
    kept, given = [none], [none]
    if settings.task_reserve and not _has_task_dataset(settings):
        for number in sorted(set(pretraining) & set(downstream)):
            rows = _rows(dataset(settings), (number,), domains)
            if not len(rows):
                continue  # The phases have domains of their own.
            rng = seeds.generator(settings.seed, "task-reserve", number)
            of_tasks, others = split_in_two(len(rows), settings.task_reserve, rng)
            kept.append(rows[others])
            given.append(rows[of_tasks])
    return np.concatenate(kept), np.concatenate(given)


def _groups(samples: Samples) -> npt.NDArray[np.int64] | None:
    """Return who each sample is from, where the dataset says so."""
    groups = samples.dataset.groups
    return None if groups is None else groups[samples.indices]
