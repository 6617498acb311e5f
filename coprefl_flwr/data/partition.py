"""Partitions of samples over clients, by the partitioners of Flower Datasets."""

import functools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr import seeds
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.options import unknown

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

SCHEMES = ("iid", "dirichlet", "pathological", "linear", "square", "exponential", "natural")

_Positions = npt.NDArray[np.int64]
# Only these schemes draw the sizes of the clients at random: repeating the others cannot help.
_RANDOM_SIZES = ("dirichlet", "pathological")
_MAX_DRAWS = 100


def partition(
    labels: npt.NDArray[Any],
    clients: int,
    scheme: str,
    *,
    alpha: float,
    classes_per_client: int,
    seed_key: tuple[str | int, ...],
    min_samples: int = 10,
    groups: npt.NDArray[np.int64] | None = None,
) -> list[_Positions]:
    """Spread the positions of `labels` over `clients`.

    Parameters
    ----------
    labels : integers (n,)
    scheme : "iid" (each class spread evenly: its counts differ by at most one between clients),
        "dirichlet" (each class spread by proportions drawn from Dirichlet(`alpha`)),
        "pathological" (`classes_per_client` classes a client), "linear", "square", "exponential"
        (sizes grow with the client's number, classes are random), or "natural" (a client is a
        group, such as a writer)
    seed_key : key of the random numbers
    min_samples : fewest samples of a client; a partition that gives one fewer is drawn again, and
        "natural" leaves out groups with fewer
    groups : integers (n,), the group of each position, for "natural"

    Returns
    -------
    One sorted int64 array of positions per client. They are disjoint and together hold every
    position, with two exceptions: "pathological" with fewer clients than classes leaves out the
    classes that no client was given; "natural" leaves out groups that are too small and, if there
    are more than `clients`, those that were not drawn. The clients of "natural" are in the order of
    their groups' numbers.

    Raises
    ------
    SettingsError
        If a setting is out of range, none of 100 draws gives each client `min_samples`, or too few
        groups hold as many.
    """
    labels, key = np.asarray(labels), (*seed_key, "partition")
    if scheme not in SCHEMES:
        raise SettingsError(unknown("partition", scheme, SCHEMES))
    if clients < 1:
        raise SettingsError(f"partition among {clients} clients: at least 1 is needed")
    if scheme == "natural":
        return _natural(len(labels), groups, clients, key, min_samples)
    _check(labels, clients, scheme, alpha, classes_per_client, min_samples)
    draws = _MAX_DRAWS if scheme in _RANDOM_SIZES else 1
    cause: ValueError | None = None
    for draw in range(draws):
        rng, seed = seeds.generator(*key, draw, "order"), seeds.integer(*key, draw)
        order = rng.permutation(len(labels))
        if scheme == "iid":
            order = _dealt(order, labels, clients)
        try:
            partitioner = _partitioner(scheme, clients, alpha, classes_per_client, seed)
            return _parts(labels, order, partitioner, clients, min_samples)
        except ValueError as error:
            # Raised by us, or by the library where a draw cannot be partitioned.
            cause = error
    shape = {
        "dirichlet": f" with alpha {alpha:g}",
        "pathological": f" with {classes_per_client} classes per client",
    }
    raise SettingsError(
        f"partition '{scheme}'{shape.get(scheme, '')} of {len(labels)} samples among {clients} "
        f"clients: no draw out of {draws} left each client {max(min_samples, 1)} or more; "
        "use fewer clients, a smaller minimum"
        + (" or a larger alpha" if scheme == "dirichlet" else " or another partition")
    ) from cause


def _check(
    labels: npt.NDArray[Any],
    clients: int,
    scheme: str,
    alpha: float,
    classes_per_client: int,
    min_samples: int,
) -> None:
    if scheme == "dirichlet" and not 0 < alpha < np.inf:
        raise SettingsError(f"partition 'dirichlet' with alpha {alpha:g}: alpha must be above 0")
    classes = len(np.unique(labels))
    if scheme == "pathological" and not 1 <= classes_per_client <= classes:
        raise SettingsError(
            f"partition 'pathological' with {classes_per_client} classes per client: "
            f"1 to {classes} are possible, the classes there are"
        )
    needed = clients * max(min_samples, 1)
    if len(labels) < needed:
        raise SettingsError(
            f"partition '{scheme}' of {len(labels)} samples among {clients} clients: "
            f"at least {needed} samples are needed, {max(min_samples, 1)} each"
        )


