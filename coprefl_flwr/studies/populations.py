"""The clients of a study and their samples. Every process computes the same partition."""

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from coprefl_flwr import seeds
from coprefl_flwr.data import ClientData, Dataset, DataSettings, Samples, as_samples
from coprefl_flwr.data.inputs import tensors_of
from coprefl_flwr.data.partition import Spread
from coprefl_flwr.data.splits import part_of, split_in_two, task_labels
from coprefl_flwr.data.user_data import training_dataset
from coprefl_flwr.errors import SettingsError, about_settings, excerpt, logger, unknown, wrong_type
from coprefl_flwr.learning.evaluation import EVALUATION_BATCH
from coprefl_flwr.models import as_array
from coprefl_flwr.options import Checked, same_option
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.hashes import content_hashes

PRETRAIN = "pretrain"
"""Name of the population of the pre-training."""


class Source(ABC):
    """The dataset of a phase, with the classes and samples that the phase uses."""

    dataset: Dataset
    """The whole dataset."""
    classes: tuple[int, ...]
    """The indices of the phase's classes in the dataset, ascending."""

    @property
    def class_names(self) -> list[str]:
        """The names of the phase's classes; the index for a class that the dataset lacks."""
        names = self.dataset.classes
        return [names[n] if n < len(names) else str(n) for n in self.classes]

    @abstractmethod
    def samples(self, classes: tuple[int, ...]) -> Samples:
        """Return all samples of these classes; a label is the class's position in `classes`."""

    def identity(self) -> Mapping[str, Any] | None:
        """Return the values that determine the samples: equal identities mean equal samples.

        It is None if a program gave the dataset as an object. Only its content then identifies it.
        """
        return None


@dataclass(frozen=True, eq=False)
class LoadedSource(Source):
    """A dataset in memory, with the classes that are used.

    Parameters
    ----------
    dataset : Dataset
        The dataset.
    classes : tuple of int
        The indices of the used classes, ascending.
    """

    dataset: Dataset
    classes: tuple[int, ...]

    @classmethod
    def of(
        cls, dataset: Any, only: Sequence[int | str] | None = None, **how: Any
    ) -> "LoadedSource":
        """Return the source of a dataset that a program gives; `how` are options of `as_dataset`.

        Images of dtype uint8 become floats in 0..1 without further normalisation. A model that was
        trained here then takes the same inputs as the program's data loaders give. `only` are
        indices or names of classes; None means all classes.

        Raises a SettingsError for another type, or a class that the dataset does not have.
        """
        if isinstance(dataset, str):
            example = f"cp.load_dataset({excerpt(repr(dataset))})"
            raise wrong_type("dataset", dataset, "a torch or Hugging Face Dataset", example)
        loaded = training_dataset("dataset", dataset, **how)
        if only is None:
            return cls(loaded, tuple(range(len(loaded.classes))))
        used = {_class_number(chosen, loaded.classes) for chosen in only}
        return cls(loaded, tuple(sorted(used)))

    def samples(self, classes: tuple[int, ...]) -> Samples:
        """Return all samples of these classes; a label is the class's position in `classes`."""
        rows = np.flatnonzero(np.isin(self.dataset.labels, classes))
        return Samples(self.dataset, rows, task_labels(self.dataset.labels[rows], classes))


@dataclass(frozen=True, eq=False)
class Population:
    """A group of clients with the classes of their samples.

    `clients[i]` is the client with id i. A sample's label is the position of its class in
    `classes`.
    """

    classes: tuple[int, ...]
    clients: tuple[ClientData, ...]

    @functools.cached_property
    def hash(self) -> str:
        """A hash of the samples of all clients (see `hash_of_samples`)."""
        both = [(client.train, client.test) for client in self.clients]
        return hash_of_samples([part for of_client in both for part in of_client if part])

    def with_validation(self, share: float, seed: int) -> "Population":
        """Return the clients of a pre-training with a share of their samples as test samples.

        They are drawn by the seed and the client, and are not trained on. Raises a SettingsError if
        a client has too few samples.
        """
        fewest, clients = min(len(client.train) for client in self.clients), []
        if not part_of(fewest, share):
            raise SettingsError(f"keep: share = {share}: none of the {fewest} samples", "keep")
        for number, client in enumerate(self.clients):
            rng = seeds.generator(seed, PRETRAIN, number, "validation")
            test, train = map(client.train.take, split_in_two(len(client.train), share, rng))
            clients.append(ClientData(train, test))
        return replace(self, clients=tuple(clients))

    def __repr__(self) -> str:
        sizes = [len(client.train) + len(client.test or ()) for client in self.clients]
        each = f"{min(sizes)} to {max(sizes)} samples each"
        kind = self.clients[0].train.dataset.target_kind(len(self.classes))
        return f"<{len(sizes)} clients, {each}, {kind}>"


