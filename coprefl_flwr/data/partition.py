"""Partitions of samples over clients, by the partitioners of Flower Datasets."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr import plugins, seeds
from coprefl_flwr.data.partitioners import MAX_DRAWS, NO_GROUPS, by_class, positions
from coprefl_flwr.errors import SettingsError, one_line, unknown

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

SCHEMES = ("iid", "dirichlet", "pathological", "linear", "square", "exponential", "natural")

_Positions = npt.NDArray[np.int64]
# Only these schemes draw the sizes of the clients at random: repeating the others cannot help.
_RANDOM_SIZES = ("dirichlet", "pathological")


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
    """Spread the positions of `labels`, integers (n,), over `clients`.

    Raises a SettingsError if a setting is out of range, none of 100 draws gives each client
    `min_samples`, or too few groups hold as many.

    Parameters
    ----------
    scheme : "iid" (each class spread evenly: its counts differ by at most one between clients),
        "dirichlet" (each class spread by proportions drawn from Dirichlet(`alpha`)),
        "pathological" (`classes_per_client` classes a client), "linear", "square", "exponential"
        (sizes grow with the client's number, classes are random), or "natural" (a client is a
        group, such as a writer), or a partitioner of flwr-datasets by its class, with arguments as
        in "InnerDirichletPartitioner:partition_sizes=50,20,30,alpha=0.1" (one size is that of all
        clients; without an own, alpha and the classes per client are these), or the place of a
        user's own function of (labels, clients, rng), which returns each client's positions
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
    """
    labels, key = np.asarray(labels), (*seed_key, "partition")
    if scheme not in SCHEMES:
        if not plugins.is_place("partition", scheme):
            known = [*SCHEMES, *plugins.brought("partition")]
            raise SettingsError(f"{unknown('partition', scheme, known)} (or module:NAME)")
        if hasattr(plugins.find("partition", scheme), "load_partition"):
            what = f"partition '{scheme}' of {len(labels)} samples among {clients} clients"
            columns = {"label": labels} | ({} if groups is None else {"groups": groups})
            given = {"alpha": float(alpha), "num_classes_per_partition": classes_per_client}
            fewest = max(min_samples, 1)
            return by_class(what, scheme, columns, clients, given=given, key=key, fewest=fewest)
        found = plugins.find("partition", scheme)
        return by_function(
            scheme, found, labels, clients, seed_key=seed_key, min_samples=min_samples
        )
    shape = {
        "dirichlet": f" with alpha {alpha:g}",
        "pathological": f" with {classes_per_client} classes per client",
    }.get(scheme, "")
    what = f"partition '{scheme}'{shape} of {len(labels)} samples among {clients} clients"
    if clients < 1:
        raise SettingsError(f"{what}: at least 1 is needed")
    if scheme == "natural":
        numbers = _large_groups(what, len(labels), groups, clients, min_samples)
        drawn = seeds.generator(*key, "groups").choice(numbers, clients, replace=False)
        return [np.flatnonzero(groups == number) for number in np.sort(drawn)]
    if scheme == "dirichlet" and not 0 < alpha < np.inf:
        raise SettingsError(f"{what}: alpha must be above 0")
    classes, fewest = len(np.unique(labels)), max(min_samples, 1)
    if scheme == "pathological" and not 1 <= classes_per_client <= classes:
        raise SettingsError(f"{what}: 1 to {classes} are possible, the classes there are")
    if len(labels) < clients * fewest:
        needed = f"{clients * fewest} samples are needed, {fewest} each"
        raise SettingsError(f"{what}: at least {needed}")
    draws = MAX_DRAWS if scheme in _RANDOM_SIZES else 1
    cause: ValueError | None = None
    for draw in range(draws):
        order = seeds.generator(*key, draw, "order").permutation(len(labels))
        if scheme == "iid":
            order = _dealt(order, labels, clients)
        seed = seeds.integer(*key, draw)
        try:
            partitioner = _partitioner(scheme, clients, alpha, classes_per_client, seed)
            return positions({"label": labels}, order, partitioner, clients, min_samples)
        except ValueError as error:
            # Raised by us, or by the library where a draw cannot be partitioned.
            cause = error
    other = "a larger alpha" if scheme == "dirichlet" else "another partition"
    raise SettingsError(
        f"{what}: no draw out of {draws} left each client {fewest} or more; use fewer clients, a "
        f"smaller min-samples or {other}"
    ) from cause


def by_function(
    place: str,
    function: Callable[..., Any],
    labels: npt.NDArray[Any],
    clients: int,
    *,
    seed_key: tuple[str | int, ...],
    min_samples: int = 10,
) -> list[_Positions]:
    """Return what a user's own function of (labels, clients, rng) gives, checked.

    `place` is where it was found, or its name. The rest is as in `partition`.
    """
    rng, fewest = seeds.generator(*seed_key, "partition"), max(min_samples, 1)
    given = plugins.call(place, function, (labels.copy(), clients, rng))
    what = f"partition '{place}' of {len(labels)} samples among {clients} clients"
    try:
        parts = [np.asarray(part) for part in given]
    except Exception as error:  # Whatever the user's own code raises.
        kind = type(given).__name__
        why = f"must return a list of positions for each client, not {kind}: {one_line(error)}"
        raise SettingsError(f"{what}: {why}") from error
    if len(parts) != clients:
        raise SettingsError(f"{what}: returned {len(parts)} lists of positions, one per client")
    for client, part in enumerate(parts):
        if part.ndim != 1 or not np.issubdtype(part.dtype, np.integer):
            raise SettingsError(f"{what}: client {client} must have a list of whole numbers")
        if len(part) < fewest:
            raise SettingsError(f"{what}: client {client} has {len(part)}; {fewest} are needed")
        if part.min() < 0 or part.max() >= len(labels):
            raise SettingsError(f"{what}: client {client} has positions that do not exist")
    together = np.concatenate(parts)
    if len(np.unique(together)) < len(together):
        raise SettingsError(f"{what}: some positions are given twice")
    return [np.sort(part).astype(np.int64) for part in parts]


def _large_groups(
    what: str, n: int, groups: npt.NDArray[np.int64] | None, clients: int, min_samples: int
) -> _Positions:
    """Return the numbers of the groups of n samples that are large enough to be a client."""
    if groups is None:
        raise SettingsError(f"{what}: {NO_GROUPS}")
    if len(groups) != n:
        raise SettingsError(f"{what}: there are {len(groups)} groups; one per sample is needed")
    numbers, sizes = np.unique(groups, return_counts=True)
    large: _Positions = numbers[sizes >= min_samples]
    if len(large) < clients:
        raise SettingsError(
            f"{what}: only {len(large)} of {len(numbers)} groups hold {min_samples} samples or "
            "more; use fewer clients or a smaller min-samples"
        )
    return large


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

    by_class = {"partition_by": "label", "shuffle": False, "seed": seed}
    options: dict[str, dict[str, Any]] = {
        # The library's own search for a large enough partition gives up after ten draws.
        "dirichlet": {**by_class, "alpha": float(alpha), "min_partition_size": 0},
        "pathological": {
            **by_class,
            "num_classes_per_partition": classes_per_client,
            # Unlike "random", it leaves no class out where there are enough clients.
            "class_assignment_mode": "first-deterministic",
        },
    }
    kind: type[Partitioner] = getattr(library, f"{scheme.capitalize()}Partitioner")
    return kind(num_partitions=clients, **options.get(scheme, {}))
