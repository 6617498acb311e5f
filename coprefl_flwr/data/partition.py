"""Partition samples over clients, with a partitioner of Flower Datasets or a user's function."""

import copy
import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Union, cast

import numpy as np
import numpy.typing as npt

from coprefl_flwr import plugins, seeds
from coprefl_flwr.data.dataset import ImageDataset, Rows, Samples
from coprefl_flwr.errors import SettingsError, check_name, one_line, unknown
from coprefl_flwr.named import parsed, split_options
from coprefl_flwr.options import Checked, option

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Scheme = Union[str, Callable[..., Any], "Partitioner"]
"""How to partition samples over clients: a name, a function, or a flwr-datasets partitioner."""

NATURAL = "natural"
_ALIASES = {
    "iid": "IidPartitioner",
    "dirichlet": "DirichletPartitioner:shuffle=false",
    # Unlike the mode "random", this mode uses every class if there are enough clients.
    "pathological": (
        "PathologicalPartitioner:shuffle=false,class_assignment_mode=first-deterministic"
    ),
    "linear": "LinearPartitioner",
    "square": "SquarePartitioner",
    "exponential": "ExponentialPartitioner",
}
SCHEMES = (*_ALIASES, NATURAL)

MAX_DRAWS = 100
# Only these partitioners draw the clients' sizes at random, so that a new draw can help.
_RANDOM_SIZES = ("DirichletPartitioner", "PathologicalPartitioner")
_SET_BY_STUDY = ("num_partitions", "seed")
_NO_GROUPS = (
    "the dataset has no groups (writers or speakers); datasets with groups are QMNIST, an .npz "
    "with groups, and hf:NAME:groups=COLUMN; in Python groups= names them"
)
_Key = tuple[str | int, ...]
_Columns = dict[str, npt.NDArray[Any]]
"""{name of a column by which a partitioner can partition: its values (n,)}"""

TARGET_BINS = 10
"""Number of bins of the targets, with equal numbers of samples, that are used as classes."""


def partition(
    labels: npt.NDArray[Any],
    clients: int | None,
    scheme: Scheme,
    *,
    alpha: float = 0.5,
    classes_per_client: int = 2,
    seed_key: _Key = (),
    min_samples: int = 10,
    groups: Rows | None = None,
) -> list[Rows]:
    """Partition the samples 0..n-1, whose labels are `labels`, integers (n,), over `clients`.

    `labels` may also be targets that are no classes, numbers (n, *shape) (see `as_dataset`). Ten
    bins are then used as classes: the lowest tenth of the targets, and so on. For this, a target of
    several numbers is their mean, which flwr-datasets' partitioners find in the column "target".
    Equal targets are in one bin.

    Raises a SettingsError if a setting is out of range, if none of 100 draws gives every client
    `min_samples` samples, or if too few groups have `min_samples` samples.

    Parameters
    ----------
    clients : number of clients; None if `scheme` is a partitioner object, which has its own number
    scheme : the name of a scheme, a partitioner, or a function. Names are "iid" (every client gets
        the same number of samples of each class, to within one), "dirichlet" (the samples of each
        class are distributed by proportions drawn from Dirichlet(`alpha`)), "pathological" (each
        client has samples of `classes_per_client` classes), "linear", "square" and "exponential"
        (the number of samples grows with the client's number, and the classes are random), and
        "natural" (a client has the samples of one group, such as a writer). Other values are

        - the class name of a flwr-datasets partitioner, with arguments, as in
          "InnerDirichletPartitioner:partition_sizes=50,20,30,alpha=0.1". A single partition size
          holds for all clients. Defaults are the arguments `alpha` and `classes_per_client` below
        - a partitioner object of flwr-datasets. A copy of it is used, with the object's own seed.
          It partitions by the labels, or, if it is a NaturalIdPartitioner, by the groups
        - a user's function of (labels, clients, rng), or its name as "module:NAME", that returns a
          list of sample indices for each client
    alpha : concentration of the Dirichlet distribution
    classes_per_client : number of classes of each client, for "pathological"
    seed_key : key of the random numbers; for a partitioner object, the key of the random order in
        which the object is given the samples
    min_samples : each client has at least this many samples; a random partition with a smaller
        client is drawn again, and "natural" skips groups with fewer samples
    groups : integers (n,), the group of each sample

    Returns
    -------
    One sorted int64 array of sample indices per client. The arrays are disjoint, and every sample
    is in one of them, with two exceptions. "pathological" with few clients leaves out the classes
    that no client has. "natural" leaves out the groups with fewer than `min_samples` samples; of
    the others, as many as there are clients are drawn. The clients of "natural" are in the order
    of their groups' numbers.
    """
    labels, key = np.asarray(labels), (*seed_key, "partition")
    name = scheme if isinstance(scheme, str) else getattr(scheme, "__name__", type(scheme).__name__)
    among = "" if clients is None else f" among {clients} clients"
    what = f"partition '{name}' of {len(labels)} samples{among}"
    if scheme == NATURAL:
        return _by_groups(what, groups, clients, min_samples, key)
    if clients is not None and len(labels) < (needed := clients * max(min_samples, 1)):
        raise SettingsError(f"{what}: at least {needed} samples are needed, {min_samples} each")
    partitioner: Any = _partitioner_of(scheme) if isinstance(scheme, str) else scheme
    draw: Callable[[int], Iterator[Rows]] | None = None
    if hasattr(partitioner, "load_partition"):
        columns = _columns(labels) | ({} if groups is None else {"groups": groups})
        defaults = {"alpha": float(alpha), "num_classes_per_partition": classes_per_client}
        draw = _drawing(what, name, partitioner, columns, clients, defaults, key)
    arguments = (labels.copy(), clients, seeds.generator(*key))
    draws = MAX_DRAWS if getattr(partitioner, "__name__", "") in _RANDOM_SIZES else 1
    for number in range(draws):
        try:
            positions = draw(number) if draw else plugins.call(name, partitioner, arguments)
            return _checked(positions, len(labels), clients, min_samples)
        except Exception as error:  # The library and a user's code raise any type of error.
            cause = error
            if not isinstance(error, ValueError):
                break
    again = f", in each of {draws} draws" if draws > 1 and isinstance(cause, ValueError) else ""
    raise SettingsError(f"{what}: {one_line(cause)}{again}") from cause


