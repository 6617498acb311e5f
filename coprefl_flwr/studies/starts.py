"""A study of starting models: pre-train each, then run the same downstream tasks from it."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from torch import nn

from coprefl_flwr.arrays import Arrays, from_record
from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.data import ImageDataset
from coprefl_flwr.data.division import DataSettings
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import ServerData
from coprefl_flwr.methods import PRETRAINING, RANDOM, TASK, with_role
from coprefl_flwr.models import (
    build_model,
    head_names,
    load_saved_model,
    save_model,
    with_fresh_head,
)
from coprefl_flwr.models.network import Network
from coprefl_flwr.options import declared
from coprefl_flwr.rounds.progress import PRETRAINING_KIND, TASK_KIND
from coprefl_flwr.rounds.strategy import EvaluateFn
from coprefl_flwr.strategies import RoundStrategy, Schedule
from coprefl_flwr.studies import populations as clients_of
from coprefl_flwr.studies.identity import contents, hash_of, values_of
from coprefl_flwr.studies.personal_data import PersonalSettings
from coprefl_flwr.studies.phases import Phase, TrainingSettings, check_all_used, entries, read_phase
from coprefl_flwr.studies.populations import TaskSettings, task_name
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import Stage, Store
from coprefl_flwr.studies.study import Study, not_set, versions


class Starts(Study):
    """A study of starting models; refuses the settings of personalised studies."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        not_set(settings, declared(PersonalSettings), "set study = personalised to use it")
        self.data, self.tasks = settings.part(DataSettings), settings.part(TaskSettings)
        self.populations = clients_of.populations(self.data, self.tasks, self.run.seed)
        self._shared_network = functools.cache(self.network)
        names = entries(settings.method, [RANDOM, *with_role(PRETRAINING)])
        self.starts = {name: Pretraining(self, name) for name in names}
        of_tasks = TrainingSettings(  # Plain SGD (CoPreFL, appendix B.3).
            rounds=self.tasks.task_rounds,
            participants=self.tasks.task_clients,
            local_steps=self.tasks.task_local_steps,
            local_epochs=self.tasks.task_local_epochs,
            batch_size=self.training.batch_size,
            learning_rate=self.tasks.task_learning_rate,
        )
        named = self.tasks.task_method.strip()
        self.task_phase = read_phase("task-method", named, TASK, of_tasks, self.short)
        made = self.starts.values()
        check_all_used(self.short, [*(p for start in made for p in start.phases), self.task_phase])
        of_each = [Task(self, n, start) for n in range(self.tasks.tasks) for start in made]
        self.stages = [*made, *of_each]

    @property
    def num_classes(self) -> int:
        """Classes of the pre-training."""
        return len(self.populations.datasets.classes[0])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample: (channels, height, width), or (length,) of a text."""
        return self.populations.datasets.pretraining.shape

    def network(self, num_classes: int | None = None, *key: str | int) -> nn.Module:
        """Return a network, for the pre-training's classes or others."""
        classes, seed_key = num_classes or self.num_classes, (self.run.seed, *(key or ("model",)))
        return build_model(self.model.model, classes, self.input_shape, self.model.norm, seed_key)

    @property
    def head(self) -> frozenset[str]:
        """Names of the arrays whose shape depends on the number of classes."""
        return _head_names(self.model.model, self.num_classes, self.input_shape, self.model.norm)

    def task_model(self, population: str, start: Arrays) -> Arrays:
        """Return what a task begins with: the starting model under a fresh head.

        The head is the same for every starting model; with `head` = keep it is the start's own.
        """
        if self.tasks.head == "keep":
            return start
        fresh = self.network(self.tasks.task_classes, population, "model")
        return with_fresh_head(start, fresh, self.head)

    def server_data(self, whose: str) -> ServerData:
        """Return what is computed on at the server (see `Populations.samples_of`)."""
        return ServerData(self.network(), self.populations.samples_of(whose))

    def check(self) -> None:
        """Raise a SettingsError if something cannot be had as set; loads the data."""
        _ = self.head
        names = [clients_of.PRETRAINING, *map(task_name, range(self.tasks.tasks))]
        pretraining, *_ = [self.populations.population(name) for name in names]
        fewest = min(len(client.train) for client in pretraining.clients)
        for start in self.starts.values():
            for phase in start.phases:
                self._check_server_data(start.start, phase)
                # Better now than in a round.
                phase.method.check_samples(fewest, phase.options)

    def _check_server_data(self, start: str, phase: Phase) -> None:
        """Raise a SettingsError if a method would find less data at the server than it needs."""
        held, participants = len(self.populations.server_samples()), phase.training.participants
        needed = phase.method.strategy_class.server_samples_needed(participants)
        if phase.method.uses_server_data and held < needed:
            parts = needed == participants > 1
            why = f" ({needed} participants, a part for each)" if parts else ""
            share, reserve = self.data.server_share, self.data.server_reserve
            problem = (
                f"server-share = {share}, server-reserve = {reserve}: the server has {held} "
                f"samples, and {start} needs at least {needed}{why}"
            )
            raise SettingsError(problem, "server-share", "server-reserve")

    def hosted(self, population: str) -> int:
        """Return how many clients a population has, without loading any data."""
        in_pretraining = population == clients_of.PRETRAINING
        return self.data.clients if in_pretraining else self.tasks.task_clients

    def client(self, client_id: int, config: Mapping[str, Any]) -> TorchClient:
        """Return a client of the method that a message is about: a start's phase, or a task's."""
        group, phase = self.populations.population(str(config["population"])), self.task_phase
        if group.name == clients_of.PRETRAINING:
            phase = self.starts[str(config["method"])].phase_of(int(config["server-round"]))
        held = group.clients[client_id]
        # In the run's folder: any node may run any client, so they share a file system.
        offered = {"state": ClientState(str(config.get("state-dir", "")))}
        # Weights are loaded into it, so all clients of a process share it.
        module = self._shared_network(len(group.classes))
        return phase.method.client(
            phase.options, module, held.train, offered, test=held.test, training=phase.training
        )


