"""A client that trains a PyTorch model by local SGD, and one that keeps something besides."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import nn

from coprefl_flwr import seeds
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.data import Samples, as_samples
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.learning import EVALUATION_BATCH, LossAndGradient, evaluate, loss_and_gradient
from coprefl_flwr.learning.device import default_device, placed
from coprefl_flwr.learning.training import LocalTraining, Objective, local_sgd, torch_seeded
from coprefl_flwr.models import computing, load_in_order, model_arrays
from coprefl_flwr.options import declared

Parameters = list[np.ndarray[Any, Any]]
Config = dict[str, Any]


class TorchClient(NumPyClient):
    """Local SGD on a client's training samples; evaluation on its test samples.

    A client of a method is a subclass; its own options are the entries of `options`. They are
    keyword arguments of its constructor, and then its attributes. `model` may be shared by all
    clients of a process: every call loads the weights it was sent. `train` and `test` are Samples,
    or any map-style torch Dataset or DataLoader, which is read once (see `as_samples`). `device` is
    the GPU if none is given and the process sees one.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    """Its options by name, each a field made by `coprefl_flwr.options.option`."""

    metrics: Mapping[str, Callable[..., float]] = MappingProxyType({})
    """Metrics of the user's own by name, which `evaluate_model` computes too."""

    network: ClassVar[str] = "classifier"
    """Kind of the trained network: a "classifier", or a "projection" that has no classes."""

    injected: ClassVar[frozenset[str]] = frozenset()
    """What the constructor is given besides, of "state", "initial" and "noise"."""

    def __init__(
        self,
        model: nn.Module,
        train: Samples | Any,
        *,
        test: Samples | Any | None = None,
        training: LocalTraining | None = None,
        device: torch.device | None = None,
        **options: Any,
    ) -> None:
        own = {option.name: option for option in declared(type(self)).values()}
        for name in options.keys() - own.keys():
            raise SettingsError(f"{type(self).__name__}: {unknown('option', name, own)}", name)
        for name, option in own.items():
            value = option.checked(options[name], name) if name in options else option.default
            setattr(self, name, value)
        self.device = device or default_device()
        self.model = placed(model, self.device)
        self.train = as_samples("train", train)
        self.test = None if test is None else as_samples("test", test)
        self.training = training or LocalTraining()

    @classmethod
    def check_samples(cls, fewest: int, **options: Any) -> None:
        """Raise a SettingsError if a client of so few samples cannot take part.

        `options` are the client's, by name.
        """

    def training_samples(self, config: Config) -> Samples:
        """Return the samples of this round's local training."""
        return self.train

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Train from `parameters` (in `state_dict` order); return them, n and {"loss"}."""
        self.load(parameters)
        samples = self.training_samples(config)
        loss = self.train_locally(samples, config)
        return self.weights(), len(samples), {"loss": loss}

    def weights(self) -> Parameters:
        """Return copies of the model's arrays in `state_dict` order."""
        return list(model_arrays(self.model).values())

    def train_locally(
        self,
        samples: Samples,
        config: Config,
        objective: Objective | None = None,
        correct: Callable[[], None] | None = None,
    ) -> float:
        """Train the model by `local_sgd` with this round's seed; return the mean batch loss."""
        key = self.key(config, "batches")
        with torch_seeded(*key):
            return local_sgd(
                self.model,
                samples,
                self.training,
                server_round=int(config["server-round"]),
                rng=seeds.generator(*key),
                device=self.device,
                objective=objective,
                correct=correct,
            )

    def loss_and_gradient(self, samples: Samples) -> LossAndGradient:
        """Return the model's mean loss on samples and its gradient, in eval mode."""
        batches = samples.batches(EVALUATION_BATCH, self.device)
        return loss_and_gradient(self.model, batches, precision=self.training.precision)

    def computing(self) -> AbstractContextManager[None]:
        """Have the model compute in the precision of `training` while this is open.

        `train_locally`, `loss_and_gradient` and `evaluate_model` open it; a client that calls the
        model in its own loop has to.
        """
        return computing(self.model, self.training.precision)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name, tied weights once, by their first name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def evaluate(self, parameters: Parameters, config: Config) -> tuple[float, int, Config]:
        """Return the mean loss of `parameters` on the test samples, n and {"correct"}."""
        self.load(parameters)
        return self.evaluate_model(self.model)

    def evaluate_model(self, model: nn.Module) -> tuple[float, int, Config]:
        """Return the mean loss of a model on the test samples, n, {"correct"} and own metrics."""
        if self.test is None or len(self.test) == 0:
            raise SettingsError("this client holds no test samples")
        batches = self.test.batches(EVALUATION_BATCH, self.device)
        with self.computing():
            metrics = dict(evaluate(model, batches, own=self.metrics))
        loss, n, correct = (metrics.pop(name) for name in ("loss", "num-examples", "correct"))
        return loss, int(n), {"correct": int(correct), **metrics}

    def load(self, parameters: Parameters) -> None:
        """Copy `parameters`, in `state_dict` order, into the model."""
        load_in_order(self.model, parameters)

    @staticmethod
    def key(config: Config, purpose: str) -> tuple[str | int, ...]:
        """Return the seed key of (seed, population, round, client) for a purpose."""
        run = int(config.get("seed", 0)), str(config.get("population", ""))
        return (*run, int(config["server-round"]), int(config.get("client", 0)), purpose)


class StatefulClient(TorchClient):
    """A client with its own state, in files (see `coprefl_flwr.federation.client_state`).

    `state` is `ClientState(folder)`, on a disk that outlives the process. `initial` is, for methods
    whose state is weights of the client's own, what these begin with: `model` may be shared by
    clients, so its weights cannot be taken.
    """

    injected = frozenset({"state", "initial"})

    def __init__(
        self,
        model: nn.Module,
        train: Samples,
        *,
        state: ClientState,
        initial: Arrays | None = None,
        **more: Any,
    ) -> None:
        super().__init__(model, train, **more)
        self.state = state
        self.initial = initial

    def own_weights(self, config: Config) -> Arrays:
        """Return the weights that stay with the client, `initial` while it has no state."""
        weights = self.state.read(config) or self.initial
        if not weights:
            raise SettingsError(f"{type(self).__name__} keeps its own weights: give it initial")
        return weights
