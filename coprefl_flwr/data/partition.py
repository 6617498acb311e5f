"""Partitions of samples over clients: by the partitioners of Flower Datasets, or a function."""

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union, cast

import numpy as np
import numpy.typing as npt

from coprefl_flwr import plugins, seeds
from coprefl_flwr.data.dataset import ImageDataset, Rows, Samples
from coprefl_flwr.errors import SettingsError, one_line, unknown
from coprefl_flwr.named import parsed, split_options

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Scheme = Union[str, Callable[..., Any], "Partitioner"]
"""How samples are spread over clients: a text, a function, or a partitioner of flwr-datasets."""

NATURAL = "natural"
_ALIASES = {
    "iid": "IidPartitioner",
    "dirichlet": "DirichletPartitioner:shuffle=false",
    # Unlike "random", this mode leaves no class out where there are enough clients.
    "pathological": (
        "PathologicalPartitioner:shuffle=false,class_assignment_mode=first-deterministic"
    ),
    "linear": "LinearPartitioner",
    "square": "SquarePartitioner",
    "exponential": "ExponentialPartitioner",
}
SCHEMES = (*_ALIASES, NATURAL)

MAX_DRAWS = 100
# Only these draw the sizes of the clients at random: repeating the others cannot help.
_RANDOM_SIZES = ("DirichletPartitioner", "PathologicalPartitioner")
_SET_BY_STUDY = {"num_partitions": "the number of clients", "seed": "the seed of the study"}
_NO_GROUPS = (
    "the dataset does not name groups; FEMNIST in LEAF's files, a .txt of what people say, QMNIST, "
    "an .npz with groups, and hf:NAME:groups=COLUMN do"
)
_Key = tuple[str | int, ...]
_Columns = dict[str, npt.NDArray[Any]]
"""What a partitioner can partition by, each (n,)."""


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
    """Spread the positions of `labels`, integers (n,), over `clients`.

    Raises a SettingsError if a setting is out of range, none of 100 draws gives each client
    `min_samples`, or too few groups hold as many.

    Parameters
    ----------
    clients : how many; None where `scheme` is a partitioner, which has its own number
    scheme : "iid" (each class spread evenly: its counts differ by at most one between clients),
        "dirichlet" (each class spread by proportions drawn from Dirichlet(`alpha`)),
        "pathological" (`classes_per_client` classes a client), "linear", "square", "exponential"
        (sizes grow with the client's number, classes are random), or "natural" (a client is a
        group, such as a writer), or

        - a partitioner of flwr-datasets by its class, with arguments as in
          "InnerDirichletPartitioner:partition_sizes=50,20,30,alpha=0.1" (one size is that of all
          clients; alpha and the classes per client are by default these)
        - such a partitioner, which is copied: it has its own seed, and its column is the labels, or
          the groups for a NaturalIdPartitioner
        - a user's own function of (labels, clients, rng), or its place, that returns a list of
          positions for each client
    seed_key : key of the random numbers; of a partitioner, of the order in which it gets samples
    min_samples : fewest samples of a client; a partition that gives one fewer is drawn again, and
        "natural" leaves out groups with fewer
    groups : integers (n,), the group of each position

    Returns
    -------
    One sorted int64 array of positions per client. They are disjoint and together hold every
    position, with these exceptions: "pathological" with fewer clients than classes leaves out the
    classes that no client has; "natural" leaves out groups that are too small and, if there are
    more than `clients`, those that were not drawn. The clients of "natural" are in the order of
    their groups' numbers.
    """
    labels, key = np.asarray(labels), (*seed_key, "partition")
    name = scheme if isinstance(scheme, str) else getattr(scheme, "__name__", type(scheme).__name__)
    shape = {
        "dirichlet": f" with alpha {alpha:g}",
        "pathological": f" with {classes_per_client} classes per client",
    }.get(name, "")
    among = "" if clients is None else f" among {clients} clients"
    what = f"partition '{name}'{shape} of {len(labels)} samples{among}"
    if clients is not None and clients < 1:
        raise SettingsError(f"{what}: at least 1 is needed")
    if scheme == NATURAL:
        return _by_groups(what, len(labels), groups, clients or 1, min_samples, key)
    if clients is not None and len(labels) < clients * max(min_samples, 1):
        needed = f"{clients * max(min_samples, 1)} samples are needed"
        raise SettingsError(f"{what}: at least {needed}, {max(min_samples, 1)} each")
    partitioner: Any = _partitioner_of(scheme) if isinstance(scheme, str) else scheme
    draw: Callable[[int], Iterator[Rows]] | None = None
    if hasattr(partitioner, "load_partition"):
        columns = {"label": labels} | ({} if groups is None else {"groups": groups})
        defaults = {"alpha": float(alpha), "num_classes_per_partition": classes_per_client}
        draw = _drawing(what, name, partitioner, columns, clients, defaults, key)
    arguments = (labels.copy(), clients, seeds.generator(*key))
    draws = MAX_DRAWS if getattr(partitioner, "__name__", "") in _RANDOM_SIZES else 1
    for number in range(draws):
        try:
            positions = draw(number) if draw else plugins.call(name, partitioner, arguments)
            return _checked(positions, len(labels), clients, min_samples)
        except Exception as error:  # The library, and a user's own code, raise of every kind.
            cause = error
            if not isinstance(error, ValueError):
                break
    line = f"{what}: {one_line(cause)}"
    if draws > 1 and isinstance(cause, _TooFewError):
        line += f", and so in each of {draws} draws; use fewer clients, a smaller min-samples or "
        line += "a larger alpha" if "irichlet" in name else "another partition"
    raise SettingsError(line) from cause