class Pretraining(Stage):
    """The pre-training of a starting model, which it leaves.

    Its name is as the user wrote it: METHOD:key=value,..., several joined by "+", or "random".
    """

    kind, phase, measures = PRETRAINING_KIND, "pretraining", False

    def __init__(self, study: Starts, name: str) -> None:
        methods = [] if name == RANDOM else name.split("+")
        training, short = study.training, study.short
        self.phases = [read_phase("method", one, PRETRAINING, training, short) for one in methods]
        for phase in self.phases:
            wanted, most = phase.training.participants, study.data.clients
            if wanted > most:
                raise SettingsError(
                    f"method, {name}: participants = {wanted}: must be at most clients = {most}"
                )
        rounds = [phase.training.rounds for phase in self.phases]
        super().__init__(study.run, f"pre-training {name}", "starts", name, name, sum(rounds))
        self.study, self.switch = study, rounds[0] if len(rounds) > 1 else 0

    def phase_of(self, server_round: int) -> Phase:
        """Return the phase that a round belongs to."""
        ends = np.cumsum([phase.training.rounds for phase in self.phases[:-1]])
        return self.phases[np.searchsorted(ends, server_round)]

    def strategy(self) -> RoundStrategy:
        """Make the strategy of all phases."""
        run = self.run.of_strategy(clients_of.PRETRAINING, run_name=self.study.run_name)
        server, made = self.study.server_data, []
        for phase in self.phases:
            run["participants"] = phase.training.participants
            strategy = phase.method.strategy(phase.options, phase.training, server, **run)
            made.append((strategy, phase.training.rounds))
        return strategy if len(made) == 1 else Schedule(made)

    def initial(self, store: Store) -> Arrays:
        """Return what its first method begins with: the same random weights for every start."""
        study = self.study
        network = Network(
            study.model.model, study.network(), study.num_classes, study.input_shape, study.head
        )
        first = self.phases[0].method.strategy_class if self.phases else RoundStrategy
        return first.initial(network)

    def keep(self, folder: Path, arrays: Arrays, strategy: RoundStrategy | None) -> dict[str, Any]:
        """Write the starting model, and how it was made."""
        datasets = self.study.populations.datasets
        source, pixels = datasets.pretraining, {}
        if isinstance(source, ImageDataset):  # How they were normalised; texts have none.
            pixels = {"pixel-mean": source.mean.tolist(), "pixel-std": source.std.tolist()}
        about = {
            "start": self.start,
            "phases": [phase.about() for phase in self.phases],
            **values_of(self.study.model),
            "num-classes": self.study.num_classes,
            "input-shape": list(self.study.input_shape),
            "classes": [source.classes[number] for number in datasets.classes[0]],
            **pixels,
            "settings": self.study.config,
            "versions": versions(),
        }
        save_model(folder, arrays, about)
        return {}

    def tester(self) -> EvaluateFn | None:
        """Return what tests the model on the dataset's own test part, when that is due."""
        every = self.study.data.test_every
        if not every:
            return None
        test = ServerData(self.study.network(), self.study.populations.test_samples())

        def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if server_round % every and server_round != self.rounds:
                return None
            found = test.evaluate(from_record(arrays))
            accuracy = 100 * found["correct"] / found["num-examples"]
            return MetricRecord({"accuracy": accuracy, "loss": found["loss"]})

        return measure

    def key(self) -> str:
        """Return the model's methods and a hash."""
        of_classes = ("downstream-classes", "pretraining-classes", "allow-class-overlap")
        of_tasks = ("task-dataset", "task-reserve", "downstream-domains")
        study, data = self.study, self.study.data
        pretraining, downstream = study.populations.datasets.classes
        found = values_of(data, "data-dir", *of_classes, *of_tasks) | values_of(study.model)
        if data.task_reserve:  # Then some samples are kept for the tasks.
            every = values_of(data)
            found |= {key: every[key] for key in of_tasks} | {"downstream": downstream}
        found |= {
            "seed": self.run.seed,
            "min-replies": self.run.min_replies,
            "classes": pretraining,
            "contents": contents([data.dataset, study.model.model]),
            # Grey images become colour where those of the tasks' dataset are.
            "input-shape": study.input_shape,
            "phases": [phase.identity() for phase in self.phases],
        }
        methods = [phase.name for phase in self.phases] or [RANDOM]
        return "-".join([*methods, hash_of(found)])


