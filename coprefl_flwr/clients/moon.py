"""MOON's client: local SGD with a contrast between representations."""

import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.data import Samples
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import Objective
from coprefl_flwr.models import computing, load_arrays, model_arrays, outputs_and_representation

_COPIES: WeakKeyDictionary[nn.Module, tuple[nn.Module, nn.Module]] = WeakKeyDictionary()
"""Per network, two copies of it for the global and the previous model: made once a process."""


class MOONClient(StatefulClient):
    """Minimises cross-entropy + mu x contrastive loss; its state is its last local model.

    The representation z is what enters the `nn.Linear` that the network calls last. The contrastive
    loss is

        -log[e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + e^{cos(z, z_prev)/tau})],

    z_glob by the model received and z_prev by the client's last one, both frozen in eval mode. In a
    client's first round it is left out. mu and tau are the request's "moon-mu" and
    "moon-temperature".
    """

    def __init__(self, model: nn.Module, train: Samples, **more: Any) -> None:
        super().__init__(model, train, **more)
        if not any(isinstance(module, nn.Linear) for module in model.modules()):
            raise SettingsError(f"{type(model).__name__} has no nn.Linear, so no representation")

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return the weights, n and {"loss"}, the loss with the contrastive term."""
        self.load(parameters)
        samples = self.training_samples(config)
        previous = self.state.read(config)
        objective = self.objective(previous, config) if previous else None
        loss = self.train_locally(samples, config, objective=objective)
        self.state.write(config, model_arrays(self.model))
        return self.weights(), len(samples), {"loss": loss}

    def objective(self, previous: Arrays, config: Config) -> Objective:
        """Return the loss of a batch, given the client's previous model."""
        mu, temperature = float(config["moon-mu"]), float(config["moon-temperature"])
        if self.model not in _COPIES:
            _COPIES[self.model] = copy.deepcopy(self.model), copy.deepcopy(self.model)
        received, last = _COPIES[self.model]
        load_arrays(received, model_arrays(self.model))
        load_arrays(last, previous)
        precision = self.training.precision

        def contrast(inputs: Tensor, targets: Tensor) -> Tensor:
            outputs, z = outputs_and_representation(self.model, inputs)
            with torch.no_grad(), computing(received, precision), computing(last, precision):
                _, z_glob = outputs_and_representation(received.eval(), inputs)
                _, z_prev = outputs_and_representation(last.eval(), inputs)
            similar = [cosine_similarity(z, other, dim=1) for other in (z_glob, z_prev)]
            first = torch.zeros(len(targets), dtype=torch.int64, device=targets.device)
            term = cross_entropy(torch.stack(similar, dim=1) / temperature, first)
            return cross_entropy(outputs, targets) + mu * term

        return contrast