def _columns(labels: npt.NDArray[Any]) -> _Columns:
    """Return the columns of labels: "label", and for targets without classes "target", (n,)."""
    if labels.ndim == 1 and labels.dtype.kind != "f":
        return {"label": labels}
    values = labels.reshape(len(labels), -1).mean(axis=1, dtype=np.float64)
    edges = np.quantile(values, np.arange(1, TARGET_BINS) / TARGET_BINS)
    return {"label": np.searchsorted(edges, values, side="right"), "target": values}


def _partitioner_of(scheme: str) -> Any:
    """Return the partitioner class of flwr-datasets, or the user's function, called `scheme`."""
    _import_without_plots()
    place = _ALIASES.get(scheme, scheme)
    if not plugins.is_place("partition", place):
        known = [*SCHEMES, *plugins.brought("partition")]
        raise SettingsError(f"{unknown('partition', scheme, known)} (or module:NAME)")
    return plugins.find("partition", place)


def _import_without_plots() -> None:
    """Import flwr_datasets; its plots, and seaborn and pyplot with them, are imported when used."""
    # These libraries take 1.5 s and 85 MiB in each process that has clients (docs/upstream.md).
    name = "flwr_datasets.visualization"
    if "flwr_datasets" not in sys.modules:
        plots: Any = ModuleType(name)
        plots.__getattr__ = lambda attribute: getattr(importlib.import_module(name), attribute)
        sys.modules[name] = plots
        importlib.import_module("flwr_datasets")
        del sys.modules[name]


def _by_groups(
    what: str, groups: Rows | None, clients: int | None, min_samples: int, key: _Key
) -> list[Rows]:
    """Draw a group of at least `min_samples` samples per client; return their sample indices.

    If `clients` is None, all groups of this size are clients.
    """
    if groups is None:
        raise SettingsError(f"{what}: {_NO_GROUPS}")
    numbers, sizes = np.unique(groups, return_counts=True)
    large = numbers[sizes >= min_samples]
    clients = max(1, len(large)) if clients is None else clients
    if len(large) < clients:
        counts = f"{len(large)} of {len(numbers)} groups have {min_samples} samples or more"
        raise SettingsError(f"{what}: only {counts}")
    drawn = seeds.generator(*key, "groups").choice(large, clients, replace=False)
    return [np.flatnonzero(groups == number) for number in np.sort(drawn)]


