"""FedETF's client: local training with an equiangular tight frame as the classifier."""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from coprefl_flwr.clients.torch_client import Config, Parameters, TorchClient
from coprefl_flwr.data import Samples
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models import outputs_of


class FedETFClient(TorchClient):
    """A client that trains a network and the factor s of the class scores of a `FrameClassifier`.

    s is the request's "temperature", and the reply's metric "temperature". The client evaluates as
    a `TorchClient`: the largest output and the largest score are those of the same class.
    """

    @classmethod
    def check_network(cls, network: nn.Module, samples: Samples) -> None:
        """Raise a SettingsError if the targets are no classes."""
        if not samples.dataset.has_classes:
            raise SettingsError("fedetf needs classes, which are the vectors of its frame")

    def fit(self, parameters: Parameters, config: Config) -> tuple[Parameters, int, Config]:
        """Return (trained weights, n, {"loss", "temperature"})."""
        self.load(parameters)
        network, labels = self.model, torch.as_tensor(self.train.labels, device=self.device)
        self.model = classifier = FrameClassifier(network, float(config["temperature"]), labels)
        loss = self.train_locally(self.train, config)
        self.model = network
        metrics = {"loss": loss, "temperature": classifier.temperature.item()}
        return self.weights(), len(self.train), metrics


class FrameClassifier(nn.Module):
    """Class scores s M^T v + log n of a network's outputs, scaled to v with l2 norm 1.

    The columns of M = sqrt(C / (C - 1)) (I - 1 1^T / C) are C unit vectors, and the cosine of any
    two is -1 / (C - 1): an equiangular tight frame. n (C,) are the numbers of samples by class, at
    least 1 (balanced softmax). `labels` are the classes of the client's samples.
    """

    def __init__(self, network: nn.Module, temperature: float, labels: Tensor) -> None:
        super().__init__()
        like = next(network.parameters())
        self.network, self.labels = network, labels
        self.temperature = nn.Parameter(like.new_tensor(temperature))

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return the class scores, (b, C)."""
        v = normalize(outputs_of(self.network, named or inputs))
        classes = v.shape[1]
        scale = self.temperature * (classes / (classes - 1)) ** 0.5
        counts = torch.bincount(self.labels, minlength=classes).clamp(min=1).to(v)
        scores: Tensor = scale * (v - v.mean(dim=1, keepdim=True)) + counts.log()
        return scores
