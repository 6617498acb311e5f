"""The clients of a study of starting models, and what each holds: the same in every process."""

import functools
from dataclasses import dataclass

import numpy as np

from coprefl_flwr import seeds
from coprefl_flwr.data import SCHEMES, Samples, TextDataset, partition, split_in_two
from coprefl_flwr.data.division import Datasets, DataSettings, rows_of
from coprefl_flwr.data.sizes import StandIn
from coprefl_flwr.errors import SettingsError, concerning
from coprefl_flwr.options import check_declared, option
from coprefl_flwr.studies.identity import texts_of, values_of
from coprefl_flwr.studies.method import FRESH, KEEP, Method

PRETRAINING = "pretrain"
"""The population of the pre-training."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """The downstream tasks: their clients, and how these train."""

    tasks: int = option(3, "downstream tasks X; 0 ends after the pre-training", minimum=0)
    task_classes: int = option(5, "classes a task draws", minimum=2)
    head: Method = option(
        FRESH,
        "last layer a task begins with: `fresh`, `keep` the pre-trained one, where a task's "
        "classes are the pre-training's, or one computed from the clients' features in round 0, "
        "before the others: `ncm`, `ridge` or module:NAME, with settings of its own",
    )
    head_layer: str = option(
        "", "name of the last linear layer, for such a head; not set: the `nn.Linear` called last"
    )
    diagnostics: bool = option(
        False,
        "measure at each start what explains its worth in a task: diversity of the clients' "
        "gradients, top eigenvalue of the Hessian, barrier between clients' models, linear probe",
    )
    start_loss: bool = option(
        False,
        "measure each start's mean loss over all training samples of all pre-training clients",
    )
    task_clients: int = option(10, "clients of a task, |G|, all of whom take part", minimum=1)
    task_partition: str = option(
        "dirichlet",
        "how a task's samples are spread over its clients",
        choices=SCHEMES,
        own="partition",
    )
    task_alpha: float = option(0.5, "concentration of a task's Dirichlet partition", above=0)
    task_train_fraction: float = option(
        0.8,
        "part of a task client's samples to train on; it is tested on the rest",
        above=0,
        maximum=0.99,
    )
    task_method: Method = option(
        Method.parse("fedavg"),
        "algorithm of the tasks, with settings of its own as in `fedprox:mu=1`",
    )
    task_rounds: int = option(
        50, "rounds R of a task; 0: none but that of its head", unit="rounds", minimum=0
    )
    task_local_steps: int | None = option(
        None, "as local-steps, in the tasks", unit="steps", minimum=1
    )
    task_local_epochs: int | None = option(
        None, "as local-epochs, in the tasks", unit="epochs", minimum=1
    )
    task_learning_rate: float = option(0.01, "local learning rate in the tasks", above=0)
    task_evaluate_every: int = option(
        1, "rounds between evaluations in a task; 0: after the last only", unit="rounds", minimum=0
    )

    def __post_init__(self) -> None:
        """Check each value, then that steps or epochs are set, not both."""
        check_declared(self)
        if self.diagnostics and self.task_clients < 2:
            problem = "diagnostics = true: the barrier is between two clients; task-clients = 1"
            raise SettingsError(problem, "task-clients", "diagnostics")
        if not self.task_rounds and self.head in (FRESH, KEEP):
            problem = f"task-rounds = 0: head = {self.head} needs rounds; ncm and ridge do not"
            raise SettingsError(problem, "task-rounds", "head")
        steps, epochs = self.task_local_steps, self.task_local_epochs
        if steps is not None and epochs is not None:
            both = f"task-local-steps = {steps} and task-local-epochs = {epochs}"
            raise SettingsError(f"{both}: set one of them, not both", "task-local-epochs")


@dataclass(frozen=True, eq=False)
class ClientData:
    """What one client holds; clients of the pre-training have no test samples."""

    train: Samples
    test: Samples | None = None

    def __repr__(self) -> str:
        tested = f", {len(self.test)} to be tested on" if self.test else ""
        return f"<{len(self.train)} samples to train on{tested}>"


@dataclass(frozen=True, eq=False)
class Population:
    """A group of clients, by client id, with some classes of its dataset.

    A sample's label is the position of its class in `classes`.
    """

    name: str
    classes: tuple[int, ...]
    clients: tuple[ClientData, ...]

    def __repr__(self) -> str:
        sizes = [len(one.train) + len(one.test or ()) for one in self.clients]
        each = f"{min(sizes)} to {max(sizes)} samples each"
        return f"<{self.name}: {len(sizes)} clients, {each}, {len(self.classes)} classes>"


def task_name(number: int) -> str:
    """Return the population of the downstream task `number`, counted from 0."""
    return f"task-{number}"


class Populations:
    """Every group of clients of a study of starting models, made when it is first asked for."""

    def __init__(
        self, data: DataSettings, tasks: TaskSettings, seed: int, datasets: Datasets | None = None
    ) -> None:
        self.data, self.tasks, self.seed = data, tasks, seed
        self.datasets = datasets or Datasets(data, seed)  # What the clients hold parts of.
        self._made: dict[str, Population] = {}

    def population(self, name: str) -> Population:
        """Return the clients of "pretrain" or of "task-NUMBER".

        Raises a SettingsError if the classes, the partition or a client's samples cannot be had as
        set.
        """
        if name not in self._made:
            self._made[name] = self._pretraining() if name == PRETRAINING else self._task(name)
        return self._made[name]

    def holding(self, population: Population) -> "Populations":
        """Return these with one of the groups as it is given."""
        self._made[population.name] = population
        return self

    @functools.cached_property
    def _reserve(self) -> tuple[Samples, Samples]:
        """The clients' samples of the pre-training, and the server's reserve in random order."""
        everything = self.datasets.of_pretraining()
        if self.data.test_every:
            everything, _ = by_source_part(everything)
        order = seeds.generator(self.seed, PRETRAINING, "server").permutation(len(everything))
        reserved = order[: round(self.data.server_reserve * len(everything))]
        kept = np.sort(order[len(reserved) :])
        return everything.take(kept), everything.take(reserved)

    def server_samples(self) -> Samples:
        """Return the samples that the server uses, D^s: `server-share` of the pre-training's.

        A smaller share is a part of the same reserve, and the clients hold what they held (CoPreFL,
        Table 42 of the AAAI text: "keeping the configurations for clients unchanged").
        """
        clients, reserve = self._reserve
        if self.data.server_share is None:
            return reserve
        used = round(self.data.server_share * (len(clients) + len(reserve)))
        return reserve.take(np.arange(used))

    def samples_of(self, whose: str) -> Samples:
        """Return what the "server" holds, all "clients" of the pre-training, or "both"."""
        if whose == "server":
            return self.server_samples()
        held = [client.train for client in self.population(PRETRAINING).clients]
        if whose == "both":
            held.append(self.server_samples())
        indices = np.concatenate([samples.indices for samples in held])
        labels = np.concatenate([samples.labels for samples in held])
        return Samples(held[0].dataset, indices, labels)

    def test_samples(self) -> Samples:
        """Return the dataset's own test samples of the pre-training's classes and domains.

        Raises a SettingsError if the dataset has no test part.
        """
        return by_source_part(self.datasets.of_pretraining())[1]

    @concerning("partition", "clients", "dataset")
    def _pretraining(self) -> Population:
        """Spread the samples of the pre-training classes over the clients, but for the reserve."""
        data, (everything, _) = self.data, self._reserve
        held = self.spread(everything, PRETRAINING, data.clients, data.partition, data.alpha)
        return Population(PRETRAINING, self.datasets.classes[0], tuple(map(ClientData, held)))

    def spread(
        self, samples: Samples, name: str, clients: int, scheme: str, alpha: float
    ) -> list[Samples]:
        """Return the samples that each client of a population holds."""
        if isinstance(samples.dataset, StandIn) and scheme != "natural":
            # Drawing a partition takes seconds, and in the mean it deals out as much.
            equal = np.array_split(np.arange(len(samples)), clients)
            return [samples.take(part) for part in equal]
        groups = samples.dataset.groups
        parts = partition(
            samples.labels,
            clients,
            scheme,
            alpha=alpha,
            classes_per_client=self.data.classes_per_client,
            seed_key=(self.seed, name, "partition"),
            min_samples=self.data.min_samples,
            groups=None if groups is None else groups[samples.indices],
        )
        return [samples.take(part) for part in parts]

    @concerning("task-partition", "task-clients")
    def _task(self, name: str) -> Population:
        """Draw a task's classes, spread their samples, split each client's into train and test.

        All starting models meet the same tasks, since nothing here knows of them: a paired
        comparison.
        """
        classes, tasks = self._task_classes(name), self.tasks
        everything, clients = self.datasets.of_task(classes), []
        held = self.spread(
            everything, name, tasks.task_clients, tasks.task_partition, tasks.task_alpha
        )
        for client, own in enumerate(held):
            rng = seeds.generator(self.seed, name, client, "test-split")
            with concerning("task-train-fraction"):
                train, test = split_in_two(len(own), tasks.task_train_fraction, rng)
            clients.append(ClientData(own.take(train), own.take(test)))
        return Population(name, classes, tuple(clients))

    def _task_classes(self, name: str) -> tuple[int, ...]:
        """Draw the classes of a task, ascending."""
        downstream, wanted = self.datasets.classes[1], self.tasks.task_classes
        if isinstance(self.datasets.tasks, TextDataset):
            # Windows overlap: a random test part would share most of its text with the other.
            problem = f"tasks = {self.tasks.tasks}: texts have no tasks; set tasks = 0"
            raise SettingsError(problem, "tasks", "dataset")
        if wanted > len(downstream):
            problem = (
                f"task-classes = {wanted}: there are only {len(downstream)} downstream classes"
            )
            raise SettingsError(problem, "task-classes", "downstream-classes")
        self._check_samples(downstream)
        rng = seeds.generator(self.seed, name, "classes")
        drawn = rng.choice(len(downstream), wanted, replace=False)
        classes = tuple(sorted(downstream[position] for position in drawn))
        self._check_head(classes)
        return classes

    def _check_samples(self, classes: tuple[int, ...]) -> None:
        """Raise a SettingsError if a task could draw a class without a sample."""
        source = self.datasets.tasks
        there = np.unique(source.labels[rows_of(source, classes, self.datasets.domains[1])])
        empty = [source.classes[number] for number in classes if number not in there]
        if empty:
            raise SettingsError(
                f"downstream-classes: no sample is of {_abridged(empty)}; name those that have "
                "samples (list:...), or set relabel = true, which leaves out the others",
                "downstream-classes",
                "dataset",
            )

    def _check_head(self, classes: tuple[int, ...]) -> None:
        """Raise a SettingsError if a task cannot go on with the pre-trained head."""
        learnt = self.datasets.class_names
        found = [self.datasets.tasks.classes[number] for number in classes]
        if self.tasks.head == KEEP and found != learnt:
            raise SettingsError(
                f"head = keep: a task has {len(found)} classes ({_abridged(found)}), and the "
                f"pre-training {len(learnt)} ({_abridged(learnt)}); they must be the same",
                "head",
            )


def populations(data: DataSettings, tasks: TaskSettings, seed: int) -> Populations:
    """Return `Populations`, held once per process for the last dozens of settings asked for.

    What is held are views of the datasets, which are loaded once, and positions in them. Where a
    file of the user's own has changed, they are made anew.
    """
    return _held(data, tasks, seed, texts_of(values_of(data) | values_of(tasks)))


@functools.lru_cache(maxsize=64)
def _held(data: DataSettings, tasks: TaskSettings, seed: int, _: tuple[str, ...]) -> Populations:
    return Populations(data, tasks, seed)


def by_source_part(samples: Samples) -> tuple[Samples, Samples]:
    """Return the samples of the source's training part and of its test part."""
    test = samples.dataset.test
    if test is None or not test[samples.indices].any():
        raise SettingsError("test-every: the dataset has no test part of its own", "test-every")
    of_test = test[samples.indices]
    return samples.take(np.flatnonzero(~of_test)), samples.take(np.flatnonzero(of_test))


def _abridged(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