def _checked(positions_of_clients: Any, n: int, clients: int | None, fewest: int) -> list[Rows]:
    """Return each client's indices, sorted; ValueError if not below n, not disjoint or too few."""
    parts: list[Rows] = []
    for client, positions in enumerate(positions_of_clients):
        parts.append(np.sort(np.array(positions, dtype=np.int64)))
        if len(parts[-1]) < fewest:
            few = f"client {client} has only {len(parts[-1])} samples; {fewest} are needed"
            raise ValueError(f"{few}: use fewer clients or a smaller min-samples")
    if clients not in (None, len(parts)):
        raise ValueError(f"it returned {len(parts)} clients, but clients = {clients}")
    together = np.concatenate(parts)
    if together.min() < 0 or together.max() >= n or len(np.unique(together)) < len(together):
        raise ValueError(f"each sample index must be in 0..{n - 1}, and occur once")
    return parts


def _drawing(
    what: str,
    text: str,
    partitioner: Any,
    columns: _Columns,
    clients: int | None,
    defaults: dict[str, Any],
    key: _Key,
) -> Callable[[int], Iterator[Rows]]:
    """Return a function: number of the draw -> sample indices of each client, by a partitioner."""
    # `partitioner` is a class of flwr-datasets, or an object, which is copied. `defaults` are
    # arguments of a class; arguments in `text` replace them.
    # Imported here, because the import takes seconds.
    from datasets import Dataset
    from datasets.fingerprint import generate_random_fingerprint

    class Table(Dataset):  # type: ignore[misc]
        """A dataset that reads a column at once, and hashes no selection for its fingerprint."""

        def __getitem__(self, key: Any) -> Any:
            values = super().__getitem__(key)
            return values[:] if isinstance(key, str) else values

        def select(self, indices: Any, **options: Any) -> Any:
            fingerprint = generate_random_fingerprint()
            return super().select(indices, **{"new_fingerprint": fingerprint, **options})

    is_class = isinstance(partitioner, type)
    kind = partitioner if is_class else type(partitioner)
    name, parameters = kind.__name__, inspect.signature(kind).parameters
    # No minimum size: the library draws at most ten times until all partitions are large enough,
    # and `partition` draws more often.
    options = {"min_partition_size": 0, "num_partitions": clients, **defaults}
    options["partition_by"] = "groups" if "NaturalId" in name else "label"
    if is_class:
        options |= _options(what, _ALIASES.get(text, text), parameters, clients or 1)
    column = options["partition_by"]
    if column not in columns:
        problem = _NO_GROUPS if column == "groups" else unknown("column", column, columns)
        raise SettingsError(f"{what}: {problem}")
    columns.setdefault(str(getattr(partitioner, "_partition_by", "label")), columns[column])

    def draw(number: int) -> Iterator[Rows]:
        of_draw = (*key, number) if is_class else key
        order = seeds.generator(*of_draw, "order").permutation(len(columns["label"]))
        if text == "iid" and clients:
            order = _dealt(order, columns["label"], clients)
        arguments = {**options, "seed": seeds.integer(*of_draw)}
        accepted = {name: arguments[name] for name in arguments if name in parameters}
        instance = partitioner(**accepted) if is_class else copy.deepcopy(partitioner)
        ordered = {name: values[order] for name, values in columns.items()}
        instance.dataset = Table.from_dict({**ordered, "index": order})
        # The library warns of unused classes; the docstring of `partition` describes them.
        with warnings.catch_warnings(action="ignore"):
            num_partitions = instance.num_partitions
        for client in range(num_partitions):
            with warnings.catch_warnings(action="ignore"):
                rows = instance.load_partition(client)["index"]
            yield np.array(rows[:], dtype=np.int64)

    return draw


def _options(what: str, text: str, parameters: Iterable[str], clients: int) -> dict[str, Any]:
    """Return the arguments after a class name, as in CLASS:partition_sizes=50,20,30,alpha=0.1."""
    options = dict[str, Any]()
    allowed = [parameter for parameter in parameters if parameter not in _SET_BY_STUDY]
    _, written = split_options(text)
    for piece in re.split(r",(?=[A-Za-z][\w-]*=)", written) if written else []:
        key, _, value = piece.partition("=")
        name = key.replace("-", "_")
        check_name("option", name, allowed, what)
        values = [parsed(item) for item in value.split(",")]
        one_size = name == "partition_sizes" and len(values) == 1
        options[name] = values * clients if one_size else values if "," in value else values[0]
    return options


def _dealt(order: Rows, labels: npt.NDArray[Any], clients: int) -> Rows:
    """Reorder sample indices so that equal contiguous shards, one per client, are stratified."""
    # Class after class, the samples are dealt to the clients in turn. So every client gets the
    # same number of samples of each class, to within one. The clients' sizes are the sizes of the
    # library's contiguous shards.
    by_class = order[np.argsort(labels[order], kind="stable")]
    return np.concatenate([by_class[client::clients] for client in range(clients)])