class _TooFewError(ValueError):
    """A draw left a client with too few samples."""


def _partitioner_of(scheme: str) -> Any:
    """Return the class of flwr-datasets, or the user's own function, that a text names."""
    place = _ALIASES.get(scheme, scheme)
    if not plugins.is_place("partition", place):
        known = [*SCHEMES, *plugins.brought("partition")]
        raise SettingsError(f"{unknown('partition', scheme, known)} (or module:NAME)")
    return plugins.find("partition", place)


def _by_groups(
    what: str, n: int, groups: Rows | None, clients: int, min_samples: int, key: _Key
) -> list[Rows]:
    """Draw as many groups of n samples as there are clients, of those that are large enough."""
    if groups is None:
        raise SettingsError(f"{what}: {_NO_GROUPS}")
    if len(groups) != n:
        raise SettingsError(f"{what}: there are {len(groups)} groups; one per sample is needed")
    numbers, sizes = np.unique(groups, return_counts=True)
    large = numbers[sizes >= min_samples]
    if len(large) < clients:
        raise SettingsError(
            f"{what}: only {len(large)} of {len(numbers)} groups hold {min_samples} samples or "
            "more; use fewer clients or a smaller min-samples"
        )
    drawn = seeds.generator(*key, "groups").choice(large, clients, replace=False)
    return [np.flatnonzero(groups == number) for number in np.sort(drawn)]


def _checked(positions_of_clients: Any, n: int, clients: int | None, fewest: int) -> list[Rows]:
    """Return each client's positions, of n, sorted; ValueError if they are no partition."""
    if not isinstance(positions_of_clients, Iterable):
        kind = type(positions_of_clients).__name__
        raise ValueError(f"must return a list of sample indices for each client, not {kind}")
    parts: list[Rows] = []
    for client, positions in enumerate(positions_of_clients):
        part = np.asarray(positions)
        if part.ndim != 1 or (len(part) and not np.issubdtype(part.dtype, np.integer)):
            raise ValueError(f"client {client} must have a list of whole numbers")
        if len(part) < fewest:
            line = f"client {client} is left with {len(part)} samples; {fewest} are needed"
            raise _TooFewError(line)
        if len(part) and (part.min() < 0 or part.max() >= n):
            raise ValueError(f"client {client} has sample indices that are not in the dataset")
        parts.append(np.sort(part).astype(np.int64))
    if clients not in (None, len(parts)):
        raise ValueError(f"it makes {len(parts)} clients, and clients = {clients}")
    together = np.concatenate(parts)
    if len(np.unique(together)) < len(together):
        raise ValueError("some sample indices occur twice")
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
    """Return what draws positions by a class of flwr-datasets, or a copy of a ready partitioner.

    `defaults` are options of a class that `text` may set otherwise.
    """
    from datasets import Dataset  # Here: it takes seconds.

    is_class = isinstance(partitioner, type)
    kind = partitioner if is_class else type(partitioner)
    name, parameters = kind.__name__, inspect.signature(kind).parameters
    if name.startswith("Vertical"):
        raise SettingsError(f"{what}: it divides columns; a client here has whole samples")
    # The library's own search for a large enough partition gives up after ten draws.
    options = {"min_partition_size": 0, "num_partitions": clients, **defaults}
    options["partition_by"] = "groups" if "NaturalId" in name else "label"
    if is_class:
        options |= _options(what, _ALIASES.get(text, text), parameters, clients or 1)
    column = options["partition_by"]
    if column not in columns:
        problem = _NO_GROUPS if column == "groups" else unknown("column", column, columns)
        raise SettingsError(f"{what}: {problem}")
    columns[str(getattr(partitioner, "_partition_by", "label"))] = columns[column]

    def draw(number: int) -> Iterator[Rows]:
        of_draw = (*key, number) if is_class else key
        order = seeds.generator(*of_draw, "order").permutation(len(columns["label"]))
        if text == "iid" and clients:
            order = _dealt(order, columns["label"], clients)
        arguments = {**options, "seed": seeds.integer(*of_draw)}
        accepted = {name: arguments[name] for name in arguments if name in parameters}
        instance = partitioner(**accepted) if is_class else copy.deepcopy(partitioner)
        ordered = {name: values[order] for name, values in columns.items()}
        instance.dataset = Dataset.from_dict({**ordered, "index": order})
        # The library warns of unused classes, which `partition` documents.
        with warnings.catch_warnings(action="ignore"):
            num_partitions = instance.num_partitions
        for client in range(num_partitions):
            with warnings.catch_warnings(action="ignore"):
                rows = instance.load_partition(client)["index"]
            yield np.array(rows[:], dtype=np.int64)

    return draw


