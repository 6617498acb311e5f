"""A study of starting models: pre-train each, then run the same downstream tasks from it."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import nn

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.data.division import DataSettings
from coprefl_flwr.errors import SettingsError, concerning
from coprefl_flwr.federation import HeadLayer, RoundStrategy
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.learning import ServerData
from coprefl_flwr.methods import HEAD, PRETRAINING, RANDOM, TASK, with_role
from coprefl_flwr.models import build_model, head_names, with_fresh_head
from coprefl_flwr.models.network import last_linear
from coprefl_flwr.options import declared
from coprefl_flwr.studies import populations as clients_of
from coprefl_flwr.studies.identity import texts_of
from coprefl_flwr.studies.method import KEEP, NO_METHODS, Methods
from coprefl_flwr.studies.personal_data import PersonalSettings
from coprefl_flwr.studies.phases import (
    Phase,
    TrainingSettings,
    check_all_used,
    check_precisions,
    one_phase,
    read_phase,
)
from coprefl_flwr.studies.populations import TaskSettings, task_name
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import FOLDER, STAGE, STATES, Stage
from coprefl_flwr.studies.start_loss import StartLoss
from coprefl_flwr.studies.study import Study, not_set
from coprefl_flwr.studies.tasks import Diagnosis, Task

CPU = torch.device("cpu")


class Starts(Study):
    """A study of starting models; refuses the settings of personalised studies."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        not_set(settings, declared(PersonalSettings), "set study = personalised to use it")
        self.data, self.tasks = settings.part(DataSettings), settings.part(TaskSettings)
        self.metrics.check(self.tasks.task_classes)
        self.populations = self.made_populations()
        self._shared_network = functools.cache(self.network)
        self.starts = self.made_starts(settings.method)
        of_tasks = TrainingSettings(  # Plain SGD (CoPreFL, appendix B.3).
            rounds=max(self.tasks.task_rounds, 1),
            participants=self.tasks.task_clients,
            local_steps=self.tasks.task_local_steps,
            local_epochs=self.tasks.task_local_epochs,
            batch_size=self.training.batch_size,
            learning_rate=self.tasks.task_learning_rate,
            precision=self.training.precision,
        )
        self.task_phase, head = self.made_task_phase(of_tasks), self.tasks.head
        if self.tasks.tasks:
            self.task_phase.check_aggregation("task-method", self.tasks.task_clients)
        self.head_phase: Phase | None = None
        if head not in NO_METHODS:
            self.head_phase = read_phase(
                "head", one_phase("head", head), HEAD, of_tasks, self.short
            )
        made = self.starts.values()
        phases = [phase for start in made for phase in start.phases]
        of_tasks_too = [phase for phase in (self.task_phase, self.head_phase) if phase]
        check_all_used(self.short, [*phases, *of_tasks_too])
        self.stages: list[Stage] = list(made)
        for task in [Task(self, n, start) for n in range(self.tasks.tasks) for start in made]:
            self.stages += [task, Diagnosis(task)] if self.tasks.diagnostics else [task]
        if self.tasks.start_loss:
            self.stages += map(StartLoss, made)

    def made_populations(self) -> clients_of.Populations:
        """Return the clients of all phases."""
        return clients_of.populations(self.data, self.tasks, self.run.seed)

    def made_starts(self, methods: Methods) -> Mapping[str, Pretraining]:
        """Return the stages that make the starting models, by name."""
        methods.check([RANDOM, *with_role(PRETRAINING)])
        return {str(one): Pretraining(self, one) for one in methods}

    def made_task_phase(self, training: TrainingSettings) -> Phase:
        """Return the method of the tasks, with its options."""
        chosen = one_phase("task-method", self.tasks.task_method)
        return read_phase("task-method", chosen, TASK, training, self.short)

    def task_strategy(self, **run: Any) -> RoundStrategy:
        """Make the strategy of a task, with these options of the run."""
        phase = self.task_phase
        return phase.algorithm.strategy(phase.options, phase.training, **run)

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
        model, norm = self.model.model, self.model.norm
        text = texts_of({"model": model})
        return _head_names(model, self.num_classes, self.input_shape, norm, text)

    def task_model(self, population: str, start: Arrays) -> Arrays:
        """Return what a task begins with: the starting model under a fresh head.

        The head is the same for every starting model; with `head` = keep it is the start's own.
        """
        if self.tasks.head == KEEP:
            return start
        fresh = self.network(self.tasks.task_classes, population, "model")
        return with_fresh_head(start, fresh, self.head)

    def head_layer(self, num_classes: int) -> HeadLayer:
        """Return the layer that a computed head replaces, in the network of a task."""
        named = self.tasks.head_layer
        with concerning("head-layer"):
            sample = self.populations.datasets.tasks.inputs(np.zeros(1, np.int64), CPU)
            found = last_linear(self.network(num_classes), sample, named)
        has_bias = f"{found}.bias" in self.head
        if f"{found}.weight" not in self.head:
            problem = f"head-layer = {named or 'not set'}: {found} does not give the classes"
            raise SettingsError(f"{problem}; of those arrays there are {', '.join(self.head)}")
        return HeadLayer(found, f"{found}.weight", f"{found}.bias" if has_bias else "")

    def server_data(self, whose: str) -> ServerData:
        """Return what is computed on at the server (see `Populations.samples_of`)."""
        return ServerData(self.network(), self.populations.samples_of(whose))

    def check(self) -> None:
        """Raise a SettingsError if something cannot be had as set; loads the data."""
        of_starts = [phase for start in self.starts.values() for phase in start.phases]
        check_precisions([self.task_phase, *of_starts])
        _ = self.head
        names = [clients_of.PRETRAINING, *map(task_name, range(self.tasks.tasks))]
        pretraining, *_ = [self.populations.population(name) for name in names]
        if self.head_phase or self.tasks.diagnostics:
            self.head_layer(self.tasks.task_classes)
        fewest = min(len(client.train) for client in pretraining.clients)
        for start in self.starts.values():
            if start.from_elsewhere:
                start.weights()
            about = {"population": clients_of.PRETRAINING, STAGE: start.path, FOLDER: start.path}
            first = 1
            for phase in start.phases:
                self._check_server_data(start.start, phase)
                # Better now than in a round.
                phase.algorithm.check_samples(fewest, phase.options)
                if drawn := phase.training.wrapped_clients(self.run.seed, self.data.clients):
                    self.client(min(drawn), {**about, "server-round": first})
                first += phase.training.rounds

    def _check_server_data(self, start: str, phase: Phase) -> None:
        """Raise a SettingsError if a method would find less data at the server than it needs."""
        held, participants = len(self.populations.server_samples()), phase.training.participants
        needed = phase.algorithm.strategy_class.server_samples_needed(participants)
        if phase.algorithm.uses_server_data and held < needed:
            parts = needed == participants > 1
            why = f" ({needed} participants, a part for each)" if parts else ""
            share, reserve = self.data.server_share, self.data.server_reserve
            problem = (
                f"server-share = {share}, server-reserve = {reserve}: the server has {held} "
                f"samples, and {start} needs at least {needed}{why}"
            )
            raise SettingsError(problem, "server-share", "server-reserve")

    def client(self, client_id: int, config: Mapping[str, Any]) -> NumPyClient:
        """Return the client that a message is about, wrapped if it was drawn for that."""
        client = super().client(client_id, config)
        if str(config["population"]) != clients_of.PRETRAINING:
            return client
        training = self.stage_of(config).phase_of(int(config["server-round"])).training
        drawn = training.wrapped_clients(self.run.seed, self.data.clients)
        return training.wrapped(client) if client_id in drawn else client

    def client_of_method(self, client_id: int, config: Mapping[str, Any]) -> TorchClient:
        """Return a client of the method that a message is about: a start's phase, or a task's."""
        group = self.populations.population(str(config["population"]))
        phase = self.stage_of(config).phase_of(int(config["server-round"]))
        held = group.clients[client_id]
        # In the run's folder: any node may run any client, so they share a file system.
        offered = {"state": ClientState(self.folder_of(config) / STATES)}
        # Weights are loaded into it, so all clients of a process share it.
        module = self._shared_network(len(group.classes))
        return phase.algorithm.client(
            phase.options, module, held.train, offered, test=held.test, training=phase.training
        )


@functools.lru_cache(maxsize=16)
def _head_names(
    model: str, num_classes: int, shape: tuple[int, ...], norm: str, _: tuple[str, ...]
) -> frozenset[str]:
    """Return `head_names`, for which networks are built, once for all runs of a comparison."""
    return head_names(model, num_classes, shape, norm)
