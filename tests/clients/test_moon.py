"""MOON's client: the representation that it compares."""

import torch
from torch import nn

from coprefl_flwr.models import outputs_and_representation
from tests.common.networks import CLASSES, ToDouble, double_model


class HeadFirst(nn.Module):
    """A network whose classifier is registered first, called last, and named `answer`."""

    def __init__(self):
        super().__init__()
        self.answer = nn.Linear(8, CLASSES)
        self.body = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))

    def forward(self, images):
        return self.answer(torch.tanh(self.body(images.flatten(1))))


def head_first():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(ToDouble(), HeadFirst()).double()


def test_representation_is_the_input_of_the_last_linear_layer():
    inputs = torch.rand(5, 1, 4, 4)
    model = head_first().eval()
    outputs, z = outputs_and_representation(model, inputs)
    assert torch.equal(outputs, model[1].answer(z))
    assert z.shape == (5, 8)
    model = double_model().eval()
    outputs, z = outputs_and_representation(model, inputs)
    assert torch.equal(outputs, model[-1](z))
    assert not model[-1]._forward_pre_hooks
