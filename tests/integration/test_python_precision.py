"""The Python interface with a network of float64."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.models import model_arrays
from tests.common.data import table
from tests.common.networks import Perceptron

SMALL = {"local_steps": 2, "batch_size": 8, "learning_rate": 0.1, "quiet": True}


def double_steps(network, inputs, labels, steps=2):
    """Return the arrays after full-batch steps of plain PyTorch."""
    network = copy.deepcopy(network)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(network(inputs), labels).backward()
        optimiser.step()
    return model_arrays(network)


def test_module_of_float64_is_trained_in_float64():
    """Before, it was refused: its inputs were float32, whatever the dtype of the data."""
    values, labels = table().tensors
    network = Perceptron(10).double()
    one = {**SMALL, "batch_size": len(labels)}
    for inputs in (values, values.double()):
        made = cp.pretrain("fedavg", network, [TensorDataset(inputs, labels)], rounds=1, **one)
        for name, expected in double_steps(network, values.double(), labels).items():
            found = model_arrays(made)[name]
            assert found.dtype == np.float64
            assert found == pytest.approx(expected, rel=1e-13, abs=1e-15)