@dataclass(frozen=True, kw_only=True)
class Spread(Checked):
    """How samples are distributed over clients."""

    clients: int | None = option(100, "clients; not set: as many as the scheme makes", minimum=1)
    partition: Scheme = "dirichlet"
    alpha: float = option(0.5, "concentration of the Dirichlet partition", above=0)
    classes_per_client: int = option(2, "classes per client; only for `pathological`", minimum=1)
    min_samples: int = option(10, "fewest samples per client", unit="samples", minimum=2)

    def over_clients(self, samples: Samples, seed: int, population: str) -> list[Samples]:
        """Partition samples; return the samples of each client of a population.

        Raises a SettingsError if the partition is impossible, or a client has too few samples.
        """
        groups, targets = samples.dataset.groups, samples.dataset.targets
        parts = partition(
            samples.labels if targets is None else targets[samples.indices].numpy(),
            self.clients,
            self.partition,
            alpha=self.alpha,
            classes_per_client=self.classes_per_client,
            seed_key=(seed, population, "partition"),
            min_samples=self.min_samples,
            groups=None if groups is None else groups[samples.indices],
        )
        return [samples.take(part) for part in parts]


# ---- samples of several sources ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Domain:
    """Samples of one image dataset, which is one of several sources."""

    name: str
    samples: Samples

    @property
    def images(self) -> ImageDataset:
        """The image dataset from which the samples are taken."""
        return cast(ImageDataset, self.samples.dataset)


def dirichlet_counts(
    domains: Sequence[Domain], even: Rows, key: _Key, *, alpha: float, min_samples: int
) -> Rows:
    """Return each client's number of training samples per class, (clients, classes), by Dirichlet.

    The total of each class over all clients equals the total in `even`, (clients, classes), which
    are the counts of an even distribution. Client i uses source i % len(domains). The counts are
    drawn again, up to 100 times, if a source has fewer samples of a class than its clients need (as
    in Office-10).
    """
    classes = even.shape[1]
    pool = np.repeat(np.arange(classes), even.sum(axis=0))
    labels = (domain.samples.labels for domain in domains)
    available = np.stack([np.bincount(column, minlength=classes) for column in labels])
    for draw in range(MAX_DRAWS):
        seed_key = (*key, "again", draw) if draw else key
        parts = partition(
            pool, len(even), "dirichlet", alpha=alpha, seed_key=seed_key, min_samples=min_samples
        )
        counts = np.stack([np.bincount(pool[part], minlength=classes) for part in parts])
        wanted = [counts[number :: len(domains)].sum(axis=0) for number in range(len(domains))]
        if (available >= np.stack(wanted)).all():
            break
    return counts


def deal(
    domains: Sequence[Domain], counts: Rows, ratio: float, key: _Key
) -> list[tuple[Samples, Samples]]:
    """Return (training samples, test samples) for each client; all of them are disjoint.

    A client's number of training samples per class is a row of `counts`, (clients, classes). Its
    number of test samples per class is `ratio` times the number of training samples. If a source
    has too few samples of a class, the ratio for this class is smaller, and is the same for all
    clients of the source. Raises a SettingsError if a source has too few training samples.
    """
    parts: list[list[list[Rows]]] = [[[], []] for _ in counts]
    for number, domain in enumerate(domains):
        clients = range(number, len(counts), len(domains))
        for label, wanted in enumerate(counts[number :: len(domains)].T):
            of_class = np.flatnonzero(domain.samples.labels == label)
            order = seeds.generator(*key, number, label).permutation(of_class)
            if wanted.sum() > len(order):
                has = f"{domain.name} has {len(order)} samples of class {label}"
                keys = ("train-per-class", "personal-clients", "personal-datasets")
                raise SettingsError(f"{has}, but its clients need {wanted.sum()}", *keys)
            remaining_ratio = (len(order) - wanted.sum()) / max(wanted.sum(), 1)
            test_counts = np.floor(wanted * min(ratio, remaining_ratio) + 1e-9).astype(np.int64)
            cuts = np.split(order, np.cumsum(np.concatenate([wanted, test_counts])))
            for position, client in enumerate(clients):
                for which in (0, 1):
                    parts[client][which].append(cuts[position + which * len(clients)])
    sources = [domains[client % len(domains)].samples for client in range(len(counts))]
    return [
        (source.take(np.sort(np.concatenate(train))), source.take(np.sort(np.concatenate(test))))
        for source, (train, test) in zip(sources, parts, strict=True)
    ]
