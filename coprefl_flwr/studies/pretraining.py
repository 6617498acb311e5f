"""The stage that makes a starting model: by pre-training, or from external weights."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.client import NumPyClient
from torch import nn

from coprefl_flwr import plugins
from coprefl_flwr.arrays import Arrays, checksum_of, from_record
from coprefl_flwr.data import ImageDataset, Samples
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.checkpoint import State
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.federation.run import EvaluateFn
from coprefl_flwr.learning.loss import CROSS_ENTROPY, Loss
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.methods import RANDOM
from coprefl_flwr.models import as_array, save_model, with_fresh_head
from coprefl_flwr.models.frozen import without_base
from coprefl_flwr.models.weights import arrays_from, path_of
from coprefl_flwr.named import folder_of
from coprefl_flwr.report.columns import START_LOSS
from coprefl_flwr.report.training_checks import Problem, problem_of
from coprefl_flwr.strategies import RoundReport, RoundStrategy
from coprefl_flwr.studies.architecture import Architecture
from coprefl_flwr.studies.hashes import hash_of, hash_of_file
from coprefl_flwr.studies.method import Method, parts_of
from coprefl_flwr.studies.populations import PRETRAIN, Clients, Population, hash_of_samples
from coprefl_flwr.studies.provenance import made_by
from coprefl_flwr.studies.stage import ClientFolders, RunOptions, TrainingStage
from coprefl_flwr.studies.store import STATES, Store, read_result


class Pretraining(TrainingStage):
    """The stage that pre-trains and stores a starting model.

    Parameters
    ----------
    method : Method
        The method in its role; `random`, or the place of external weights.
    clients : Clients, optional
        The clients of the pre-training; None if weights are given.
    architecture : Architecture
        The architecture of the starting model.
    run : RunOptions
        Options of running rounds, such as the seed and the timeout.
    name : str
        The name of the starting model in rows and reports; "" means the text of the method.
    weights : str or nn.Module, optional
        Given weights, instead of a method: a module with its weights, or a text (such as a file)
        that `models.weights` reads.
    keeps_head : bool
        Whether tasks begin with the last layer of the starting model.
    test_every : int
        Number of rounds between tests on the dataset's test split, which no client holds. 0 means
        no test.
    loss : Loss
        The loss of evaluations and measurements of the model; training has its own.
    settings : Mapping[str, Any]
        The settings of the study, which are written to `model.json`.
    """

    phase, has_client_rows = "pretraining", False

    def __init__(
        self,
        method: Method,
        clients: Clients | None,
        architecture: Architecture,
        run: RunOptions,
        *,
        name: str = "",
        weights: str | nn.Module | None = None,
        keeps_head: bool = False,
        test_every: int = 0,
        loss: Loss = CROSS_ENTROPY,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method, self.phases = method, method.trained
        self.given = str(method) if weights is None and method.is_external else weights
        start, self.name = name or str(method), name or method.without_folders
        self._clients, self.architecture = clients, architecture
        self.keeps_head, self.test_every = keeps_head, test_every
        self.loss, self.settings = loss, settings or {}
        what = f"method, {start}"
        for phase in self.phases:
            wanted, most = phase.training.participants, self.clients.number
            if wanted > most:
                problem = f"participants = {wanted}: must be at most clients = {most}"
                raise SettingsError(f"{what}: {problem}", "participants", "clients")
            share = phase.training.client_wrapper_share
            if share and not round(share * most):
                problem = f"client-wrapper-share = {share}: rounds to 0 of clients = {most}"
                raise SettingsError(f"{what}: {problem}", "client-wrapper-share", "clients")
        rounds = [phase.training.rounds for phase in self.phases]
        title, path = f"pre-training {self.name}", f"starts/{folder_of(self.name)}"
        super().__init__(run, title, path, start, sum(rounds))
        self.phase_switch = rounds[0] if len(rounds) > 1 else 0

    @property
    def is_external(self) -> bool:
        """Whether the weights are given, so that this stage trains nothing."""
        return self.given is not None

    def phase_of(self, server_round: int) -> Method:
        """Return the phase of a round, counted from 1 over all phases."""
        ends = np.cumsum([phase.training.rounds for phase in self.phases[:-1]])
        return self.phases[int(np.searchsorted(ends, server_round))]

    def strategy(self) -> RoundStrategy:
        """Return a new strategy that runs all phases."""
        clients = self.clients.number
        if self.method.instance:  # It has the other options. Starts are evaluated in tasks.
            return self.method.strategy(population=PRETRAIN, clients=clients, evaluate_every=0)
        return self.method.strategy(self.server_data, **self.of_strategies())

    def of_strategies(self) -> dict[str, Any]:
        """Return the options of this stage that the strategies of all phases have, by name."""
        return self.run_options.of_strategy(PRETRAIN, clients=self.clients.number)

    @property
    def module(self) -> nn.Module:
        """The network that clients train in this process."""
        return self.architecture.shared(self.architecture.num_classes)

    def initial(self, store: Store | None = None) -> Arrays:
        """Return the initial weights: given weights, or the initial arrays of the first method.

        Raises a SettingsError if given weights do not fit the network.
        """
        weights = self.given
        if isinstance(weights, nn.Module):
            of_head = frozenset() if self.keeps_head else self.architecture.head
            given = without_base(weights.state_dict(), self.module, of_head)
            return {name: as_array(tensor, name) for name, tensor in given.items()}
        network = self.architecture.of_pretraining()
        if weights is not None:
            return arrays_from(weights, network, self.run_options.seed, needs_head=self.keeps_head)
        first = self.phases[0].strategy_class if self.phases else RoundStrategy
        return first.initial(network)

    def server_data(self, whose: str) -> ServerData:
        """Return the server's network and samples; `whose` is as in `Clients.samples_of`."""
        samples = self.clients.samples_of(whose)
        if not len(samples):
            problem = f"server-share, server-reserve: {self.start} needs samples of the server"
            raise SettingsError(problem, "server-share", "server-reserve")
        return ServerData(self.architecture.make(), samples, loss=self.loss)

    def client(self, client_id: int, server_round: int, folders: ClientFolders) -> NumPyClient:
        """Return a client of the round's phase; the client is wrapped if its id was drawn."""
        phase = self.phase_of(server_round)
        # States are in the run's folder: any node may run any client, so nodes share a file system.
        state, samples = ClientState(folders.states), self.population.clients[client_id]
        client = phase.client(self.module, samples, state=state)
        drawn = self._wrapped_clients(phase)
        return phase.training.wrapped(client) if client_id in drawn else client

    def _wrapped_clients(self, phase: Method) -> frozenset[int]:
        return phase.training.wrapped_clients(self.run_options.seed, self.clients.number)

    @property
    def has_clients(self) -> bool:
        """Whether there are clients. Given weights need no clients."""
        return self._clients is not None

    @property
    def clients(self) -> Clients:
        """The clients of the pre-training; raises a SettingsError if there are none."""
        if self._clients is None:
            raise SettingsError(f"start {self.start!r} has no clients: its weights are given")
        return self._clients

    @property
    def population(self) -> Population:
        """The population: the samples of each client."""
        return self.clients.population

    def check(self) -> None:
        """Load the data, and raise a SettingsError if data, weights or clients do not fit."""
        _ = self.architecture.head
        if not any(parameter.requires_grad for parameter in self.module.parameters()):
            problem = f"{self.architecture.name} has no trainable parameters (requires_grad)"
            raise SettingsError(f"model = {problem}", "model")
        clients = self.population.clients if self.has_clients else ()
        fewest = min((len(client.train) for client in clients), default=0)
        if self.given is not None:
            of_head = frozenset() if self.keeps_head else self.architecture.head
            try:
                with_fresh_head(self.initial(), self.architecture.make(), of_head)
            except SettingsError as error:
                raise SettingsError(f"start {self.start!r}: {error}") from error
        first = 1
        for phase in self.phases:
            # An error before the first round is better than an error in a round.
            phase.check_samples(fewest)
            if drawn := self._wrapped_clients(phase):
                self.client(min(drawn), first, ClientFolders(Path(STATES), Path()))
            first += phase.training.rounds
        if self.phases:
            self.loss.check(self.module, clients[0].train)
            self.strategy()

    def save_extras(self, folder: Path, arrays: Arrays, state: State) -> dict[str, Any]:
        """Write the starting model, and `model.json`: how the model was made."""
        architecture, pixels = self.architecture, {}
        dataset = architecture.source.dataset
        if isinstance(dataset, ImageDataset):  # The normalisation of images.
            pixels = {"pixel-mean": dataset.mean.tolist(), "pixel-std": dataset.std.tolist()}
        about = {
            "start": self.start,
            "phases": [phase.about() for phase in self.phases],
            **architecture.about(),
            "num-classes": architecture.num_classes,
            "input-shape": list(architecture.input_shape),
            "classes": architecture.source.class_names,
            **pixels,
            **architecture.base,
            "settings": self.settings,
            **made_by(),
        }
        save_model(folder, arrays, about)
        return {}

    def tester(self) -> EvaluateFn | None:
        """Return the function that evaluates the global model on the server, or None.

        Every `test_every` rounds, the function measures loss and accuracy on the dataset's test
        split. If `stop-at-loss` is set, the function measures the loss on all clients' training
        samples every `stop-check-every` rounds. Both are also measured in the last round.
        """
        every, checked = self.test_every, self.run_options.stop_check_every
        stops = self.run_options.stop_at_loss is not None
        make, samples = self.architecture.make, self.clients.test_samples
        test = ServerData(make(), samples(), loss=self.loss) if every else None
        clients = self.server_data("clients") if stops else None

        def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            model, last = from_record(arrays, copy=False), server_round == self.rounds
            metrics: dict[str, float] = {}
            if clients and server_round and (last or server_round % checked == 0):
                metrics[START_LOSS] = clients.evaluate(model)["loss"]
                last = last or self.reached(metrics[START_LOSS])
            if test and (last or server_round % every == 0):
                of_test = test.evaluate(model)
                if "correct" in of_test:
                    metrics["accuracy"] = 100 * of_test["correct"] / of_test["num-examples"]
                metrics["loss"] = of_test["loss"]
            return MetricRecord(dict(metrics)) if metrics else None

        return measure if test or clients else None

    def problem(self, folder: Path) -> Problem | None:
        """Return a Problem if the last phase of the training diverged, else None."""
        if not self.phases:
            return None
        before = self.rounds - self.phases[-1].training.rounds
        losses = [
            row["loss"]
            for row in read_result(folder)["rounds"]
            if "loss" in row and row.get("round", 0) > before
        ]
        return problem_of(losses)

    def max_parallel_clients(self) -> int:
        """Return the number of clients that can train at the same time; it is 1 in a chain."""
        wide = [phase for phase in self.phases if phase.strategy_class.loss_of != "chain"]
        return max([1, *(phase.training.participants for phase in wide)])

    def chained(self, rounds: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the rounds in which the clients train in a chain, one after the other."""
        numbers = [row.get("round", 0) for row in rounds]
        return [n for n in numbers if self.phase_of(n).strategy_class.loss_of == "chain"]

    def evaluate(self, arrays: Arrays, samples: Samples) -> Mapping[str, float]:
        """Evaluate a model in eval mode: {"loss": mean, "correct": hits, "num-examples": n}."""
        return ServerData(self.architecture.make(), samples, loss=self.loss).evaluate(arrays)

    def reached(self, loss: float) -> bool:
        """Return whether a loss is at most `stop-at-loss`; False if that is not set."""
        return self.run_options.stop_at_loss is not None and loss <= self.run_options.stop_at_loss

    def ends(self, report: RoundReport) -> bool:
        """Return whether the loss that was measured in this round is at most `stop-at-loss`."""
        return self.reached(report.metrics.get(f"server-{START_LOSS}", math.inf))

    def identity(self) -> Mapping[str, Any]:
        """Return the inputs that the model depends on.

        If the stage is open-ended, the number of rounds of the last phase is left out.
        """
        phases = [phase.identity() for phase in self.phases]
        if self.open_ended and phases:
            del phases[-1]["rounds"]
        about = {
            "method": phases,
            "network": self.architecture.identity(),
            "seed": self.run_options.seed,
            "min-replies": self.run_options.min_replies,
        }
        if self.method.instance is not None:
            strategy = self.method.instance
            servers = [getattr(part, "server", None) for part, _ in parts_of(strategy, 1)]
            samples = [server.samples for server in servers if isinstance(server, ServerData)]
            about |= {"strategy": strategy.options(), "server": hash_of_samples(samples)}
        if self._clients is not None:
            about |= {"clients": self.clients.identity(), "test-every": self.test_every}
        if self.run_options.stop_at_loss is not None and self.phases:
            about["stop"] = [self.run_options.stop_at_loss, self.run_options.stop_check_every]
        about |= self.loss.identity()
        if isinstance(self.given, nn.Module):
            about["weights"] = checksum_of(self.initial())
        elif self.given is not None:
            about["weights"] = _origin(self.given)
        return about

    @property
    def key(self) -> str:
        """Return the names of the methods and a hash of the identity, joined by hyphens."""
        name = "-".join([phase.label for phase in self.phases] or [RANDOM])
        if self.is_external:
            module = isinstance(self.given, nn.Module)
            name = folder_of(self.name if module else Path(self.start).name)
        return f"{name}-{hash_of(self.identity())}"


def _origin(name: str) -> dict[str, str]:
    """Return the identity of given weights: the file's hash, or a name and the code's hash."""
    path = path_of(name)
    if path is None:
        return {"name": name, "text": plugins.hash_at("start", name)}
    return {"content": hash_of_file(path) if path.is_file() else ""}