def _natural(
    n: int,
    groups: npt.NDArray[np.int64] | None,
    clients: int,
    key: tuple[str | int, ...],
    min_samples: int,
) -> list[_Positions]:
    """Draw `clients` of the groups of n samples that are large enough: the positions of each."""
    if groups is None:
        raise SettingsError(
            "partition 'natural': the dataset does not name groups; FEMNIST in LEAF's files, a "
            ".txt of what people say, QMNIST, and an .npz with groups do"
        )
    if len(groups) != n:
        raise SettingsError(
            f"partition 'natural' of {n} samples: there are {len(groups)} groups; one "
            "number per sample is needed"
        )
    numbers, sizes = np.unique(groups, return_counts=True)
    large = numbers[sizes >= min_samples]
    if len(large) < clients:
        raise SettingsError(
            f"partition 'natural' among {clients} clients: only {len(large)} of {len(numbers)} "
            f"groups hold {min_samples} samples or more; use fewer clients or a smaller minimum"
        )
    drawn = seeds.generator(*key, "groups").choice(large, clients, replace=False)
    return [np.flatnonzero(groups == number) for number in np.sort(drawn)]


def _dealt(order: _Positions, labels: npt.NDArray[Any], clients: int) -> _Positions:
    """Order the positions so that equal contiguous shards, one per client, are stratified.

    Samples are dealt to the clients in turn, class after class: every client gets the same number
    of each class, to within one, and as many samples as the library's contiguous shards have.
    """
    by_class = order[np.argsort(labels[order], kind="stable")]
    return np.concatenate([by_class[client::clients] for client in range(clients)])


def _partitioner(
    scheme: str, clients: int, alpha: float, classes_per_client: int, seed: int
) -> "Partitioner":
    # Imported here: it takes seconds, which only programs that partition should wait for.
    from flwr_datasets import partitioner as library

    dirichlet = functools.partial(
        library.DirichletPartitioner,
        partition_by="label",
        alpha=float(alpha),
        # The library's own search for a large enough partition gives up after ten draws.
        min_partition_size=0,
        self_balancing=False,
        shuffle=False,
        seed=seed,
    )
    pathological = functools.partial(
        library.PathologicalPartitioner,
        partition_by="label",
        num_classes_per_partition=classes_per_client,
        # Unlike "random", it leaves no class out where there are enough clients.
        class_assignment_mode="first-deterministic",
        shuffle=False,
        seed=seed,
    )
    by_scheme = {
        "iid": library.IidPartitioner,
        "dirichlet": dirichlet,
        "pathological": pathological,
        "linear": library.LinearPartitioner,
        "square": library.SquarePartitioner,
        "exponential": library.ExponentialPartitioner,
    }
    made: Partitioner = by_scheme[scheme](num_partitions=clients)
    return made


def _parts(
    labels: npt.NDArray[Any],
    order: _Positions,
    partitioner: "Partitioner",
    clients: int,
    min_samples: int,
) -> list[_Positions]:
    """Partition the positions in this order; ValueError if a client has too few samples."""
    from datasets import Dataset

    partitioner.dataset = Dataset.from_dict({"label": labels[order], "index": order})
    parts: list[_Positions] = []
    with warnings.catch_warnings():
        # The library warns of unused classes, which `partition` documents.
        warnings.simplefilter("ignore")
        for client in range(clients):
            rows = partitioner.load_partition(client)["index"]
            parts.append(np.sort(np.array(rows[:], dtype=np.int64)))
            if len(parts[-1]) < min_samples:
                raise ValueError(f"client {client} is left with {len(parts[-1])} samples")
    return parts
