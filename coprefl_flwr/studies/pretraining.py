"""The stage that makes a starting model: by pre-training, or from external weights."""

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from torch import nn

from coprefl_flwr import plugins
from coprefl_flwr.arrays import Arrays, checksum_of, from_record
from coprefl_flwr.data import ImageDataset, Samples, pooled
from coprefl_flwr.errors import SettingsError, prefixed
from coprefl_flwr.federation.averaging import AVERAGES, mean_model
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.federation.flower import NumPyClient
from coprefl_flwr.federation.keep import BEST, LAST, START_LOSS, Keep
from coprefl_flwr.federation.run import EvaluateFn
from coprefl_flwr.learning.device import default_device
from coprefl_flwr.learning.loss import CROSS_ENTROPY, Loss
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.learning.together import clients_at_once
from coprefl_flwr.methods import RANDOM
from coprefl_flwr.models import as_array, model_arrays, save_model, with_fresh_head
from coprefl_flwr.models.adapters import save_adapters
from coprefl_flwr.models.frozen import without_base
from coprefl_flwr.models.weights import WEIGHTS, arrays_from, path_of
from coprefl_flwr.named import folder_of
from coprefl_flwr.report.columns import KEPT, KEPT_BY
from coprefl_flwr.report.training_checks import Problem, problem_of
from coprefl_flwr.strategies import RoundReport, RoundStrategy
from coprefl_flwr.studies.architecture import Architecture
from coprefl_flwr.studies.card import write_card
from coprefl_flwr.studies.costs import cost
from coprefl_flwr.studies.hashes import hash_of, hash_of_file
from coprefl_flwr.studies.method import Method, parts_of
from coprefl_flwr.studies.populations import PRETRAIN, Clients, Population, hash_of_samples
from coprefl_flwr.studies.provenance import made_by
from coprefl_flwr.studies.stage import ClientFolders, RunOptions, TrainingStage
from coprefl_flwr.studies.store import STATES, Store, read_result

