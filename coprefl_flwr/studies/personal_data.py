"""Who holds what in a personalised study: datasets, shifts, and features in place of images."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coprefl_flwr import seeds
from coprefl_flwr.data import ImageDataset, Samples, load_dataset, partition
from coprefl_flwr.data.features import Encoder, features_of
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import default_device
from coprefl_flwr.learning.noise import Noise
from coprefl_flwr.models.backbones import Backbone, fitted, load_backbone
from coprefl_flwr.studies.populations import ClientData
from coprefl_flwr.studies.settings import Settings, unknown

PERSONAL = "personal"
"""The population of a personalised study."""

PIXELS, SCRATCH = "pixels", "scratch"

MOST_DEALS = 100
"""How often samples are dealt anew before a dataset is said to have too few."""

_Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Domain:
    """Samples from one source."""

    name: str
    samples: Samples


def domains(settings: Settings) -> tuple[Domain, ...]:
    """Return the datasets, in the order in which they are set.

    Raises
    ------
    SettingsError
        If one cannot be had, is not of images, or has other classes than the first.
    """
    names = settings.personal_datasets.split() or [settings.dataset]
    return _domains(tuple(names), settings.data_dir, settings.image_size)


@functools.lru_cache(maxsize=4)
def _domains(names: tuple[str, ...], data_dir: str, image_size: int) -> tuple[Domain, ...]:
    found = tuple(domain for name in names for domain in _of(name, data_dir, image_size))
    first = _images(found[0])
    for domain in found[1:]:
        classes = _images(domain).classes
        same_names = sorted(classes) == sorted(first.classes)
        if len(classes) != len(first.classes) or (same_names and classes != first.classes):
            raise SettingsError(
                f"personal-datasets: {domain.name} has the classes {', '.join(classes)}; all must "
                f"have those of {found[0].name}, in their order: {', '.join(first.classes)}"
            )
    return found


def _of(name: str, data_dir: str, image_size: int) -> list[Domain]:
    """Return the domains that one entry names: a dataset, DATASET@DOMAIN, or all by DATASET@*."""
    path, at, wanted = name.rpartition("@")
    source = load_dataset(path if at else name, data_dir, image_size=image_size)
    if not isinstance(source, ImageDataset):
        raise SettingsError(f"personal-datasets: {name} is not a dataset of images")
    if not at:
        return [Domain(_short(name), _rows(source, np.arange(len(source.labels))))]
    if source.domains is None:
        raise SettingsError(f"personal-datasets: {name}: the dataset names no domains")
    known = source.domain_names
    if wanted not in ("*", *known):
        raise SettingsError(f"personal-datasets: {unknown('domain', wanted, list(known))}")
    chosen = known if wanted == "*" else (wanted,)
    of_name = {one: np.flatnonzero(source.domains == known.index(one)) for one in chosen}
    return [Domain(one, _rows(source, rows)) for one, rows in of_name.items()]


def _short(name: str) -> str:
    """Return a dataset's name as a table shows it."""
    return Path(name).stem if "/" in name or name.endswith(".npz") else name


def _rows(source: ImageDataset, rows: npt.NDArray[np.int64]) -> Samples:
    return Samples(source, rows, source.labels[rows])


def _images(domain: Domain) -> ImageDataset:
    source = domain.samples.dataset
    if not isinstance(source, ImageDataset):
        raise TypeError(f"{domain.name} is not of images")
    return source


def num_classes(settings: Settings) -> int:
    """Return how many classes there are; each dataset has them all."""
    return len(_images(domains(settings)[0]).classes)


def num_clients(settings: Settings) -> int:
    """Return how many clients a personalised study has."""
    sources = len(domains(settings))
    return settings.personal_clients or (sources if sources > 1 else 5)


def shift(settings: Settings) -> str:
    """Return how the clients differ: "feature", "label" or "both"."""
    sources = len(domains(settings))
    if settings.shift == "label" and sources > 1:
        raise SettingsError(
            f"shift = label: takes one dataset, personal-datasets has {sources}; allowed with "
            "several are feature and both"
        )
    return settings.shift or ("feature" if sources > 1 else "label")


def domain_of(settings: Settings, client: int) -> Domain:
    """Return a client's dataset: they go round."""
    sources = domains(settings)
    return sources[client % len(sources)]


def class_counts(settings: Settings) -> _Counts:
    """Return how many samples of each class a client trains on, (clients, classes) (Tables 8-10).

    Under label shift the same number in all is dealt out by Dirichlet(alpha), a class at a time,
    again where a dataset has fewer samples of a class than its clients were dealt (Office-10).
    """
    clients, classes = num_clients(settings), num_classes(settings)
    if shift(settings) == "feature":
        return np.full((clients, classes), settings.train_per_class)
    counts = _dealt_counts(settings, (settings.seed, PERSONAL))
    for attempt in range(1, MOST_DEALS):
        if _suffice(settings, counts):
            break
        counts = _dealt_counts(settings, (settings.seed, PERSONAL, "again", attempt))
    return counts


def _suffice(settings: Settings, counts: _Counts) -> bool:
    """Tell whether each dataset has the samples that its clients are to train on."""
    sources = domains(settings)
    return all(
        (np.bincount(domain.samples.labels, minlength=counts.shape[1]) >= wanted).all()
        for number, domain in enumerate(sources)
        for wanted in [counts[number :: len(sources)].sum(axis=0)]
    )


def _dealt_counts(settings: Settings, key: tuple[str | int, ...]) -> _Counts:
    clients, classes = num_clients(settings), num_classes(settings)
    pool = np.repeat(np.arange(classes), settings.train_per_class * clients)
    parts = partition(
        pool,
        clients,
        "dirichlet",
        alpha=settings.alpha,
        classes_per_client=1,
        seed_key=key,
        min_samples=settings.min_samples,
    )
    return np.stack([np.bincount(pool[part], minlength=classes) for part in parts])


