"""MOON's client: local SGD with a contrastive loss of representations."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.clients.torch_client import Config, Parameters, StatefulClient
from coprefl_flwr.data import Samples
from coprefl_flwr.data.inputs import Inputs
from coprefl_flwr.learning.training import Objective
from coprefl_flwr.models import computing, load_arrays, model_arrays, outputs_and_representation
from coprefl_flwr.models.copies import copied
from coprefl_flwr.models.heads import last_linear


class MOONClient(StatefulClient):
    """A client that minimises cross-entropy + mu x contrastive loss.

    The client's state is its model after its last local training. The representation z is the input
    of the `nn.Linear` that the network calls last. The contrastive loss is

        -log[e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + e^{cos(z, z_prev)/tau})].

    z_glob is the representation of the received global model, and z_prev that of the client's last
    local model. Both models are frozen and in eval mode. In a client's first round the contrastive
    loss is left out. mu and tau are the request's "moon-mu" and "moon-temperature".
    """

    @classmethod
    def check_network(cls, network: nn.Module, samples: Samples) -> None:
        """Raise a SettingsError if the network calls no `nn.Linear`."""
        last_linear(network, samples.batch(slice(1), next(network.parameters()).device)[0])

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return the trained weights, n and {"loss"}; the loss includes the contrastive loss."""
        self.load(parameters)
        samples = self.training_samples(config)
        previous = self.state.read(config)
        objective = self.objective(previous, config) if previous else None
        loss = self.train_locally(samples, config, objective=objective)
        self.state.write(config, model_arrays(self.model))
        return self.weights(), len(samples), {"loss": loss}

    def objective(self, previous: Arrays, config: Config) -> Objective:
        """Return the loss function of a batch; `previous` is the client's last local model."""
        mu, temperature = float(config["moon-mu"]), float(config["moon-temperature"])
        received, last = copied(self.model), copied(self.model)
        load_arrays(last, previous)
        precision = self.training.precision

        def contrast(inputs: Inputs, targets: Tensor) -> Tensor:
            outputs, z = outputs_and_representation(self.model, inputs)
            with torch.no_grad(), computing(received, precision), computing(last, precision):
                _, z_glob = outputs_and_representation(received.eval(), inputs)
                _, z_prev = outputs_and_representation(last.eval(), inputs)
            similar = [cosine_similarity(z, other, dim=1) for other in (z_glob, z_prev)]
            first = torch.zeros(len(targets), dtype=torch.int64, device=targets.device)
            term = cross_entropy(torch.stack(similar, dim=1) / temperature, first)
            return self.training.loss(outputs, targets) + mu * term

        return contrast
