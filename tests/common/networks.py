"""Small networks; most of them always have the same weights."""

import torch
from torch import nn

CLASSES = 3


class ToDouble(nn.Module):
    """Converts the images to float64, so that the layers after it can be float64."""

    def forward(self, images):
        return images.double()


def tiny_model():
    """Return a network with weights, BatchNorm statistics and an int64 counter: all are sent."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES)
        )


def double_model(norm=True):
    """Return the tiny model in float64, where rounding hides no error; BatchNorm is optional."""
    layers = [layer for layer in tiny_model() if norm or not isinstance(layer, nn.BatchNorm1d)]
    return nn.Sequential(ToDouble(), *layers).double()


class Scaled(nn.Module):
    """A network with a parameter that is a single number, and a parameter that is not trained."""

    def __init__(self):
        super().__init__()
        self.features = nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(8, CLASSES)
        self.features.bias.requires_grad_(False)

    def forward(self, images):
        return self.head(self.scale * torch.tanh(self.features(images.flatten(1))))


def scaled():
    """Return `Scaled` in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(ToDouble(), Scaled()).double()


def network(num_classes):
    """Return a small network with BatchNorm, whose counter is int64."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_classes)
    )


def plain_network(num_classes):
    """Return a network of one layer whose arrays are all trained."""
    return nn.Sequential(nn.Flatten(), nn.Linear(36, num_classes))


class Perceptron(nn.Module):
    """A network of two layers; the last layer is called `last`."""

    def __init__(self, inputs=36, classes=8, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.ReLU())
            self.last = nn.Linear(16, classes)

    def forward(self, inputs):
        return self.last(self.body(inputs))


class Recurrent(nn.Module):
    """A network for sequences of tokens."""

    def __init__(self, classes=8):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embedding, self.last = nn.Embedding(20, 8), nn.Linear(8, classes)

    def forward(self, tokens):
        return self.last(self.embedding(tokens).mean(dim=1))
