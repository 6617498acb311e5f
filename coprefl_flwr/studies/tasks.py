"""The stages that say what a starting model is worth: a downstream task, and diagnostics of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.federation.checkpoint import State
from coprefl_flwr.federation.progress import TASK_KIND
from coprefl_flwr.learning.diagnostics import ClientSamples, diagnose
from coprefl_flwr.models import load_saved_model
from coprefl_flwr.strategies import RoundStrategy, Schedule
from coprefl_flwr.studies.identity import contents, hash_of, values_of
from coprefl_flwr.studies.method import KEEP, folder_of
from coprefl_flwr.studies.phases import PRECISION, Phase
from coprefl_flwr.studies.populations import task_name
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.stage import Stage, Store

if TYPE_CHECKING:
    from coprefl_flwr.studies.starts import Starts

DIAGNOSIS = "diagnosis"
"""What the row of a diagnosis, in the place of a round's, calls its phase."""

OF_NO_RESULT = ("head-layer", "diagnostics", "start-loss")
"""Settings of the tasks that do not enter their results, or are told apart otherwise."""


class Task(Stage):
    """A downstream task from a starting model: what that is worth to each of its clients.

    Where its head is computed, that is a round before the others, round 0.
    """

    kind, phase = TASK_KIND, "downstream"

    def __init__(
        self,
        study: "Starts",
        number: int,
        made: Pretraining,
        trained: Phase,
        head: Phase | None = None,
    ) -> None:
        title, path = f"task {number} from {made.name}", f"tasks/{number}/{folder_of(made.name)}"
        self.trained, self.head, self.before = trained, head, 1 if head else 0
        super().__init__(study.run, title, path, made.start, self.before + study.tasks.task_rounds)
        self.study, self.task, self.made = study, number, made
        self.population = task_name(number)

    def phase_of(self, server_round: int) -> Phase:
        """Return the phase that a round belongs to: the head's is round 1."""
        return self.head if self.head and server_round == 1 else self.trained

    def strategy(self) -> RoundStrategy:
        """Make the strategy of the tasks, in which all clients take part every round."""
        tasks = self.study.tasks
        run = self.run.of_strategy(
            self.population,
            run_name=self.study.run_name,
            clients=tasks.task_clients,
            # The comparison is paired: all clients answer, or the round is repeated.
            min_replies=tasks.task_clients,
            evaluate_every=tasks.task_evaluate_every or self.rounds,
        )
        trained, phase = self.trained.strategy(**run), self.head
        if not phase:
            return trained
        of_head = self.study.architecture.head_layer(tasks.task_classes, tasks.head_layer)
        head = phase.algorithm.strategy(phase.options, phase.training, head=of_head, **run)
        return Schedule([(head, 1), (trained, tasks.task_rounds)]) if tasks.task_rounds else head

    def initial(self, store: Store) -> Arrays:
        """Return the starting model, with the head that this task begins with."""
        return self.first(load_saved_model(store.folder(self.made))[0])

    def first(self, start: Arrays) -> Arrays:
        """Return what it begins with: a starting model under the head of all starts, or its own."""
        tasks = self.study.tasks
        if tasks.head == KEEP:
            return start
        architecture = self.study.architecture
        return architecture.with_fresh_head(start, tasks.task_classes, self.population)

    def at_once(self) -> int:
        """Return its clients, all of which take part in every round."""
        return self.study.tasks.task_clients

    def clients(self) -> Sequence[str]:
        """Return no domain for each client."""
        return [""] * self.study.tasks.task_clients

    @property
    def key(self) -> str:
        """Return the model's key, the task's number and a hash."""
        found = self.identity()
        if self.head:
            layer = self.study.tasks.head_layer
            own = {"layer": layer} if layer else {}
            found["head"] = self.head.identity() | own
        found |= self.study.metrics.identity()
        return f"{self.made.key}/tasks/{self.task}-{hash_of(found)}"

    def identity(self) -> dict[str, Any]:
        """Return what its results depend on besides a computed head and own metrics."""
        study, data = self.study, self.study.data
        return values_of(study.tasks, "tasks", "task-method", *OF_NO_RESULT) | {
            "task-dataset": data.task_dataset,
            "task-reserve": data.task_reserve,
            "downstream-domains": data.downstream_domains,
            "batch-size": self.trained.training.batch_size,
            "method": self.trained.identity(),
            "contents": contents([data.task_dataset, study.tasks.task_partition]),
            "classes": study.populations.datasets.classes[1],
            PRECISION: self.trained.training.precision,
        }


class Diagnosis(Stage):
    """What explains a starting model's worth in a task, measured at the weights it begins with.

    It is computed from the data of the task's clients, where the server's program runs: a view of
    the experimenter's, which no server of a real federation has.
    """

    kind, phase, measures = TASK_KIND, DIAGNOSIS, False

    def __init__(self, task: Task) -> None:
        title = f"diagnosis of {task.made.name} in task {task.task}"
        super().__init__(
            task.run, title, task.path.replace("tasks", "diagnoses", 1), task.start, rounds=0
        )
        self.of, self.task = task, task.task

    def strategy(self) -> RoundStrategy:
        """Return no strategy: nothing is trained."""
        raise AssertionError("a diagnosis has no rounds")

    def initial(self, store: Store) -> Arrays:
        """Return what the task begins with, under a fresh head."""
        return self.of.initial(store)

    def keep(self, folder: Path, arrays: Arrays, state: State) -> dict[str, Any]:
        """Return what was measured."""
        study, population = self.of.study, self.of.population
        clients = [
            ClientSamples(held.train, held.test)
            for held in study.populations.population(population).clients
            if held.test is not None
        ]
        network = study.architecture.make(study.tasks.task_classes)
        key = (self.run.seed, population, "diagnosis")
        return dict(diagnose(network, arrays, clients, self.of.trained.training, key))

    @property
    def key(self) -> str:
        """Return the model's key, the task's number and a hash; no head is computed for it."""
        found = self.of.identity() | {"head": self.of.study.tasks.head == KEEP}
        for key in ("task-rounds", "task-evaluate-every"):
            del found[key]
        return f"{self.of.made.key}/diagnoses/{self.task}-{hash_of(found)}"
