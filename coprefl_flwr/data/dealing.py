"""Dealing out the samples of several sources: so many of each class to each client."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coprefl_flwr import seeds
from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.partition import partition
from coprefl_flwr.data.samples import Samples
from coprefl_flwr.errors import SettingsError

MOST_DEALS = 100
"""How often samples are dealt anew before a dataset is said to have too few."""
Counts = npt.NDArray[np.int64]
"""Samples by client and class, (clients, classes)."""
_Key = tuple[str | int, ...]


@dataclass(frozen=True, eq=False)
class Domain:
    """Samples from one source."""

    name: str
    samples: Samples

    @property
    def images(self) -> ImageDataset:
        """The dataset that they are samples of."""
        source = self.samples.dataset
        if not isinstance(source, ImageDataset):
            raise TypeError(f"{self.name} is not of images")
        return source


def dirichlet_counts(
    domains: Sequence[Domain], even: Counts, key: _Key, *, alpha: float, min_samples: int
) -> Counts:
    """Return how many samples of each class a client trains on, dealt by Dirichlet(alpha).

    As many of each class in all as `even` has; dealt again where a source has fewer samples of a
    class than its clients were dealt (Office-10). Client i has source i modulo their number.
    """
    classes = even.shape[1]
    pool = np.repeat(np.arange(classes), even.sum(axis=0))
    held = np.stack([np.bincount(one.samples.labels, minlength=classes) for one in domains])
    for attempt in range(MOST_DEALS):
        parts = partition(
            pool,
            len(even),
            "dirichlet",
            alpha=alpha,
            classes_per_client=1,
            seed_key=(*key, "again", attempt) if attempt else key,
            min_samples=min_samples,
        )
        counts = np.stack([np.bincount(pool[part], minlength=classes) for part in parts])
        wanted = [counts[number :: len(domains)].sum(axis=0) for number in range(len(domains))]
        if (held >= np.stack(wanted)).all():
            break
    return counts


def deal(
    domains: Sequence[Domain], counts: Counts, ratio: float, key: _Key
) -> list[tuple[Samples, Samples]]:
    """Return each client's (training samples, test samples); no sample goes to two.

    Clients train on `counts`, and are tested on `ratio` times as many of each class, or fewer, in
    proportion, where their source has not as many.
    """
    n = len(domains)
    dealt = [
        _of_domain(domain, counts[number::n], ratio, (*key, number))
        for number, domain in enumerate(domains)
    ]
    return [dealt[client % n][client // n] for client in range(len(counts))]


def _of_domain(
    domain: Domain, counts: Counts, ratio: float, key: _Key
) -> list[tuple[Samples, Samples]]:
    """Deal one source's samples out to its clients, a class at a time."""
    train: list[list[npt.NDArray[np.int64]]] = [[] for _ in counts]
    test: list[list[npt.NDArray[np.int64]]] = [[] for _ in counts]
    for label, wanted in enumerate(counts.T):
        of_class = np.flatnonzero(domain.samples.labels == label)
        there = seeds.generator(*key, label).permutation(of_class)
        if wanted.sum() > len(there):
            raise SettingsError(
                f"{domain.name} has {len(there)} samples of class {label}, its clients are to "
                f"train on {wanted.sum()}: use fewer clients or a smaller train-per-class",
                "train-per-class",
                "personal-clients",
                "personal-datasets",
            )
        left = len(there) - wanted.sum()
        tested = np.floor(wanted * min(ratio, left / max(wanted.sum(), 1)) + 1e-9).astype(np.int64)
        parts = np.split(there, np.cumsum(np.concatenate([wanted, tested])))
        for client, own in enumerate(train):
            own.append(parts[client])
            test[client].append(parts[len(counts) + client])
    taken = [domain.samples.take(np.sort(np.concatenate(own))) for own in (*train, *test)]
    return list(zip(taken[: len(counts)], taken[len(counts) :], strict=True))
