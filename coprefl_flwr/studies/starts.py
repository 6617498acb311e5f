"""A study of starting models: pre-train each, then run the same downstream tasks from it."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.client import NumPyClient
from torch import nn

from coprefl_flwr.clients import TorchClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.learning import ServerData
from coprefl_flwr.studies import populations as clients_of
from coprefl_flwr.studies.architecture import Architecture
from coprefl_flwr.studies.client_metrics import ClientMetrics
from coprefl_flwr.studies.phases import Phase, check_precisions
from coprefl_flwr.studies.populations import Populations, TaskSettings, task_name
from coprefl_flwr.studies.pretraining import Pretraining, Start
from coprefl_flwr.studies.stage import FOLDER, STAGE, STATES, RunSettings, Stage
from coprefl_flwr.studies.start_loss import StartLoss
from coprefl_flwr.studies.study import Study
from coprefl_flwr.studies.tasks import Diagnosis, Task


class Starts(Study):
    """A study of starting models.

    Parameters
    ----------
    populations : Populations
        The clients of the pre-training and of the tasks.
    architecture : Architecture
        The network.
    starts : Sequence[Start]
        How each starting model is made.
    tasks : TaskSettings
        The tasks; none where `tasks.tasks` is 0.
    task_phase, head_phase : Phase
        The method of the tasks, and that which computes their last layer, if one does.
    test_every : int
        Rounds of a pre-training between tests on the dataset's own test part; 0: none.

    Other parameters are as in `Study`.
    """

    def __init__(
        self,
        populations: Populations,
        architecture: Architecture,
        starts: Sequence[Start],
        tasks: TaskSettings,
        task_phase: Phase | None,
        run: RunSettings,
        metrics: ClientMetrics,
        root: Path,
        config: Mapping[str, Any],
        run_name: str = "run",
        *,
        head_phase: Phase | None = None,
    ) -> None:
        super().__init__(run, metrics, root, config, run_name)
        self.populations, self.data, self.tasks = populations, populations.data, tasks
        self.architecture = architecture
        self.task_phase, self.head_phase = task_phase, head_phase
        self._networks: dict[int, nn.Module] = {}
        self.metrics.check(tasks.task_classes)
        if task_phase and tasks.tasks:
            task_phase.check_aggregation("task-method", tasks.task_clients)
        self.starts = {one.name: Pretraining(self, one) for one in starts}
        made = self.starts.values()
        self.stages: list[Stage] = list(made)
        for number, start in itertools.product(range(tasks.tasks), made):
            if task_phase:
                task = Task(self, number, start, task_phase, head_phase)
                self.stages += [task, Diagnosis(task)] if tasks.diagnostics else [task]
        if tasks.start_loss:
            self.stages += map(StartLoss, made)

    def server_data(self, whose: str) -> ServerData:
        """Return what is computed on at the server (see `Populations.samples_of`)."""
        return ServerData(self.architecture.make(), self.populations.samples_of(whose))

    def check(self) -> None:
        """Raise a SettingsError if something cannot be had as set; loads the data."""
        of_starts = [phase for start in self.starts.values() for phase in start.phases]
        check_precisions([*of_starts, *([self.task_phase] if self.task_phase else [])])
        _ = self.architecture.head
        names = [clients_of.PRETRAINING, *map(task_name, range(self.tasks.tasks))]
        pretraining, *_ = [self.populations.population(name) for name in names]
        if self.head_phase or self.tasks.diagnostics:
            self.architecture.head_layer(self.tasks.task_classes, self.tasks.head_layer)
        fewest = min(len(client.train) for client in pretraining.clients)
        for start in self.starts.values():
            start.check()
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
        if len(group.classes) not in self._networks:
            self._networks[len(group.classes)] = self.architecture.make(len(group.classes))
        module = self._networks[len(group.classes)]
        return phase.algorithm.client(
            phase.options, module, held.train, offered, test=held.test, training=phase.training
        )
