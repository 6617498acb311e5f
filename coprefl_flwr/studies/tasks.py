"""Downstream tasks: the stages that train on them, and diagnostic measurements."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError, excerpt
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.federation.flower import NumPyClient
from coprefl_flwr.learning.diagnostics import diagnose
from coprefl_flwr.models import load_saved_model, with_fresh_head
from coprefl_flwr.models.heads import last_linear
from coprefl_flwr.named import folder_of
from coprefl_flwr.options import check_declared, option
from coprefl_flwr.strategies import RoundStrategy, Schedule
from coprefl_flwr.studies.architecture import (
    Architecture,
    Factory,
    checked_factory,
    factory_of_tasks,
)
from coprefl_flwr.studies.hashes import hash_of, values_of
from coprefl_flwr.studies.measurements import ClientMetrics, Measurement, example_of
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.populations import Population
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.stage import ClientFolders, RunOptions, Stage, TrainingStage
from coprefl_flwr.studies.store import Store
from coprefl_flwr.studies.task_data import Tasks, task_name
from coprefl_flwr.studies.training_options import as_stored

TASK_RATE = 0.01
"""The default local learning rate in tasks."""

DIAGNOSIS = "diagnosis"
"""Value of `phase` in the result row of a diagnosis."""


def architecture_of_tasks(
    starts: Mapping[str, Any], network: Factory | None, tasks: Tasks, seed: int, *, keeps_head: bool
) -> Architecture:
    """Return the architecture of tasks, from starting models that are networks or files of weights.

    Parameters
    ----------
    starts : mapping of names to networks and files
        The starting models. If `network` is None, the networks give the architecture.
    network : Factory, optional
        A function that makes the network of a task from the number of classes.
    tasks : Tasks
        The tasks.
    seed : int
        Seed of the random weights.
    keeps_head : bool
        Whether tasks begin with the last layers of the starting models.

    Raises a SettingsError if the network does not fit the tasks, or if two networks of `starts`
    differ in more than their weights.
    """
    sample, classes = tasks[0].clients[0].train, len(tasks[0].classes)
    if network is not None:
        factory = checked_factory(network, classes)
        architecture = Architecture("starts", factory, tasks.source, seed, classes)
        architecture.check(f"network({classes})", sample, needs_head=not keeps_head)
        return architecture
    networks = {name: start for name, start in starts.items() if isinstance(start, nn.Module)}
    if not networks:
        raise SettingsError("starts are only files of weights: pass network= to make their network")
    factory = factory_of_tasks(networks, sample, keeps_head=keeps_head)
    return Architecture("starts", factory, tasks.source, seed, classes)


@dataclass(frozen=True)
class Downstream:
    """How tasks are run. All starting models use the same options (paired comparison).

    Parameters
    ----------
    trained : Method
        The method that trains in the tasks.
    rounds : int
        Number of rounds of the method.
    head : Method, optional
        The method that computes the last layer in an extra round 0. If it is None, the last layer
        is not computed.
    keeps_head : bool
        Whether tasks begin with the starting model's last layer, instead of a fresh one.
    evaluate_every : int
        Number of rounds between evaluations. 0 means only after the last round.
    diagnostics : bool
        Whether each starting model is also diagnosed in each task.
    metrics : ClientMetrics
        Your own metrics, which every client computes.
    architecture, run_options : Architecture, RunOptions, optional
        The network of the tasks, and their seed. Default: those of the pre-training.
    """

    trained: Method
    rounds: int = option(
        50, "rounds R of a task; 0: only the round that computes its head", unit="rounds", minimum=0
    )
    head: Method | None = None
    keeps_head: bool = False
    evaluate_every: int = option(
        1, "rounds between evaluations in a task; 0: only the last", unit="rounds", minimum=0
    )
    diagnostics: bool = option(
        False,
        "measure at each initial model: diversity of the clients' gradients, top eigenvalue of the "
        "Hessian, loss barrier between clients' models, linear probe",
    )
    metrics: ClientMetrics = field(default_factory=lambda: ClientMetrics(()))
    architecture: Architecture | None = None
    run_options: RunOptions | None = None

    def __post_init__(self) -> None:
        """Check each value; with 0 rounds, the head must be computed."""
        check_declared(self)
        if not self.rounds and self.head is None:
            raise SettingsError("task-rounds = 0: needs head = ncm or ridge", "task-rounds", "head")

    def identity(self) -> dict[str, Any]:
        """Return the inputs of a task's results, without the data and the starting model."""
        about: dict[str, Any] = {"rounds": self.rounds, "evaluate-every": self.evaluate_every}
        if self.head:
            about["head"] = [self.head.identity(), ""]  # "" keeps the keys of stored results.
        return self.of_start() | about | self.metrics.identity()

    def of_start(self) -> dict[str, Any]:
        """Return the options on which a measurement before the first round of a task depends."""
        training = self.trained.training
        own: dict[str, Any] = {}
        if self.architecture and self.run_options:
            own = {"network": self.architecture.identity(), "seed": self.run_options.seed}
        return own | {
            "method": self.trained.identity(),
            "training": as_stored(values_of(training, "rounds", "participants", later=False)),
            "keeps-head": self.keeps_head,
        }