def _with_common_classes(samples: Sequence[Samples]) -> list[Samples]:
    """Return the clients' samples with classes that are numbered by name over all clients.

    Classes that no client names keep their numbers. Raises a SettingsError if some clients name
    their classes and others only number them, or if the clients' targets are of several kinds.
    """
    if len(kinds := sorted({own.dataset.target_kind() for own in samples})) > 1:
        raise SettingsError(f"clients: some have {kinds[0]} and some {kinds[1]}; one is allowed")
    of_each = [own.dataset.classes for own in samples]
    named = [names != tuple(map(str, range(len(names)))) for names in of_each]
    if len(set(of_each)) == 1 or not any(named):
        return list(samples)
    if not all(named):
        without = f"clients[{named.index(False)}] only numbers its classes"
        raise SettingsError(f"{without}, but others name them: give it an attribute `classes`")
    union = list(dict.fromkeys(name for names in of_each for name in names))
    if all(list(names) == sorted(names) for names in of_each):
        union.sort()
    logger.info("classes are numbered by name over all clients: %s", excerpt(", ".join(union), 300))
    common = []
    for own in samples:
        numbers = np.array([union.index(name) for name in own.dataset.classes], dtype=np.int64)
        dataset = replace(own.dataset, labels=numbers[own.dataset.labels], classes=tuple(union))
        common.append(Samples(dataset, own.indices, numbers[own.labels]))
    return common


