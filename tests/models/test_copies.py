"""Copies of a user's network, and the network inside PyTorch's wrappers."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm

from coprefl_flwr.models.copies import copied, named_as, sharing_base, unwrapped
from tests.common.checks import refusal

INPUTS = torch.linspace(-1, 1, 12).reshape(2, 6)


def layers():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


class Keeping(nn.Module):
    """A network that keeps the outputs of its last call, alone and in a list."""

    def __init__(self):
        super().__init__()
        self.linear, self.seen = nn.Linear(6, 4), []

    def forward(self, inputs):
        self.last = self.linear(inputs)
        self.seen.append([self.last])
        return self.last


def changed_by(change):
    network = layers()
    change(network[0])
    return network


COMPUTING = {
    "weight_norm": lambda: changed_by(weight_norm),
    "spectral_norm": lambda: changed_by(spectral_norm),
    "pruned": lambda: changed_by(lambda layer: prune.l1_unstructured(layer, "weight", 0.5)),
    "kept outputs": Keeping,
}


@pytest.mark.parametrize("make", COMPUTING.values(), ids=COMPUTING)
def test_network_with_computed_tensors_is_copied_with_its_gradients(make):
    """Before, copy.deepcopy refused these networks after their first call."""
    network = make()
    network(INPUTS)
    copy = copied(network.eval())
    for one in (network, copy):
        one(INPUTS).square().sum().backward()
    theirs = list(copy.parameters())
    for parameter, other in zip(network.parameters(), theirs, strict=True):
        assert parameter is not other
        assert torch.equal(parameter.grad, other.grad)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    torch.optim.SGD(theirs, lr=1.0).step()
    assert not torch.equal(copy(INPUTS), network(INPUTS))
    assert all(map(torch.equal, before, network.parameters()))


def test_network_that_cannot_be_copied_is_refused():
    network = layers()
    network.lock = threading.Lock()
    line = refusal(copied, network, "model")
    assert "cannot be copied by copy.deepcopy (define __deepcopy__): TypeError: cannot pick" in line


def test_copy_shares_the_memory_of_frozen_weights_alone():
    network = layers()
    network[0].requires_grad_(False)
    network[0].weight.kind = "given"
    copy = sharing_base(network)
    pairs = [*zip(network.parameters(), copy.parameters(), strict=True)]
    assert [one.data_ptr() == other.data_ptr() for one, other in pairs] == [True] * 2 + [False] * 2
    assert [other.requires_grad for _, other in pairs] == [False] * 2 + [True] * 2
    assert copy[0].weight.kind == "given"
    copy.double()  # As a move to another device, it must not reach the original.
    assert network[0].weight.dtype == torch.float32


def test_wrappers_are_looked_through():
    network = layers()
    wrapped = torch.compile(nn.DataParallel(torch.compile(network, backend="eager")))
    assert unwrapped(wrapped) is unwrapped(network) is network


def test_names_are_those_of_the_network_whichever_has_wrappers():
    """A layer may be wrapped too, as in PyTorch's example for ImageNet, or be called `module`."""
    tensors = {f"module.{name}": tensor for name, tensor in layers().state_dict().items()}
    assert named_as(["0.weight", "2.bias"], tensors).keys() == {
        *("0.weight", "2.bias", "module.0.bias", "module.2.weight")
    }
    one = {"features._orig_mod.0.weight": 1}
    assert named_as(["features.0.weight"], one) == {"features.0.weight": 1}
    assert named_as(["features.module.0.weight"], one) == {"features.module.0.weight": 1}
    both = {"module.w": 1, "w": 2}
    assert named_as(["module.w", "w"], both) == both
