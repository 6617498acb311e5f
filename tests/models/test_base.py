"""The hash of what does not travel, and the memory that equal bases share."""

import copy

import pytest
import torch
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.models.base import HASHES, base_hash, keep_base

CPU = torch.device("cpu")


def network(seed=0):
    """Return a network with a frozen convolution and BatchNorm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).requires_grad_(False)
        return nn.Sequential(body, nn.Flatten(), nn.LazyLinear(3))


CHANGES = {
    "weight": lambda one: one[0][0].weight.data.mul_(2),
    "statistic": lambda one: one[0][1].running_var.add_(1),
    "trained": lambda one: one[0][1].requires_grad_(True),
    "less": lambda one: one[0][0].bias.requires_grad_(True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_hash_depends_on_all_that_does_not_travel(change):
    one, other = network(), network()
    CHANGES[change](other)
    assert cp.base_hash(one) == cp.base_hash(network(0)) != cp.base_hash(other)
    assert len(cp.base_hash(one)) == 12


def test_hash_is_the_same_in_any_memory_format_and_wrapper():
    one = network()
    wanted = base_hash(one)
    one[2](torch.zeros(1, 4))
    assert base_hash(one.to(memory_format=torch.channels_last)) == wanted
    assert base_hash(nn.DataParallel(one)) == wanted
    assert base_hash(one.requires_grad_(True)) == ""


def test_copy_of_a_base_that_was_changed_is_not_shared():
    first, same, changed = network(), network(), network()
    keep_base(first, CPU)
    keep_base(same, CPU)
    assert same[0][0].weight.data_ptr() == first[0][0].weight.data_ptr()
    assert copy.deepcopy(same)[0][0].weight.data_ptr() != first[0][0].weight.data_ptr()
    first[0][1].running_mean.add_(1)
    keep_base(changed, CPU)
    assert changed[0][0].weight.data_ptr() == first[0][0].weight.data_ptr()
    assert not changed[0][1].running_mean.any()
    assert HASHES[changed] == HASHES[first]