MEASURED = (START_LOSS, "accuracy", "loss")
"""The metrics by which rounds are compared: of the server, and those that clients measure."""


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
        self.keep = run.keep if self.phases else None
        what = f"method, {start}"
        fixed = {not phase.strategy_class.trains_head for phase in self.phases}
        if len(fixed) > 1:
            raise SettingsError(f"{what}: one phase trains the last layer, another does not")
        for phase in self.phases[:-1]:
            if early := {*AVERAGES} & {*dict(phase.options)}:
                raise SettingsError(f"{what}: {min(early)}: set it in the last phase", *early)
        # Of the server and the clients. Tasks have those of `architecture`.
        self.networks = architecture.with_fixed_head() if True in fixed else architecture
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
        return self.method.strategy(self.server_data, **self.of_strategies())

    def of_strategies(self) -> dict[str, Any]:
        """Return the options of this stage that the strategies of all phases have, by name."""
        # Starts are evaluated in tasks. Here clients only measure which round is the best.
        every = self.keep.every if self.keep and self.keep.of_clients else 0
        own: dict[str, Any] = {"clients": self.clients.number, "evaluate_every": every}
        if self.method.instance:  # It has the other options.
            return {"population": PRETRAIN, **own}
        last = self.phases[-1].training
        own |= {"average_window": last.average_window, "average_decay": last.average_decay}
        return self.run_options.of_strategy(PRETRAIN, **own)

    @property
    def module(self) -> nn.Module:
        """The network that clients train in this process."""
        return self.networks.shared(self.architecture.num_classes)

    def initial(self, store: Store | None = None) -> Arrays:
        """Return the initial weights: given weights, or the initial arrays of the first method.

        Raises a SettingsError if given weights do not fit the network.
        """
        weights = self.given
        if isinstance(weights, nn.Module):
            of_head = frozenset() if self.keeps_head else self.architecture.head
            given = without_base(weights.state_dict(), self.module, of_head)
            return {name: as_array(tensor) for name, tensor in given.items()}
        network = self.networks.of_pretraining()
        if weights is not None:
            return arrays_from(weights, network, self.run_options.seed, needs_head=self.keeps_head)
        first = self.phases[0].strategy_class if self.phases else RoundStrategy
        return first.initial(network)

    def server_data(self, whose: str) -> ServerData:
        """Return the server's network and samples; `whose` is as in `samples_of`."""
        samples = self.samples_of(whose)
        if not len(samples):
            problem = f"server-share, server-reserve: {self.start} needs samples of the server"
            raise SettingsError(problem, "server-share", "server-reserve")
        return ServerData(self.networks.make(), samples, loss=self.loss)

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
        """The clients of the pre-training, for a start that has them."""
        assert self._clients is not None
        return self._clients

    @functools.cached_property
    def population(self) -> Population:
        """The population: the samples of each client; its test samples are for validation."""
        clients, keep = self.clients, self.keep
        if not keep or not keep.of_clients:
            return clients.population
        return clients.population.with_validation(keep.share, clients.seed)

    def samples_of(self, whose: str) -> Samples:
        """Return the samples of the server, the training samples of all clients, or both.

        `whose` is "server", "clients" or "both".
        """
        if whose == "server":
            return self.clients.server
        both = [self.clients.server] if whose == "both" else []
        return pooled([*(client.train for client in self.population.clients), *both])

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
            with prefixed(f"start {self.start!r}"):
                with_fresh_head(self.initial(), self.architecture.make(), of_head)
        first = 1
        for phase in self.phases:
            # An error before the first round is better than an error in a round.
            phase.check_samples(fewest)
            phase.check(self.module, clients[0].train)
            if drawn := self._wrapped_clients(phase):
                self.client(min(drawn), first, ClientFolders(Path(STATES), Path()))
            first += phase.training.rounds
        if self.phases:
            strategy, keep = self.strategy(), self.keep
            if keep:
                evaluated = strategy.rounds_to_evaluation or not keep.of_clients
                keep.check(MEASURED if evaluated else MEASURED[:1])
                if keep.model == BEST and (strategy.average_window or strategy.average_decay):
                    problem = "the model of one round is kept, not the mean; set model=last"
                    raise SettingsError(f"keep = {keep}: {problem}", "keep", *AVERAGES)

    def save_extras(self, folder: Path, report: RoundReport) -> dict[str, Any]:
        """Write the starting model, and `model.json`: how the model was made.

        If that is the model of the best round, return the number of the round and the metric.
        """
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
            **self._together(),
            "settings": self.settings,
            **({"budget": self._budget(report)} if self.phases else {}),
            **made_by(),
        }
        whole = model_arrays(architecture.make())  # With a last layer that was not trained.
        arrays = mean_model(report.state, report.arrays) or report.arrays
        save_model(folder, whole | arrays, about)
        keep, best = self.keep, report.best
        chosen = best if keep and best and keep.model == BEST else None
        if not self.is_external:  # Given weights may have another head.
            save_adapters(folder, self.module, chosen.arrays if chosen else arrays)
        kept = {}
        if keep and chosen:
            (folder / WEIGHTS).replace(folder / f"{LAST}.safetensors")
            kept = {KEPT: chosen.round, KEPT_BY: keep.metric}
            save_model(folder, whole | chosen.arrays, about | kept | {"kept-value": chosen.value})
        if self.phases:
            write_card(folder)
        return kept

    def _together(self) -> dict[str, int]:
        """Return {"together": number} if clients may have been computed as one here."""
        phases = [phase for phase in self.phases if vars(phase.client_class).get("joint")]
        device = default_device()
        counts = [clients_at_once(phase.training, self.module, device)[0] for phase in phases]
        return {"together": most} if (most := max(counts, default=1)) > 1 else {}

    def _budget(self, report: RoundReport) -> dict[str, Any]:
        """Return the costs of the rounds, as the card has them."""
        gradients, rounds = cost(self, report.round).gradients, report.history.rounds().values()
        sent = math.fsum(row[f"client-bytes-{way}"] for row in rounds for way in ("down", "up"))
        return {
            "clients": self.clients.number,
            "rounds": report.round,
            "gradients": round(gradients) if math.isfinite(gradients) else None,
            "megabytes": sent / 1e6,
        }

    def tester(self) -> EvaluateFn | None:
        """Return the function that evaluates the global model on the server, or None.

        Every `test_every` rounds, the function measures loss and accuracy on the dataset's test
        split. If rounds are compared by the start loss, the function measures the loss on all
        clients' training samples. Both are also measured in the last round.
        """
        every, keep = self.test_every, self.keep
        make, samples = self.networks.make, self.clients.test_samples
        test = ServerData(make(), samples(), loss=self.loss) if every else None
        clients = self.server_data("clients") if keep and not keep.of_clients else None

        def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            model, last = from_record(arrays, copy=False), server_round == self.rounds
            metrics: dict[str, float] = {}
            if clients and keep and server_round and (last or server_round % keep.every == 0):
                metrics[START_LOSS] = clients.evaluate(model)["loss"]
                last = last or keep.reached(metrics[START_LOSS])
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

    def chained(self, store: Store) -> list[int]:
        """Return the stored rounds in which the clients train in a chain, one after the other."""
        numbers = [row.get("round", 0) for row in store.result(self)["rounds"]]
        return [n for n in numbers if self.phase_of(n).strategy_class.loss_of == "chain"]

    def evaluate(self, arrays: Arrays, samples: Samples) -> Mapping[str, float]:
        """Evaluate a model in eval mode: {"loss": mean, "correct": hits, "num-examples": n}."""
        return ServerData(self.architecture.make(), samples, loss=self.loss).evaluate(arrays)

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
            data = [server for server in servers if isinstance(server, ServerData)]
            samples = [server.samples for server in data]
            about |= {"strategy": strategy.options(), "server": hash_of_samples(samples)}
            about |= {f"server-{k}": v for one in data for k, v in one.loss.identity().items()}
        if self._clients is not None:
            about |= {"clients": self.clients.identity(), "test-every": self.test_every}
        if keep := self.keep:
            plain = Keep(metric=START_LOSS, stop_at=keep.stop_at, every=keep.every, model=LAST)
            # The keys of stored models have not changed.
            about |= {"stop": [keep.stop_at, keep.every]} if keep == plain else {"keep": str(keep)}
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
