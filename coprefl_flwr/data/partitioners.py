"""The partitioners of Flower Datasets: those of our schemes, by their class, or ready-made."""

import copy
import inspect
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr import plugins, seeds
from coprefl_flwr.errors import SettingsError, one_line, unknown
from coprefl_flwr.named import parsed, split_options

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Positions = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]
"""What a partitioner can partition by, each (n,)."""

MAX_DRAWS = 100
# Only these draw the sizes of the clients at random: repeating the others cannot help.
_RANDOM_SIZES = ("DirichletPartitioner", "PathologicalPartitioner")
_OURS = {"num_partitions": "the number of clients", "seed": "the seed of the study"}
_NO_TEXT = ("distribution_array", "partition_id_to_size_fn")
NO_GROUPS = (
    "the dataset does not name groups; FEMNIST in LEAF's files, a .txt of what people say, QMNIST, "
    "an .npz with groups, and hf:NAME:groups=COLUMN do"
)


class TooFewError(ValueError):
    """A draw left a client with too few samples."""


def by_class(
    what: str,
    text: str,
    columns: Columns,
    clients: int,
    *,
    given: dict[str, Any],
    key: tuple[str | int, ...],
    fewest: int,
) -> list[Positions]:
    """Partition by a class of flwr-datasets, named with its arguments as `text`.

    `columns` are label and, if there are any, groups. The number of clients, the seed, and what is
    `given` and not named, are filled in where the class takes them.
    """
    kind = plugins.find("partition", text)
    _check_whole(what, kind.__name__)
    takes = inspect.signature(kind).parameters
    options = _options(what, text, list(takes), clients)
    by = "groups" if "NaturalId" in kind.__name__ else "label"
    options = {"partition_by": by, "min_partition_size": 0, **given} | options
    if options["partition_by"] == "groups" and "groups" not in columns:
        raise SettingsError(f"{what}: {NO_GROUPS}")
    if "partition_by" in takes and options["partition_by"] not in columns:
        raise SettingsError(f"{what}: {unknown('column', options['partition_by'], columns)}")
    draws = MAX_DRAWS if kind.__name__ in _RANDOM_SIZES else 1
    cause: TooFewError | None = None
    for draw in range(draws):
        own = {**options, "num_partitions": clients, "seed": seeds.integer(*key, draw)}
        partitioner = _made(what, kind, {name: own[name] for name in takes if name in own})
        order = seeds.generator(*key, draw, "order").permutation(len(columns["label"]))
        try:
            return _checked(what, partitioner, columns, order, clients, fewest)
        except TooFewError as error:
            cause = error
    often = f", and so in each of {draws} draws" if draws > 1 else ""
    raise SettingsError(f"{what}: {cause}; {fewest} are needed{often}") from cause


def partition_with(
    partitioner: "Partitioner",
    labels: npt.NDArray[Any],
    *,
    seed_key: tuple[str | int, ...] = (),
    groups: npt.NDArray[np.int64] | None = None,
    min_samples: int = 1,
) -> list[Positions]:
    """Partition by a ready-made partitioner of flwr-datasets, which stays as it is.

    It has its own number of clients and its own seed; `seed_key` draws the order in which it is
    given the samples, as a FederatedDataset shuffles them. Whatever column it partitions by is
    taken to be the labels (n,), or the `groups` (n,) of a NaturalIdPartitioner and its like.

    Returns one sorted int64 array of positions per client, disjoint. Raises a SettingsError for
    whatever the library raises, and if a client has fewer than `min_samples`.
    """
    kind = type(partitioner).__name__
    what = f"partitioner {kind} of {len(labels)} samples"
    if not hasattr(partitioner, "load_partition"):
        raise SettingsError(f"{what}: it is no partitioner of flwr-datasets")
    _check_whole(what, kind)
    if partitioner.is_dataset_assigned():
        raise SettingsError(f"{what}: it was given a dataset already; make a new one")
    columns: Columns = {"label": np.asarray(labels)}
    if groups is not None:
        columns["groups"] = groups
    by = str(getattr(partitioner, "_partition_by", "label"))
    if "NaturalId" in kind:
        if groups is None:
            raise SettingsError(f"{what}: {NO_GROUPS}")
        columns[by] = groups
    order = seeds.generator(*seed_key, "partition", "order").permutation(len(labels))
    columns = {by: columns["label"], **columns}
    try:
        return _checked(what, copy.deepcopy(partitioner), columns, order, None, max(min_samples, 1))
    except TooFewError as error:
        raise SettingsError(f"{what}: {error}; {max(min_samples, 1)} are needed") from error


