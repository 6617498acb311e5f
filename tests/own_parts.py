"""Parts of a user's own, for tests that name them by their places."""

import torch
from torch.nn.functional import softmax

from coprefl_flwr.clients import TorchClient
from coprefl_flwr.strategies import FedAvg


def entropy(logits, labels):
    """Return how unsure a model is, in nats."""
    p = softmax(logits.double(), dim=1)
    return float(-(p * torch.log(p.clamp(min=1e-12))).sum(dim=1).mean())


entropy.title = "Entropy"
entropy.better = "lower"


class WithoutHitsClient(TorchClient):
    """A client whose evaluation leaves out how many samples were classified correctly."""

    def evaluate(self, parameters, config):
        """Return the loss and the number of samples alone."""
        loss, n, _ = super().evaluate(parameters, config)
        return loss, n, {}


class WithoutHits(FedAvg):
    """FedAvg of such clients."""

    client = "tests.own_parts:WithoutHitsClient"