class Task(TrainingStage):
    """A downstream task: training from a starting model, and evaluation by each client.

    Parameters
    ----------
    number : int
        Number of the task, from 0.
    pretraining : Pretraining
        The stage that makes the starting model.
    tasks : Tasks
        All tasks, with the samples of their clients.
    how : Downstream
        How the task is run.
    """

    phase = "downstream"

    def __init__(
        self, number: int, pretraining: Pretraining, tasks: Tasks, how: Downstream
    ) -> None:
        title, folder = f"task {number} from {pretraining.name}", folder_of(pretraining.name)
        self.pretraining, self.tasks, self.how = pretraining, tasks, how
        self.metrics = how.metrics
        self.drawn_by, _ = tasks.part(number)
        self.task = self.number = number
        self.architecture, self.phases = how.architecture or pretraining.architecture, [how.trained]
        self.population_name, self.warmup_rounds = task_name(number), 1 if how.head else 0
        rounds = self.warmup_rounds + how.rounds
        path, start = f"tasks/{number}/{folder}", pretraining.start
        run_options = how.run_options or pretraining.run_options
        super().__init__(run_options, title, path, start, rounds)

    def phase_of(self, server_round: int) -> Method:
        """Return the phase of a round. If the head is computed, round 1 computes the head."""
        return self.how.head if self.how.head and server_round == 1 else self.how.trained

    def strategy(self) -> RoundStrategy:
        """Return a new strategy of the task. All clients take part in every round."""
        how = self.how
        run = self.run_options.of_strategy(
            self.population_name,
            clients=self.max_parallel_clients(),
            # The comparison is paired, so all clients must reply. Otherwise the round is repeated.
            min_replies=self.max_parallel_clients(),
            evaluate_every=how.evaluate_every or self.rounds,
        )
        trained, phase = how.trained.strategy(**run), how.head
        if not phase:
            return trained
        of_head = self.architecture.head_layer(len(self.population.classes))
        head = phase.strategy(head=of_head, **run)
        return Schedule([(head, 1), (trained, how.rounds)]) if how.rounds else head

    @property
    def module(self) -> nn.Module:
        """The network that clients train in this process."""
        return self.architecture.shared(len(self.population.classes))

    def initial(self, store: Store) -> Arrays:
        """Return the starting model from the store, with a fresh or with its trained head."""
        start, _ = load_saved_model(store.folder(self.pretraining))
        if self.how.keeps_head:
            return start
        # The head depends on the population, but not on the start.
        key = len(self.population.classes), self.population_name, "model"
        return with_fresh_head(start, self.architecture.make(*key), self.architecture.head)

    @property
    def population(self) -> Population:
        """The population of the task: the samples of each client."""
        return self.tasks[self.number]

    def client(self, client_id: int, server_round: int, folders: ClientFolders) -> NumPyClient:
        """Return a client that trains by the round's phase."""
        samples, state = self.population.clients[client_id], ClientState(folders.states)
        client = self.phase_of(server_round).client(self.module, samples, state=state)
        client.metrics = self.metrics.functions
        return client

    def check(self) -> None:
        """Load the data, and raise a SettingsError if the data or the head does not fit."""
        network, samples = self.module, self.population.clients[0].train
        classes = [samples.dataset.classes[n] for n in self.population.classes]
        learnt = self.pretraining.architecture.source.class_names
        if self.how.keeps_head and self.pretraining.has_clients and classes != learnt:
            task, start = (f"{len(of)} ({excerpt(', '.join(of))})" for of in (classes, learnt))
            problem = f"the classes of a task, {task}, must be those of the pre-training, {start}"
            raise SettingsError(f"head = keep: {problem}", "head")
        if self.how.head and not samples.dataset.has_classes:
            raise SettingsError(f"head = {self.how.head}: needs classes; set fresh or keep", "head")
        if self.how.diagnostics and samples.dataset.has_classes:  # The probe needs features.
            last_linear(network, samples.batch(slice(1), next(network.parameters()).device)[0])
        self.how.trained.check(network, samples)
        self.metrics.check(*example_of(network, samples, len(self.population.classes)))
        self.strategy()

    def max_parallel_clients(self) -> int:
        """Return the number of clients, all of which take part in every round."""
        return self.drawn_by.spread.clients or len(self.population.clients)

    def identity(self) -> Mapping[str, Any]:
        """Return the inputs on which the results of the tasks depend, except the task's number."""
        start = hash_of(self.pretraining.identity())
        return {"start": start, "clients": self.tasks.identity(self.number), **self.how.identity()}

    @property
    def key(self) -> str:
        """Return the starting model's key, the task's number and a hash of the identity."""
        return f"{self.pretraining.key}/tasks/{self.task}-{hash_of(self.identity())}"