class Task(Stage):
    """A downstream task from a starting model: what that is worth to each of its clients."""

    kind, phase = TASK_KIND, "downstream"

    def __init__(self, study: Starts, number: int, made: Pretraining) -> None:
        title, place, tasks = f"task {number} from {made.start}", f"tasks/{number}", study.tasks
        super().__init__(study.run, title, place, tasks.task_method, made.start, tasks.task_rounds)
        self.study, self.task, self.made = study, number, made
        self.population = task_name(number)

    def strategy(self) -> RoundStrategy:
        """Make the strategy of the tasks, in which all clients take part every round."""
        tasks, phase = self.study.tasks, self.study.task_phase
        run = self.run.of_strategy(
            self.population,
            run_name=self.study.run_name,
            # The comparison is paired: all clients answer, or the round is repeated.
            min_replies=tasks.task_clients,
            evaluate_every=tasks.task_evaluate_every or tasks.task_rounds,
        )
        return phase.method.strategy(phase.options, phase.training, **run)

    def initial(self, store: Store) -> Arrays:
        """Return the starting model, with the head that this task begins with."""
        arrays, _ = load_saved_model(store.folder(self.made))
        return self.study.task_model(self.population, arrays)

    def clients(self) -> Sequence[str]:
        """Return no domain for each client."""
        return [""] * self.study.tasks.task_clients

    def key(self) -> str:
        """Return the model's key, the task's number and a hash."""
        study, data = self.study, self.study.data
        found = values_of(study.tasks, "tasks", "task-method") | {
            "task-dataset": data.task_dataset,
            "task-reserve": data.task_reserve,
            "downstream-domains": data.downstream_domains,
            "batch-size": study.training.batch_size,
            "method": study.task_phase.identity(),
            "contents": contents([data.task_dataset]),
            "classes": study.populations.datasets.classes[1],
        }
        return f"{self.made.key()}/tasks/{self.task}-{hash_of(found)}"


# Networks are built for it: once for all runs of a comparison.
_head_names = functools.lru_cache(maxsize=16)(head_names)