def _options(what: str, text: str, parameters: Iterable[str], clients: int) -> dict[str, Any]:
    """Return the options behind a class, such as partition_sizes=50,20,30,alpha=0.1."""
    options = dict[str, Any]()
    _, written = split_options(text)
    for piece in re.split(r",(?=[A-Za-z][\w-]*=)", written) if written else []:
        key, _, value = piece.partition("=")
        name = key.replace("-", "_")
        if name in _SET_BY_STUDY:
            raise SettingsError(f"{what}: {name} is {_SET_BY_STUDY[name]}")
        if name not in parameters:
            allowed = [parameter for parameter in parameters if parameter not in _SET_BY_STUDY]
            raise SettingsError(f"{what}: {unknown('option', name, allowed)}")
        values = [parsed(item) for item in value.split(",")]
        one_size = name == "partition_sizes" and len(values) == 1
        options[name] = values * clients if one_size else values if "," in value else values[0]
    return options


def _dealt(order: Rows, labels: npt.NDArray[Any], clients: int) -> Rows:
    """Order the positions so that equal contiguous shards, one per client, are stratified.

    Samples are dealt to the clients in turn, class after class: every client gets the same number
    of each class, to within one, and as many samples as the library's contiguous shards have.
    """
    by_class = order[np.argsort(labels[order], kind="stable")]
    return np.concatenate([by_class[client::clients] for client in range(clients)])


# ---- samples of several sources ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Domain:
    """Samples from one source, a dataset of images."""

    name: str
    samples: Samples

    @property
    def images(self) -> ImageDataset:
        """The dataset that they are samples of."""
        return cast(ImageDataset, self.samples.dataset)


def dirichlet_counts(
    domains: Sequence[Domain], even: Rows, key: _Key, *, alpha: float, min_samples: int
) -> Rows:
    """Return how many samples of each class a client trains on, (clients, classes), by Dirichlet.

    As many of each class in all as `even`, (clients, classes), has; drawn again where a source has
    fewer samples of a class than its clients need (Office-10). Client i has source i modulo their
    number.
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
    """Return each client's (training samples, test samples); no sample goes to two.

    Clients train on `counts`, (clients, classes), and are tested on `ratio` times as many of each
    class, or fewer, in proportion, where their source has not as many.
    """
    parts: list[list[list[Rows]]] = [[[], []] for _ in counts]
    for number, domain in enumerate(domains):
        clients = range(number, len(counts), len(domains))
        for label, wanted in enumerate(counts[number :: len(domains)].T):
            of_class = np.flatnonzero(domain.samples.labels == label)
            order = seeds.generator(*key, number, label).permutation(of_class)
            if wanted.sum() > len(order):
                raise SettingsError(
                    f"{domain.name} has {len(order)} samples of class {label}, its clients are to "
                    f"train on {wanted.sum()}: use fewer clients or a smaller train-per-class",
                    "train-per-class",
                    "personal-clients",
                    "personal-datasets",
                )
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
