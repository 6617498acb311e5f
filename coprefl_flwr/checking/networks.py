"""The networks that checked methods train: small, and with what methods get wrong."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

WIDTH = 16


def plain(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Return a network with BatchNorm, whose statistics are float32 and whose counter is int64."""
    size = int(torch.Size(input_shape).numel())
    layers: dict[str, nn.Module] = {
        "flatten": nn.Flatten(),
        "body": nn.Linear(size, WIDTH),
        "norm": nn.BatchNorm1d(WIDTH),
        "tanh": nn.Tanh(),
        "head": nn.Linear(WIDTH, num_classes),
    }
    return nn.Sequential(OrderedDict(layers))


class Tied(nn.Module):
    """Two layers of one weight, which `state_dict` has under two names."""

    def __init__(self, num_classes: int, size: int) -> None:
        super().__init__()
        self.body = nn.Linear(size, WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.head = nn.Linear(WIDTH, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, (b, classes)."""
        hidden = torch.tanh(self.first(torch.tanh(self.body(inputs.flatten(1)))))
        logits: Tensor = self.head(torch.tanh(self.second(hidden)))
        return logits


TIED = ("first.weight", "second.weight")
"""The names of the one weight of `tied`."""


def tied(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Return a network with a weight under two names."""
    return Tied(num_classes, int(torch.Size(input_shape).numel()))