@dataclass(eq=False, repr=False)
class Clients(Checked):
    """The clients of a pre-training.

    `len(clients)` is the number of clients, and `clients[i]` are the samples of client i.

    Parameters
    ----------
    source : Source
        The samples of the pre-training.
    spread : Spread
        How the samples are partitioned over the clients.
    seed : int
        Seed of all random draws.
    server_reserve : float
        Fraction of the samples, drawn at random, that no client holds.
    server_share : float, optional
        Fraction of the samples that the server uses, at most `server_reserve`. None means that the
        server uses the whole reserve.
    tested : bool
        Whether the dataset's test split is reserved, so that no client holds samples of it.
    """

    source: Source
    spread: Spread
    seed: int = same_option(RoundStrategy, "seed", minimum=0)
    _: KW_ONLY
    server_reserve: float = same_option(DataSettings, "server_reserve", default=0.0)
    server_share: float | None = None
    tested: bool = False

    @classmethod
    def of_datasets(cls, datasets: Sequence[Any]) -> "Clients":
        """Return clients, one for each dataset. The server has no samples.

        Raises a SettingsError for an object that is not a dataset.
        """
        named = [(f"clients[{number}]", data) for number, data in enumerate(datasets)]
        samples = _with_common_classes([as_samples(n, data, cached=False) for n, data in named])
        # A client may lack classes, so the classes are counted over all clients' labels.
        classes = tuple(range(1 + max(int(own.labels.max()) for own in samples)))
        clients = cls(LoadedSource(samples[0].dataset, classes), Spread(clients=len(samples)))
        clients.population = Population(classes, tuple(map(ClientData, samples)))
        return clients

    @functools.cached_property
    @about_settings("partition", "clients", "dataset")
    def population(self) -> Population:
        """The population: the training samples of each client.

        Raises a SettingsError if the partition is impossible, or a client has too few samples.
        """
        everything, _ = self._reserve
        samples = self.spread.over_clients(everything, self.seed, PRETRAIN)
        return Population(self.source.classes, tuple(map(ClientData, samples)))

    @property
    def number(self) -> int:
        """Number of clients."""
        return self.spread.clients or len(self.population.clients)

    @property
    def samples(self) -> tuple[Samples, ...]:
        """Each client's samples, with labels from 0 to C - 1 for C classes."""
        return tuple(client.train for client in self.population.clients)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        return tuple(self.source.class_names)

    @functools.cached_property
    def _reserve(self) -> tuple[Samples, Samples]:
        """The clients' samples, and the server's reserve in random order."""
        everything = self.source.samples(self.source.classes)
        if self.tested:
            everything, _ = by_source_part(everything)
        order = seeds.generator(self.seed, PRETRAIN, "server").permutation(len(everything))
        reserved = order[: round(self.server_reserve * len(everything))]
        rest = np.sort(order[len(reserved) :])
        return everything.take(rest), everything.take(reserved)

    @property
    def server(self) -> Samples:
        """The samples that only the server uses: D^s of scenario II (CoPreFL).

        The samples for a smaller `server_share` are a subset of the same reserve. The clients'
        samples do not depend on `server_share` (CoPreFL, Table 42 of the AAAI text: "keeping the
        configurations for clients unchanged").
        """
        clients, reserve = self._reserve
        if self.server_share is None:
            return reserve
        used = round(self.server_share * (len(clients) + len(reserve)))
        return reserve.take(np.arange(used))

    def test_samples(self) -> Samples:
        """Return the dataset's test split, for the pre-training's classes and domains.

        Raises a SettingsError if the dataset has no test split.
        """
        return by_source_part(self.source.samples(self.source.classes))[1]

    def identity(self) -> dict[str, Any]:
        """Return the inputs on which the samples of clients and server depend."""
        source = self.source.identity()
        if source is None:
            return {"samples": self._hash}
        return {
            "source": source,
            "spread": identity_of(self.spread),
            "seed": self.seed,
            "tested": self.tested,
            "server": [self.server_reserve, self.server_share],
        }

    @functools.cached_property
    def _hash(self) -> str:
        return hash_of_samples([*self.samples, self.server])

    def __len__(self) -> int:
        return len(self.population.clients)

    def __getitem__(self, client: int) -> Samples:
        return self.population.clients[client].train

    def __repr__(self) -> str:
        return repr(self.population)


def by_source_part(samples: Samples) -> tuple[Samples, Samples]:
    """Return the samples of the dataset's training split, and the samples of its test split.

    Raises a SettingsError if the dataset has no test split.
    """
    test = samples.dataset.test
    if test is None or not test[samples.indices].any():
        raise SettingsError("test-every: the dataset has no test split", "test-every")
    of_test = test[samples.indices]
    return samples.take(np.flatnonzero(~of_test)), samples.take(np.flatnonzero(of_test))


def identity_of(spread: Spread) -> dict[str, Any]:
    """Return the options of a partition, and a hash of the code of your own scheme."""
    values = {field.name: getattr(spread, field.name) for field in fields(Spread)}
    scheme = values.pop("partition")
    return values | {"scheme": scheme, "contents": content_hashes([str(scheme)])}


def hash_of_samples(parts: Sequence[Samples]) -> str:
    """Return a hash of the indices, labels, inputs and other targets of all samples."""
    digest = hashlib.sha256()
    for samples in parts:
        digest.update(samples.indices.tobytes() + samples.labels.tobytes())
        for inputs, targets in samples.batches(EVALUATION_BATCH, torch.device("cpu")):
            if isinstance(inputs, dict):
                digest.update(" ".join(inputs).encode())
            for tensor in tensors_of(inputs):
                digest.update(as_array(tensor.contiguous()).tobytes())
            if not samples.dataset.has_classes:
                digest.update(as_array(targets).tobytes())
    return digest.hexdigest()


def _class_number(chosen: int | str, names: Sequence[str]) -> int:
    """Return the index of a class, from its index or its name; a SettingsError if unknown."""
    if chosen in names:
        return names.index(str(chosen))
    if isinstance(chosen, str) or chosen not in range(len(names)):
        raise SettingsError(f"only: {unknown('class', str(chosen), names)}")
    return int(chosen)
