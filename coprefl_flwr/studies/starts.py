"""A study of starting models: pre-train each, then run the same downstream tasks from it."""

import functools
from collections.abc import Mapping
from typing import Any

from torch import nn

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.data.division import DataSettings
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import LocalTraining, ServerData
from coprefl_flwr.methods import PRETRAINING, RANDOM, TASK, with_role
from coprefl_flwr.models import build_model, head_names, with_fresh_head
from coprefl_flwr.models.network import Network
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies import populations as clients_of
from coprefl_flwr.studies.personal_data import PersonalSettings
from coprefl_flwr.studies.phases import Phase, TrainingSettings, check_all_used, entries, read_phase
from coprefl_flwr.studies.populations import TaskSettings, task_name
from coprefl_flwr.studies.pretraining import Pretraining, Task
from coprefl_flwr.studies.settings import FolderSettings, ModelSettings, Settings
from coprefl_flwr.studies.stage import RunSettings
from coprefl_flwr.studies.starting_model import StartingModel, read_starting_model
from coprefl_flwr.studies.study import Study, not_set


class Starts(Study):
    """A study of starting models, built from its settings.

    Raises a SettingsError for an unknown method or option, a start named twice, or an option that
    no method has.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        not_set(settings, PersonalSettings, "set study = personalised to use it")
        self.run, self.model = settings.part(RunSettings), settings.part(ModelSettings)
        self.data, self.tasks = settings.part(DataSettings), settings.part(TaskSettings)
        self.training, self.short = settings.part(TrainingSettings), dict(settings.short)
        self.populations = clients_of.populations(self.data, self.tasks, self.run.seed)
        self._read: dict[str, StartingModel] = {}
        self._networks: dict[int, nn.Module] = {}
        names = entries(settings.part(FolderSettings).method, [RANDOM, *with_role(PRETRAINING)])
        self.starts = {name: self.starting_model(name) for name in names}
        self.task_phase = read_phase(
            "task-method", self.tasks.task_method.strip(), TASK, self.training, self.short
        )
        phases = [phase for start in self.starts.values() for phase in start.phases]
        check_all_used(self.short, [*phases, self.task_phase])
        self.switch = self.starts[names[0]].switch
        made = [Pretraining(self, start) for start in self.starts.values()]
        numbers = range(self.tasks.tasks)
        self.stages = [*made, *(Task(self, number, start) for number in numbers for start in made)]

    def starting_model(self, name: str) -> StartingModel:
        """Return an entry of `method`, read once."""
        if name not in self._read:
            self._read[name] = read_starting_model(
                name, self.training, self.short, self.data.clients
            )
        return self._read[name]

    def task_training(self) -> LocalTraining:
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

    def first_arrays(self, start: StartingModel) -> Arrays:
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

    def _check_server_data(self, start: StartingModel, phase: Phase) -> None:
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
            phase = self.starting_model(str(config["method"])).phase(int(config["server-round"]))
            training: LocalTraining = phase.training
        else:
            phase, training = self.task_phase, self.task_training()
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


@functools.lru_cache(maxsize=16)
def _head(model: str, num_classes: int, shape: tuple[int, ...], norm: str) -> frozenset[str]:
    """Return `head_names`, for which networks are built, once for all runs of a comparison."""
    return head_names(model, num_classes, shape, norm)
