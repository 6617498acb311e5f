"""What the guide's table says of Flower's classes: equal, different, or with other arguments."""

import numpy as np
import pytest
import torch
from flwr.serverapp import strategy as flowers

from coprefl_flwr import strategies
from coprefl_flwr.grids import LocalGrid
from tests.examples.test_kinds_of_apps import KINDS, app_of, start_of


def model_of(strategy):
    """Return the arrays after three rounds on four nodes, whose training draws nothing."""
    kind = KINDS["pairs"]
    torch.manual_seed(0)
    result = strategy.start(LocalGrid(app_of(kind), nodes=4), start_of(kind), 3)
    return np.concatenate([array.ravel() for array in result.arrays.to_numpy_ndarrays()])


def largest_difference(name, **arguments):
    """Return the largest difference of Flower's class and ours with the same arguments."""
    arguments |= {"fraction_evaluate": 0.0}
    both = (model_of(getattr(where, name)(**arguments)) for where in (flowers, strategies))
    return np.abs(np.subtract(*both)).max()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("FedAvg", {}),
        ("FedProx", {}),
        ("FedAvgM", {"server_momentum": 0.9}),
        ("FedAvgM", {"server_momentum": 0.0}),
    ],
)
def test_class_with_the_same_arguments_is_equal(name, arguments):
    assert largest_difference(name, **arguments) < 1e-6


@pytest.mark.parametrize("name", ["FedAdam", "FedYogi", "FedAvgM"])
def test_class_with_other_defaults_is_different(name):
    assert largest_difference(name) > 1e-3
