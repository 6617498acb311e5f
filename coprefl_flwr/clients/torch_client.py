"""A client that trains a PyTorch model by local SGD, and a client that also keeps a state."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from coprefl_flwr import seeds
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.data import Samples, as_samples
from coprefl_flwr.errors import SettingsError, say_once
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.federation.flower import NumPyClient
from coprefl_flwr.learning import evaluation, together
from coprefl_flwr.learning.device import default_device, placed
from coprefl_flwr.learning.training import LocalTraining, Objective, local_sgd, torch_seeded
from coprefl_flwr.models import computing, first_names, load_in_order, model_arrays
from coprefl_flwr.models.base import BASE, HASHES
from coprefl_flwr.models.frozen import travelling
from coprefl_flwr.options import checked_options, declared

Parameters = list[np.ndarray[Any, Any]]
Config = dict[str, Any]
Joint = tuple[Arrays, list[Config]]
"""The results of K clients: each array of all clients, (K, *shape), and each client's metrics."""


class TorchClient(NumPyClient):
    """A client that trains by local SGD on its training samples and evaluates on its test samples.

    The client of a method is a subclass. The entries of `options` are the options of the subclass:
    they are keyword arguments of the constructor and attributes of the client. All clients of a
    process may share one `model`, because every call first loads the weights that the client
    received. `train` and `test` are Samples, or a map-style torch Dataset or a DataLoader, which is
    read once (see `as_samples`). If `device` is None, the device is the GPU if the process sees a
    GPU, or else the CPU.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    """The client's options by name. Each is a field made by `coprefl_flwr.options.option`."""

    metrics: Mapping[str, Callable[..., float]] = MappingProxyType({})
    """The user's metrics by name. `evaluate_model` computes them on the test samples."""

    network: ClassVar[str] = "classifier"
    """Kind of the trained network: "classifier", or "projection" for a network without classes."""

    injected: ClassVar[frozenset[str]] = frozenset()
    """Names of further constructor arguments, a subset of "state", "initial" and "noise"."""

    joint: ClassVar[frozenset[str]] = frozenset({"fit", "evaluate"})
    """Names of the methods that several clients of exactly this class may compute as one: fit is
    then `fit_together`. A subclass has to state it again, as it may change what the methods do."""

    def __init__(
        self,
        model: nn.Module,
        train: Samples | Any,
        *,
        test: Samples | Any | None = None,
        training: LocalTraining | None = None,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        own = declared(type(self))
        chosen = checked_options(options, own)
        for option in own.values():
            setattr(self, option.name, chosen.get(option.name, option.default))
        self.device = torch.device(device) if device else default_device()
        self.train = as_samples("train", train)
        self.model = placed(model, self.device, self.train)
        self.test = None if test is None else as_samples("test", test)
        self.training = training or LocalTraining()

    @classmethod
    def check_samples(cls, fewest: int, **options: Any) -> None:
        """Raise a SettingsError if a client with `fewest` training samples cannot take part.

        `options` are the client's options by name.
        """

    def check_request(self, config: Config) -> None:
        """Raise a SettingsError if the network has other frozen weights than the server's.

        It is called before every request. The hash of the server's is `config["base-hash"]`.
        """
        base, expected = HASHES.get(self.model, ""), config.get(BASE)
        if expected not in (None, base):
            both = f"{base or 'none'}, at the server {expected or 'none'}"
            remedy = "make the network from the same file on every node"
            raise SettingsError(f"hash of the frozen weights: {both}; {remedy}")

    @classmethod
    def check_network(cls, network: nn.Module, samples: Samples) -> None:
        """Raise a SettingsError if the client cannot train this network."""

    def training_samples(self, config: Config) -> Samples:
        """Return the samples for local training in this round."""
        return self.train

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Train from the weights `parameters`; return the trained weights, n and {"loss"}.

        The weights are in `state_dict` order, and n is the number of training samples.
        """
        self.load(parameters)
        samples = self.training_samples(config)
        loss = self.train_locally(samples, config)
        return self.weights(), len(samples), {"loss": loss}

    # ---- as one computation with other clients (see `learning.together`) ------------------------

    def clients_at_once(self, method: str) -> tuple[int, int]:
        """Return how many clients, at least and at most, may compute `method` as one."""
        if method not in vars(type(self)).get("joint", ()):
            return 1, 1
        wanted = self.training.together
        most, reason = together.clients_at_once(self.training, self.model, self.device)
        if reason and wanted:
            say_once(f"clients are computed one after another: {reason}")
        return (2 if wanted else together.FEWEST), most

    def may_join(self, other: Any) -> bool:
        """Return whether `other` can be part of one computation with this client."""
        if type(other) is not type(self) or other.model is not self.model:
            return False
        return bool(other.training == self.training and other.device == self.device)

    def proximal_mu(self, config: Config) -> float:
        """Return the weight mu of a proximal term; 0 for none."""
        return 0.0

    @classmethod
    def fit_together(
        cls, clients: Sequence[Self], parameters: Parameters, configs: Sequence[Config]
    ) -> Joint:
        """Return the results of `fit` of several clients, up to rounding."""
        first = clients[0]
        first.load(parameters)
        samples = [c.training_samples(of) for c, of in zip(clients, configs, strict=True)]
        weights, losses = together.train_together(
            first.model,
            first.training,
            samples,
            [partial(seeds.generator, *cls.key(of, "batches")) for of in configs],
            server_round=int(configs[0]["server-round"]),
            device=first.device,
            proximal_mu=first.proximal_mu(configs[0]),
        )
        of = first_names(first.model)
        sent = zip(travelling(first.model), parameters, strict=True)
        stack = {  # Of what is not trained, the clients return what they were sent.
            name: weights[of[name]].numpy()
            if of[name] in weights
            else np.stack([array] * len(clients))
            for name, array in sent
        }
        return stack, joint_metrics(samples, losses)

    @classmethod
    def evaluate_together(
        cls, clients: Sequence[Self], parameters: Parameters, configs: Sequence[Config]
    ) -> Joint:
        """Return the metrics of `evaluate` of several clients, up to rounding."""
        first = clients[0]
        first.load(parameters)
        samples = [client.test or client.train.take(np.arange(0)) for client in clients]
        outputs = together.outputs_together(first.model, samples, first.device)
        of_each = [
            dict(evaluation.evaluate(nn.Identity(), [batch], own=client.metrics))
            for client, batch in zip(clients, outputs, strict=True)
        ]
        return {}, of_each

    def weights(self) -> Parameters:
        """Return copies of the model's arrays in `state_dict` order."""
        return list(model_arrays(self.model).values())

    def train_locally(
        self,
        samples: Samples,
        config: Config,
        objective: Objective | None = None,
        correct: Callable[[], None] | None = None,
        training: LocalTraining | None = None,
        purpose: str = "batches",
    ) -> float:
        """Train the model by `local_sgd`; return the mean batch loss.

        The random numbers are seeded for this round and for `purpose`. If `training` is None, it is
        the client's.
        """
        key = self.key(config, purpose)
        with torch_seeded(*key, network=self.model):
            return local_sgd(
                self.model,
                samples,
                training or self.training,
                server_round=int(config["server-round"]),
                rng=seeds.generator(*key),
                device=self.device,
                objective=objective,
                correct=correct,
            )

    def loss_and_gradient(self, samples: Samples, config: Config) -> evaluation.LossAndGradient:
        """Return the model's mean loss on `samples` and the gradient of the loss, in eval mode.

        Random numbers that the network draws are seeded for this round.
        """
        batches = samples.batches(evaluation.EVALUATION_BATCH, self.device)
        with torch_seeded(*self.key(config, "gradient"), network=self.model):
            precision, loss = self.training.precision, self.training.loss.of_batch
            return evaluation.loss_and_gradient(self.model, batches, loss, precision=precision)

    def computing(self) -> AbstractContextManager[None]:
        """Return a context in which the model computes in the precision of `training`.

        `train_locally`, `loss_and_gradient` and `evaluate_model` enter this context. A client that
        calls the model in its own loop must enter it too.
        """
        return computing(self.model, self.training.precision)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name; tied weights have only their first name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def evaluate(self, parameters: Parameters, config: Config) -> tuple[float, int, Config]:
        """Return (mean loss, n, {"correct"}) of the weights `parameters` on the test samples.

        n is the number of test samples, and "correct" the number of top-1 hits.
        """
        self.load(parameters)
        return self.evaluate_model(self.model, config)

    def evaluate_model(self, model: nn.Module, config: Config) -> tuple[float, int, Config]:
        """Return (mean loss, n, metrics) of a model on the n test samples.

        Random numbers that the network draws are seeded for this round.
        The metrics are "correct", the number of top-1 hits if there are classes, and the user's
        metrics. Raises a SettingsError if the client has no test samples.
        """
        if self.test is None or len(self.test) == 0:
            raise SettingsError("this client has no test samples: pass test= or evaluate_every=0")
        batches = self.test.batches(evaluation.EVALUATION_BATCH, self.device)
        own, loss = self.metrics, self.training.loss
        with self.computing(), torch_seeded(*self.key(config, "evaluation"), network=model):
            metrics = dict(evaluation.evaluate(model, batches, own=own, loss=loss))
        return metrics.pop("loss"), int(metrics.pop("num-examples")), metrics

    def load(self, parameters: Parameters) -> None:
        """Copy the weights `parameters`, in `state_dict` order, into the model."""
        load_in_order(self.model, parameters)

    @staticmethod
    def key(config: Config, purpose: str) -> tuple[str | int, ...]:
        """Return the seed key (seed, population, round, client, purpose) of a random choice."""
        run = int(config.get("seed", 0)), str(config.get("population", ""))
        return (*run, int(config.get("server-round", 0)), int(config.get("client", 0)), purpose)


def joint_metrics(samples: Sequence[Samples], losses: Sequence[float]) -> list[Config]:
    """Return the metrics of several clients: numbers of samples, and losses."""
    return [
        {"num-examples": len(of), "loss": loss} for of, loss in zip(samples, losses, strict=True)
    ]


class StatefulClient(TorchClient):
    """A client that keeps a state in files (see `coprefl_flwr.federation.client_state`).

    `state` is `ClientState(folder)`, with a folder that remains after the process ends. In some
    methods the state holds the client's personal weights. `initial` has the first values of these
    weights, by name. The weights of `model` cannot be used instead, because other clients may share
    `model`.
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
        """Return the client's personal weights from its state, or `initial` if it has no state yet.

        Raises a SettingsError if the client has neither.
        """
        weights = self.state.read(config) or self.initial
        if not weights:
            raise SettingsError(f"{type(self).__name__} has personal weights: pass initial=WEIGHTS")
        return weights
