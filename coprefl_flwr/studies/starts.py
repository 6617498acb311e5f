"""A study of starting models: pre-train each, then run the same downstream tasks from it."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from torch import nn

from coprefl_flwr.arrays import Arrays, from_record
from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.data import Dataset, ImageDataset
from coprefl_flwr.data.division import DataSettings
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import LocalTraining, ServerData
from coprefl_flwr.methods import (
    PRETRAINING,
    RANDOM,
    TASK,
    with_role,
)
from coprefl_flwr.models import (
    build_model,
    head_names,
    load_saved_model,
    save_model,
    with_fresh_head,
)
from coprefl_flwr.models.network import Network
from coprefl_flwr.rounds.progress import PRETRAINING_KIND, TASK_KIND
from coprefl_flwr.rounds.strategy import EvaluateFn
from coprefl_flwr.strategies import RoundReport, RoundStrategy
from coprefl_flwr.studies import populations as clients_of
from coprefl_flwr.studies.identity import contents, hash_of, values_of
from coprefl_flwr.studies.personal_data import PersonalSettings
from coprefl_flwr.studies.phases import (
    Phase,
    TrainingSettings,
    check_all_used,
    entries,
    folder_of,
    read_phase,
)
from coprefl_flwr.studies.populations import TaskSettings, task_name
from coprefl_flwr.studies.settings import FolderSettings, ModelSettings, Settings
from coprefl_flwr.studies.stage import RunSettings, Stage, Store
from coprefl_flwr.studies.start import Start, read_start
from coprefl_flwr.studies.study import Study, not_set, versions


class Starts(Study):
    """A study of starting models, built from its settings.

    Raises
    ------
    SettingsError
        For an unknown method or option, a start named twice, or an option that no method has.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        not_set(settings, PersonalSettings, "set study = personalised to use it")
        self.run, self.model = settings.part(RunSettings), settings.part(ModelSettings)
        self.data, self.tasks = settings.part(DataSettings), settings.part(TaskSettings)
        self.training, self.short = settings.part(TrainingSettings), dict(settings.short)
        self.populations = clients_of.populations(self.data, self.tasks, self.run.seed)
        self._read: dict[str, Start] = {}
        self._networks: dict[int, nn.Module] = {}
        names = entries(settings.part(FolderSettings).method, [RANDOM, *with_role(PRETRAINING)])
        self.starts = {name: self.start(name) for name in names}
        self.task_phase = read_phase(
            "task-method", self.tasks.task_method.strip(), TASK, self.training, self.short
        )
        phases = [phase for start in self.starts.values() for phase in start.phases]
        check_all_used(self.short, [*phases, self.task_phase])
        made = {name: self._pretraining(start) for name, start in self.starts.items()}
        self.switch = self.starts[names[0]].switch
        self.stages = [
            *made.values(),
            *(
                self._task(number, name, stage)
                for number in range(self.tasks.tasks)
                for name, stage in made.items()
            ),
        ]

    def start(self, name: str) -> Start:
        """Return an entry of `method`, read once."""
        if name not in self._read:
            self._read[name] = read_start(name, self.training, self.short, self.data.clients)
        return self._read[name]

    # ---- stages --------------------------------------------------------------------------------

    def _pretraining(self, start: Start) -> Stage:
        def untrained(folder: Path, arrays: Arrays) -> None:
            save_model(folder, arrays, self.about(start))

        def keep(folder: Path, report: RoundReport, _: RoundStrategy) -> Mapping[str, Any]:
            save_model(folder, report.arrays, self.about(start))
            return {}

        return Stage(
            title=f"pre-training {start.name}",
            kind=PRETRAINING_KIND,
            path=f"starts/{folder_of(start.name)}",
            key=lambda: self._start_key(start),
            method=start.name,
            about={"phase": "pretraining", "start": start.name, "task": None},
            rounds=start.rounds,
            run=self.run,
            strategy=lambda: start.strategy(self.server_data, **self._run(clients_of.PRETRAINING)),
            initial=lambda _: self.first_arrays(start),
            keep=keep,
            untrained=untrained,
            tested=(lambda: self._tester(start.rounds)) if self.data.test_every else None,
        )

    def _task(self, number: int, start: str, made: Stage) -> Stage:
        population = task_name(number)

        def strategy() -> RoundStrategy:
            every = self.tasks.task_evaluate_every or self.tasks.task_rounds
            # The comparison is paired: all clients answer, or the round is repeated.
            run = self._run(population, min_replies=self.tasks.task_clients, evaluate_every=every)
            return self.task_phase.method.strategy(
                self.task_phase.options, self._task_training(), **run
            )

        def initial(store: Store) -> Arrays:
            return self.task_model(population, load_saved_model(store.folder(made))[0])

        return Stage(
            title=f"task {number} from {start}",
            kind=TASK_KIND,
            path=f"tasks/{number}/{folder_of(start)}",
            key=lambda: f"{made.key()}/tasks/{number}-{hash_of(self._task_identity())}",
            method=self.tasks.task_method,
            about={"phase": "downstream", "start": start, "task": number},
            rounds=self.tasks.task_rounds,
            run=self.run,
            strategy=strategy,
            initial=initial,
            measures=True,
            clients=lambda: [""] * self.tasks.task_clients,
        )

    def _run(self, population: str, **changes: Any) -> dict[str, Any]:
        return self.run.of_strategy(population, run_name=self.run_name, **changes)

    def _task_training(self) -> LocalTraining:
        """Return how clients train in the tasks: plain SGD (CoPreFL, appendix B.3)."""
        return LocalTraining(
            local_steps=self.tasks.task_local_steps,
            local_epochs=self.tasks.task_local_epochs,
            batch_size=self.training.batch_size,
            learning_rate=self.tasks.task_learning_rate,
        )

    # ---- networks ------------------------------------------------------------------------------

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
        return _head(self.model.model, self.num_classes, self.input_shape, self.model.norm)

    def first_arrays(self, start: Start) -> Arrays:
        """Return what a start's first method begins with: the same random weights for all."""
        network = Network(
            self.model.model, self.network(), self.num_classes, self.input_shape, self.head
        )
        first = start.phases[0].method.strategy_class if start.phases else RoundStrategy
        return first.initial(network)

    def task_model(self, population: str, start: Arrays) -> Arrays:
        """Return what a task begins with: the starting model under a fresh head.

        The head is the same for every starting model; with `head` = keep it is the start's own.
        """
        if self.tasks.head == "keep":
            return start
        fresh = self.network(self.tasks.task_classes, population, "model")
        return with_fresh_head(start, fresh, self.head)

    # ---- the server's side ---------------------------------------------------------------------

    def server_data(self, whose: str) -> ServerData:
        """Return what is computed on at the server (see `Populations.samples_of`)."""
        return ServerData(self.network(), self.populations.samples_of(whose))

    def _tester(self, last_round: int) -> EvaluateFn:
        """Return what tests the pre-trained model on the dataset's own test part, when due."""
        test = ServerData(self.network(), self.populations.test_samples())

        def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if server_round % self.data.test_every and server_round != last_round:
                return None
            found = test.evaluate(from_record(arrays))
            accuracy = 100 * found["correct"] / found["num-examples"]
            return MetricRecord({"accuracy": accuracy, "loss": found["loss"]})

        return measure

    def about(self, start: Start) -> dict[str, Any]:
        """Return how a starting model was made, for its JSON."""
        source = self.populations.datasets.pretraining
        return {
            "start": start.name,
            "phases": [phase.about() for phase in start.phases],
            "model": self.model.model,
            "norm": self.model.norm,
            "num-classes": self.num_classes,
            "input-shape": list(self.input_shape),
            "classes": [source.classes[n] for n in self.populations.datasets.classes[0]],
            **_pixels(source),
            "settings": self.config,
            "versions": versions(),
        }

    # ---- checks --------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise a SettingsError if something cannot be had as set; loads the data."""
        _ = self.head
        names = [clients_of.PRETRAINING, *map(task_name, range(self.tasks.tasks))]
        pretraining, *_ = [self.populations.population(name) for name in names]
        fewest = min(len(client.train) for client in pretraining.clients)
        for start in self.starts.values():
            for phase in start.phases:
                self._check_server_data(start, phase)
                # Better now than in a round.
                phase.method.check_samples(fewest, phase.options)

    def _check_server_data(self, start: Start, phase: Phase) -> None:
        """Raise a SettingsError if a method would find less data at the server than it needs."""
        held, participants = len(self.populations.server_samples()), phase.training.participants
        needed = phase.method.strategy_class.server_samples_needed(participants)
        if phase.method.uses_server_data and held < needed:
            parts = needed == participants > 1
            why = f" ({needed} participants, a part for each)" if parts else ""
            raise SettingsError(
                f"server-share = {self.data.server_share}, server-reserve = "
                f"{self.data.server_reserve}: the server has {held} samples, and {start.name} "
                f"needs at least {needed}{why}",
                "server-share",
                "server-reserve",
            )

    # ---- the clients' side ---------------------------------------------------------------------

    def hosted(self, population: str) -> int:
        """Return how many clients a population has, each of which any node can run."""
        return self.populations.size(population)

    def client(self, client_id: int, config: Mapping[str, Any]) -> TorchClient:
        """Return a client of the method that a message is about: a start's phase, or a task's."""
        group = self.populations.population(str(config["population"]))
        if group.name == clients_of.PRETRAINING:
            phase = self.start(str(config["method"])).phase(int(config["server-round"]))
            training: LocalTraining = phase.training
        else:
            phase, training = self.task_phase, self._task_training()
        held = group.clients[client_id]
        # In the run's folder: any node may run any client, so they share a file system.
        offered = {"state": ClientState(str(config.get("state-dir", "")))}
        module = self._shared_network(len(group.classes))
        return phase.method.client(
            phase.options, module, held.train, offered, test=held.test, training=training
        )

    def _shared_network(self, num_classes: int) -> nn.Module:
        """Return the network that this process's clients load their weights into."""
        if num_classes not in self._networks:
            self._networks[num_classes] = self.network(num_classes)
        return self._networks[num_classes]

    # ---- what results depend on ----------------------------------------------------------------

    def _start_key(self, start: Start) -> str:
        """Return the name of a starting model in a store: its methods and a hash."""
        methods = [phase.name for phase in start.phases] or [RANDOM]
        return "-".join([*methods, hash_of(self._start_identity(start))])

    def _start_identity(self, start: Start) -> dict[str, Any]:
        of_classes = ("downstream-classes", "pretraining-classes", "allow-class-overlap")
        of_tasks = ("task-dataset", "task-reserve", "downstream-domains")
        pretraining, downstream = self.populations.datasets.classes
        found = values_of(self.data, "data-dir", *of_classes, *of_tasks) | values_of(self.model)
        if self.data.task_reserve:  # Then some samples are kept for the tasks.
            every = values_of(self.data)
            found |= {key: every[key] for key in of_tasks} | {"downstream": downstream}
        return found | {
            "seed": self.run.seed,
            "min-replies": self.run.min_replies,
            "classes": pretraining,
            "contents": contents([self.data.dataset, self.model.model]),
            # Grey images become colour where those of the tasks' dataset are.
            "input-shape": self.input_shape,
            "phases": [phase.identity() for phase in start.phases],
        }

    def _task_identity(self) -> dict[str, Any]:
        return values_of(self.tasks, "tasks", "task-method") | {
            "task-dataset": self.data.task_dataset,
            "task-reserve": self.data.task_reserve,
            "downstream-domains": self.data.downstream_domains,
            "batch-size": self.training.batch_size,
            "method": self.task_phase.identity(),
            "contents": contents([self.data.task_dataset]),
            "classes": self.populations.datasets.classes[1],
        }


@functools.lru_cache(maxsize=16)
def _head(model: str, num_classes: int, shape: tuple[int, ...], norm: str) -> frozenset[str]:
    """Return `head_names`, for which networks are built, once for all runs of a comparison."""
    return head_names(model, num_classes, shape, norm)


def _pixels(source: Dataset) -> dict[str, list[float]]:
    """Return how the pixels of images were normalised; texts have none."""
    if not isinstance(source, ImageDataset):
        return {}
    return {"pixel-mean": source.mean.tolist(), "pixel-std": source.std.tolist()}
