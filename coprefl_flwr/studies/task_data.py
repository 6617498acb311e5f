"""The data of downstream tasks: classes, groups or domains that tasks draw, and their clients."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coprefl_flwr import seeds
from coprefl_flwr.data import ClientData, Samples, TextDataset, split_in_two
from coprefl_flwr.data.dataset import Rows
from coprefl_flwr.data.partition import Spread
from coprefl_flwr.errors import SettingsError, about_settings
from coprefl_flwr.options import check_declared, option, same_option
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.populations import Population, Source, identity_of

CLASS, GROUP, DOMAIN = "class", "group", "domain"
"""What a task consists of: classes of all samples, or classes of one group or one domain."""


def task_name(number: int) -> str:
    """Return the name of the population of the downstream task `number`, counted from 0."""
    return f"task-{number}"


@dataclass(eq=False, repr=False)
class Tasks:
    """Downstream tasks. Each task draws classes and partitions their samples over its clients.

    `len(tasks)` is the number of tasks, and `tasks[i]` is one task. Tasks do not depend on the
    starting model, so all starting models are compared on the same tasks (paired comparison).
    `tasks + others` are the tasks of both, in this order. Their seed is that of the first ones.

    Parameters
    ----------
    source : Source
        The samples of all tasks.
    spread : Spread
        How the samples of a task are partitioned over its clients.
    number : int
        Number of tasks.
    classes : int
        Number of classes that each task draws.
    train_fraction : float
        Fraction of a client's samples that is its training set. The rest is its test set.
    seed : int
        Seed of all random draws.
    by : str
        "group" or "domain": a task has the samples of one group or domain, and draws its classes
        among the classes of these samples. "class": it draws among all samples. Without
        classes, a task has all samples of its group or domain; "class" then means "domain" if the
        dataset has domains, and else "group".
    others : tuple of Tasks
        Tasks that follow these tasks.
    """

    source: Source
    spread: Spread
    number: int = option(3, "downstream tasks X; 0: end after the pre-training", minimum=0)
    classes: int = option(5, "classes per task", minimum=2)
    train_fraction: float = option(
        0.8, "fraction of a task client's samples that are for training", above=0, maximum=0.99
    )
    seed: int = same_option(RoundStrategy, "seed", minimum=0)
    by: str = option(CLASS, "what a task has samples of", choices=(CLASS, GROUP, DOMAIN))
    others: tuple["Tasks", ...] = ()

    def __post_init__(self) -> None:
        """Check each value; no task is drawn yet."""
        check_declared(self)
        self._made = dict[int, Population]()

    def __len__(self) -> int:
        return self.number + sum(map(len, self.others))

    def __add__(self, other: "Tasks") -> "Tasks":
        datasets = (tasks.source.dataset for tasks in (self, other))
        first, second = (f"{data.shape} with {data.target_kind()}" for data in datasets)
        if first != second:
            raise SettingsError(f"tasks + tasks: inputs {first} and {second} must be the same")
        return replace(self, others=(*self.others, replace(other, others=()), *other.others))

    def part(self, number: int) -> tuple["Tasks", int]:
        """Return the tasks that draw the task `number`, and the number of the task among them."""
        every = [(tasks, n) for tasks in (self, *self.others) for n in range(tasks.number)]
        if not 0 <= number < len(every):
            raise IndexError(f"there is no task {number}: {len(every)} tasks, numbered from 0")
        return every[number]

    def __getitem__(self, number: int) -> Population:
        """Return a task: its classes, and each client's training and test samples.

        Raises a SettingsError if there are too few classes, or too few samples for a client.
        """
        tasks, position = self.part(number)
        if tasks is not self:
            return tasks[position]
        if number not in self._made:
            with about_settings("task-partition", "task-clients"):
                self._made[number] = self._task(number)
        return self._made[number]

    def __repr__(self) -> str:
        kind = self.source.dataset.target_kind(self.classes)
        own = f"<{self.number} tasks of {kind} and {self.spread.clients} clients>"
        return " + ".join([own, *map(repr, self.others)])

    def _task(self, number: int) -> Population:
        """Draw a task's classes, partition their samples, and split each client's samples."""
        name, one = task_name(number), None if self.kind == CLASS else self._drawn[number]
        classes, clients = self._draw_classes(name, one), []
        everything = self._of(one, self.source.samples(classes))
        for client, own in enumerate(self.spread.over_clients(everything, self.seed, name)):
            rng = seeds.generator(self.seed, name, client, "test-split")
            train, test = split_in_two(len(own), self.train_fraction, rng)
            clients.append(ClientData(own.take(train), own.take(test)))
        return Population(classes, tuple(clients))

    @functools.cached_property
    def kind(self) -> str:
        """What a task has samples of: `by`; without classes a domain or a group for "class"."""
        if self.by != CLASS or self.source.dataset.has_classes:
            return self.by
        return GROUP if self.source.dataset.domains is None else DOMAIN

    @functools.cached_property
    def column(self) -> Rows:
        """The number of each sample's group or domain; a SettingsError if there are none."""
        dataset = self.source.dataset
        column = dataset.domains if self.kind == DOMAIN else dataset.groups
        if column is None:
            how = "name them with groups=" if self.kind == GROUP else "it needs a folder per domain"
            raise SettingsError(f"by = {self.kind!r}: the dataset has no {self.kind}s; {how}")
        return column

    @functools.cached_property
    def eligible(self) -> Rows:
        """The groups or domains of at least `classes` classes, ascending; raises a SettingsError.

        Without classes, all of them. There must be at least one, and as many as there are tasks.
        """
        everything = self.source.samples(self.source.classes)
        found = np.unique(self.column[everything.indices])
        classes = [len(np.unique(self._of(one, everything).labels)) for one in found]
        fewest = self.classes if self.source.dataset.has_classes else 1
        large = found[np.array(classes) >= fewest]
        if len(large) < max(self.number, 1):
            most = f"only {len(large)} of {len(found)} {self.kind}s have {fewest} classes"
            raise SettingsError(f"number = {self.number}: {most} or more")
        return large

    @functools.cached_property
    def _drawn(self) -> Rows:
        """The group or domain of each task, ascending."""
        rng = seeds.generator(self.seed, "tasks", self.kind)
        return np.sort(rng.choice(self.eligible, self.number, replace=False))

    def _of(self, one: int | None, samples: Samples) -> Samples:
        """Return the samples of one group or domain; all samples for None."""
        if one is None:
            return samples
        return samples.take(np.flatnonzero(self.column[samples.indices] == one))

    def _draw_classes(self, name: str, one: int | None) -> tuple[int, ...]:
        """Draw the classes of a task, of one group or domain; return their indices, ascending."""
        known, wanted = self.source.classes, self.classes
        if isinstance(self.source.dataset, TextDataset):
            # Windows overlap, so random test and training splits would share most of their text.
            raise SettingsError("a text dataset has no tasks: set tasks = 0", "tasks", "dataset")
        if not self.source.dataset.has_classes:
            return known
        # A class may have no samples, in the group or domain or at all.
        present = np.unique(self._of(one, self.source.samples(known)).labels)
        known = tuple(known[label] for label in present)
        if wanted > len(known):
            problem = f"a task needs {wanted} classes, but there are only {len(known)}"
            raise SettingsError(problem, "task-classes", "downstream-classes")
        rng = seeds.generator(self.seed, name, "classes")
        drawn = rng.choice(len(known), wanted, replace=False)
        return tuple(sorted(known[position] for position in drawn))

    def identity(self, number: int) -> dict[str, Any]:
        """Return the inputs on which the samples of the task `number` depend.

        If the data are in a file, the number of the task is another input.
        """
        tasks, _ = self.part(number)
        source = tasks.source.identity()
        if source is None:
            return {"samples": self[number].hash}
        return {
            "source": source,
            "spread": identity_of(tasks.spread),
            "seed": tasks.seed,
            "classes": tasks.classes,
            "train-fraction": tasks.train_fraction,
        }