def images(settings: Settings) -> tuple[ClientData, ...]:
    """Return the images that each client trains on and is tested on.

    Raises
    ------
    SettingsError
        If a dataset has too few samples of a class, or a client is left without a test sample.
    """
    return _held(_of_data(settings))


def _of_data(settings: Settings) -> Settings:
    """Return the settings without what says nothing about data or features: a key for caches."""
    return replace(settings, run_name="", output_dir="", resume=False, method="random")


@functools.lru_cache(maxsize=2)
def _held(settings: Settings) -> tuple[ClientData, ...]:
    counts = class_counts(settings)
    held: dict[int, ClientData] = {}
    sources = domains(settings)
    for number, domain in enumerate(sources):
        clients = range(number, len(counts), len(sources))
        key = (settings.seed, PERSONAL, "samples", number)
        ratio = settings.test_per_class / settings.train_per_class
        shares = dealt(domain, counts[number :: len(sources)], ratio, key)
        held |= dict(zip(clients, shares, strict=True))
    for client, data in held.items():
        if data.test is None or not len(data.test):
            raise SettingsError(
                f"train-per-class = {settings.train_per_class}: {domain_of(settings, client).name} "
                f"leaves client {client} no sample to test on"
            )
    return tuple(held[client] for client in range(len(counts)))


def dealt(
    domain: Domain, counts: _Counts, ratio: float, key: tuple[str | int, ...]
) -> list[ClientData]:
    """Deal a domain's samples out to its clients, none to two.

    Parameters
    ----------
    counts : NDArray[int64]
        How many of each class each client trains on, (clients, classes).
    ratio : float
        How many it is tested on for each of these, or fewer, in proportion, where the domain has
        not as many.
    """
    labels = domain.samples.labels
    train: list[list[npt.NDArray[np.int64]]] = [[] for _ in counts]
    test: list[list[npt.NDArray[np.int64]]] = [[] for _ in counts]
    for label in range(counts.shape[1]):
        there = seeds.generator(*key, label).permutation(np.flatnonzero(labels == label))
        wanted = counts[:, label]
        if wanted.sum() > len(there):
            raise SettingsError(
                f"{domain.name} has {len(there)} samples of class {label}, its clients are to "
                f"train on {wanted.sum()}: use fewer clients or a smaller train-per-class"
            )
        left = len(there) - wanted.sum()
        tested = np.floor(wanted * min(ratio, left / max(wanted.sum(), 1)) + 1e-9).astype(np.int64)
        ends = np.cumsum(np.concatenate([wanted, tested]))[:-1]
        parts = np.split(there[: wanted.sum() + tested.sum()], ends)
        for client in range(len(counts)):
            train[client].append(parts[client])
            test[client].append(parts[len(counts) + client])
    return [
        ClientData(*(domain.samples.take(np.sort(np.concatenate(part))) for part in both))
        for both in zip(train, test, strict=True)
    ]


@functools.lru_cache(maxsize=2)
def backbones(text: str) -> tuple[Backbone, ...]:
    """Return the frozen networks of the setting `backbones`, none for pixels and scratch."""
    names = text.split()
    if not names:
        raise SettingsError(f"backbones is empty: name some, or {PIXELS} or {SCRATCH}")
    alone = [name for name in names if name in (PIXELS, SCRATCH)]
    if alone and len(names) > 1:
        raise SettingsError(f"backbones = {text}: {alone[0]} stands alone")
    return () if alone else tuple(load_backbone(name) for name in names)


def input_shape(settings: Settings) -> tuple[int, ...]:
    """Return the shape of what is trained on: (features,), or of an image with scratch."""
    shape = _images(domains(settings)[0]).shape
    if settings.backbones.strip() == SCRATCH:
        return shape
    sizes = [backbone.size for backbone in backbones(settings.backbones)]
    return (sum(sizes) if sizes else int(np.prod(shape)),)


def encoders(settings: Settings) -> Sequence[Encoder]:
    """Return what makes features of images, each a backbone's; or their pixels, normalised."""
    found = [backbone.features for backbone in backbones(settings.backbones)]
    return found or [functools.partial(_pixels, settings)]


def _pixels(settings: Settings, batch: Tensor) -> Tensor:
    """Return images in the size of the first dataset's, normalised as those are."""
    first = _images(domains(settings)[0])
    mean, std = (values.to(batch.device)[:, None, None] for values in (first.mean, first.std))
    values = (fitted(batch, first.shape) - mean) / std
    return values if settings.backbones.strip() == SCRATCH else values.flatten(1)


def noise(settings: Settings) -> Noise | None:
    """Return the noise that is set, whatever it is laid over."""
    if not settings.noise_on:
        return None
    return Noise(kind=settings.noise_kind, scale=settings.noise_scale, share=settings.noise_share)


def client_data(settings: Settings, client: int, folder: Path) -> ClientData:
    """Return a client's features, computed unless `folder` has them; held once per process."""
    return _features(_of_data(settings), client, folder)


@functools.lru_cache(maxsize=128)
def _features(settings: Settings, client: int, folder: Path) -> ClientData:
    held = images(settings)[client]
    if held.test is None:
        raise TypeError("a client of a personalised study has test samples")
    make, device = encoders(settings), default_device()
    change = None
    added = noise(settings) if settings.noise_on == "images" else None
    if added:
        rng = seeds.generator(settings.seed, PERSONAL, client, "image-noise")
        change = functools.partial(added.on, rng=rng)
    return ClientData(
        features_of(held.train, make, device, folder / f"{client}-train.npy", change),
        features_of(held.test, make, device, folder / f"{client}-test.npy"),
    )