class Diagnosis(Measurement):
    """Diagnostic measurements of a starting model in a task, before the first round of the task.

    Examples are the diversity of the clients' gradients and the top eigenvalue of the Hessian. The
    server's process computes them from the data of the task's clients. An experimenter can do so;
    the server of a real federation has no access to the clients' data.
    """

    phase = DIAGNOSIS

    def __init__(self, task: Task) -> None:
        title = f"diagnosis of {task.pretraining.name} in task {task.task}"
        super().__init__(title, task.path.replace("tasks", "diagnoses", 1), task.start)
        self.diagnosed, self.task = task, task.task

    def measure(self, store: Store) -> Mapping[str, Any]:
        """Return the measured numbers at the initial weights of the task, by name."""
        task = self.diagnosed
        network = task.architecture.make(len(task.population.classes))
        key = (task.run_options.seed, task.population_name, "diagnosis")
        clients, training = task.population.clients, task.how.trained.training
        return diagnose(network, task.initial(store), clients, training, key)

    def identity(self) -> Mapping[str, Any]:
        """Return the inputs of the numbers: without the number of rounds and a computed head."""
        task = self.diagnosed
        start = hash_of(task.pretraining.identity())
        return {"start": start, "clients": task.tasks.identity(task.number), **task.how.of_start()}

    @property
    def key(self) -> str:
        """Return the starting model's key, the task's number and a hash of the identity."""
        return f"{self.diagnosed.pretraining.key}/diagnoses/{self.task}-{hash_of(self.identity())}"


def comparison(
    starts: Sequence[Pretraining],
    tasks: Tasks,
    how: Downstream,
    measurements: Sequence[Callable[[Pretraining], Stage]] = (),
) -> list[Stage]:
    """Return the stages of a comparison: pre-trainings, tasks, diagnoses and measurements.

    Parameters
    ----------
    starts : Sequence[Pretraining]
        The stages that make the starting models, in the order of the table.
    tasks : Tasks
        All tasks, with the samples of their clients.
    how : Downstream
        How tasks are run.
    measurements : Sequence[Callable[[Pretraining], Stage]]
        Functions that make a stage of measurement for a starting model. The stages follow in this
        order.
    """
    stages: list[Stage] = [*starts]
    for number, start in itertools.product(range(len(tasks)), starts):
        task = Task(number, start, tasks, how)
        stages += [task, Diagnosis(task)] if how.diagnostics else [task]
    return stages + [kind(start) for kind in measurements for start in starts]
