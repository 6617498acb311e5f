"""Losses by object, by place and with arguments.

Their rounds by hand are in `integration/test_what_fits.py`.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from tests.common.rounds_by_hand import FULL, Problem, assert_weights, of_numbers, values


def run(method, rounds, loss, clients=None, model=None):
    problem = Problem("numbers")
    network, clients = model or problem.network(), clients or problem.clients()
    return cp.pretrain(method, network, clients, rounds, quiet=True, loss=loss, **FULL)


@pytest.mark.parametrize("method", ["qffl:q=1", "fedmeta", "moon", "feddyn", "coprefl-std"])
def test_methods_lower_a_mean_squared_error(method):
    problem = Problem("numbers")
    inputs, targets = (torch.cat(column) for column in zip(*problem.parts(), strict=True))
    before, after = (
        of_numbers(model(inputs), targets)
        for model in (problem.network(), run(method, 10, of_numbers))
    )
    assert after < 0.8 * before


def test_weights_of_classes_by_place_are_those_of_the_module():
    inputs = torch.cat([part for part, _ in Problem("numbers").parts()])
    clients = [TensorDataset(inputs, torch.arange(len(inputs)) % 2)]
    module = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))
    mapping = {"name": "torch.nn:CrossEntropyLoss", "weight": [1, 5]}
    by_text = "torch.nn:CrossEntropyLoss:weight=1&5"
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    first, *same, other = (
        run("fedavg", 1, loss, clients, model)
        for loss in (module, mapping, by_text, "cross-entropy")
    )
    for model in same:
        assert_weights(model, values(first))
    assert not torch.equal(other.weight, first.weight)


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        ("mse", "unknown loss 'mse': known are cross-entropy, next-token, or module:NAME"),
        ("torch.nn:MSELos", "torch.nn:MSELos: unknown name 'MSELos': did you mean 'MSELoss'?"),
        (lambda outputs, targets: outputs - targets, "gives float64 (2, 1); a scalar with"),
        (lambda outputs, targets: 0.5, "gives float; a scalar with a gradient is needed"),
        ("torch.nn.functional:nll_loss", "outputs float64 (2, 1) and targets float32 (2, 1):"),
        ("cross-entropy", "loss = cross-entropy: outputs float64 (2, 1) and targets float32"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused_before_any_work(loss, line):
    with pytest.raises(cp.SettingsError) as caught:
        run("fedavg", 1, loss)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_loss_that_torch_would_broadcast_is_refused():
    parts = [(inputs, targets[:, 0]) for inputs, targets in Problem("numbers").parts()]
    with pytest.raises(cp.SettingsError, match="target size"):
        run("fedavg", 1, nn.MSELoss(), [TensorDataset(*part) for part in parts])