def positions(
    columns: Columns, order: Positions, partitioner: "Partitioner", clients: int, fewest: int
) -> list[Positions]:
    """Partition the positions in this order; TooFewError if a client has too few samples."""
    from datasets import Dataset

    if not partitioner.is_dataset_assigned():
        ordered = {name: column[order] for name, column in columns.items()}
        partitioner.dataset = Dataset.from_dict({**ordered, "index": order})
    parts: list[Positions] = []
    with warnings.catch_warnings():
        # The library warns of unused classes, which `partition` documents.
        warnings.simplefilter("ignore")
        for client in range(clients):
            rows = partitioner.load_partition(client)["index"]
            parts.append(np.sort(np.array(rows[:], dtype=np.int64)))
            if len(parts[-1]) < fewest:
                raise TooFewError(f"client {client} is left with {len(parts[-1])} samples")
    return parts


def _checked(
    what: str,
    partitioner: "Partitioner",
    columns: Columns,
    order: Positions,
    clients: int | None,
    fewest: int,
) -> list[Positions]:
    """Return `positions`, for as many clients as the partitioner makes."""
    try:
        made = _clients_of(partitioner, columns, order)
        if clients in (None, made):
            return positions(columns, order, partitioner, made, fewest)
    except TooFewError:
        raise
    except Exception as error:  # The library raises of every kind.
        raise SettingsError(f"{what}: {one_line(error)}") from error
    raise SettingsError(f"{what}: it makes {made} clients; set that many")


def _clients_of(partitioner: "Partitioner", columns: Columns, order: Positions) -> int:
    """Give a partitioner its samples, and return how many clients it makes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        positions(columns, order, partitioner, 0, 0)
        return int(partitioner.num_partitions)


def _check_whole(what: str, kind: str) -> None:
    if kind.startswith("Vertical"):
        raise SettingsError(f"{what}: it divides columns; a client here has whole samples")


def _made(what: str, kind: Any, options: dict[str, Any]) -> "Partitioner":
    """Make a partitioner, or say what it lacks."""
    for name, one in inspect.signature(kind).parameters.items():
        if one.default is one.empty and name not in options:
            example = f"{kind.__name__}:{name}=VALUE"
            how = f"it needs {name}: write {example}"
            if name in _NO_TEXT:
                how = (
                    f"{name} cannot be written in a setting; use a function of your own, FILE:NAME"
                )
            raise SettingsError(f"{what}: {how}")
    try:
        made: Partitioner = kind(**options)
    except Exception as error:  # The library raises of every kind.
        raise SettingsError(f"{what}: {one_line(error)}") from error
    return made


def _options(what: str, text: str, known: list[str], clients: int) -> dict[str, Any]:
    """Return the options behind a class: what follows a comma without a key continues a list."""
    _, written = split_options(text)
    found: dict[str, list[Any]] = {}
    for piece in written.split(",") if written else []:
        key, equals, value = piece.partition("=")
        name = key.replace("-", "_") if equals else (list(found) or [""])[-1]
        if name in _OURS:
            raise SettingsError(f"{what}: {name} is {_OURS[name]}")
        if name not in known or name in _NO_TEXT:
            allowed = [one for one in known if one not in (*_OURS, *_NO_TEXT)]
            raise SettingsError(f"{what}: {unknown('option', name, allowed)}")
        found.setdefault(name, []).append(parsed(value if equals else piece))
    options = {name: one if len(one) > 1 else one[0] for name, one in found.items()}
    if "partition_sizes" in options and not isinstance(options["partition_sizes"], list):
        options["partition_sizes"] = [options["partition_sizes"]] * clients
    return options
