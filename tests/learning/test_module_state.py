"""What a client leaves in the network of its process does not reach the next client."""

import copy
import gc
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from coprefl_flwr.clients import TorchClient
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import model_arrays
from tests.common.checks import refusal


class Layer(nn.Module):
    """A linear layer whose outputs are multiplied by `factor(layer)`."""

    def __init__(self, *factors):
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.factors = factors
        self.calls, self.seen = 0, []
        self.register_buffer("memory", torch.zeros(()), persistent=False)

    def forward(self, inputs):
        outputs = self.linear(inputs)
        for factor in self.factors:
            outputs = outputs * factor(self)
        return outputs


def number_attribute(layer):
    layer.calls += 1
    return 1 + 0.1 * layer.calls


def list_attribute(layer):
    layer.seen.append(1)
    return 1 + 0.1 * len(layer.seen)


def new_attribute(layer):
    layer.cache = getattr(layer, "cache", 0) + 1
    return 1 + 0.1 * layer.cache


def buffer_outside_of_the_state_dict(layer):
    layer.memory.add_(0.1)
    return 1 + layer.memory


def hook(layer):
    layer.linear.register_forward_hook(lambda _layer, _inputs, outputs: 1.1 * outputs)
    return 1.0


def frozen_weight(layer):
    layer.linear.bias.requires_grad_(layer.training)  # Frozen by the evaluation.
    return 1.0


def random_numbers_of_python(_):
    return 1 + random.random()


def random_numbers_of_numpy(_):
    return 1 + np.random.random()  # noqa: NPY002


FACTORS = (
    *(number_attribute, list_attribute, new_attribute),
    *(buffer_outside_of_the_state_dict, hook, frozen_weight),
    *(random_numbers_of_python, random_numbers_of_numpy),
)


def network(*factors):
    torch.manual_seed(0)
    return Layer(*factors)


def site(seed):
    drawn = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(12, 6, generator=drawn), torch.arange(12) % 4)


def trained(model, client):
    """Train one client on the network of the process; return its weights and its test loss."""
    arrays = list(model_arrays(network()).values())
    made = TorchClient(
        model, site(client), test=site(client), training=LocalTraining(local_steps=2, batch_size=4)
    )
    config = {"server-round": 1, "client": client}
    weights, _, _ = made.fit(arrays, config)
    loss, _, _ = made.evaluate(weights, config)
    return np.concatenate([*map(np.ravel, weights), [loss]])


@pytest.mark.parametrize("factor", FACTORS, ids=lambda factor: factor.__name__)
def test_client_trains_alike_after_another_client(factor):
    model = network(factor)
    trained(model, client=0)
    after = trained(model, client=1)
    assert np.array_equal(after, trained(network(factor), client=1))


def test_global_generators_keep_their_states():
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    trained(network(random_numbers_of_python, random_numbers_of_numpy), client=0)
    drawn = random.random(), np.random.random()  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert drawn == (random.random(), np.random.random())  # noqa: NPY002


def test_attribute_that_cannot_be_copied_is_refused():
    model = network()
    model.lines = (number for number in range(3))
    assert "cannot be copied by copy.deepcopy" in refusal(TorchClient, model, site(0))


def test_layers_that_share_an_object_share_it_after_a_client():
    model = nn.Sequential(network(), network())
    model[1].seen = model[0].seen
    TorchClient(model, site(0))
    TorchClient(model, site(0))
    assert model[1].seen is model[0].seen


def test_network_is_freed_with_its_state():
    model = network(list_attribute)
    trained(model, client=0)
    reference = weakref.ref(model)
    assert trained(copy.deepcopy(model), client=1).shape
    del model
    gc.collect()
    assert reference() is None
