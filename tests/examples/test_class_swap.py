"""What the guide's table says of Flower's classes: equal here, refused in a line, or different."""

import inspect

import numpy as np
import pytest
import torch
from flwr.serverapp import strategy as flowers

from coprefl_flwr import strategies
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.strategy import FLOWER_ARGUMENTS
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


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("FedProx", {"proximal_mu": 0.1}, "instead of Flower's 'proximal_mu' use mu"),
        (
            "FedAdam",
            {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99},
            "instead of Flower's 'eta' use global_learning_rate; instead of Flower's 'beta_1' use "
            "beta1; instead of Flower's 'beta_2' use beta2",
        ),
        (
            "FedAvgM",
            {"server_learning_rate": 0.5},
            "instead of Flower's 'server_learning_rate' use global_learning_rate",
        ),
        (
            "QFFL",
            {"client_learning_rate": 0.1, "q": 0.1},
            "instead of Flower's 'client_learning_rate' use the learning rate in your clients' "
            "training",
        ),
    ],
)
def test_arguments_with_other_names_are_refused_in_one_line(name, arguments, line):
    with pytest.raises(SettingsError) as caught:
        getattr(strategies, name)(**arguments)
    assert str(caught.value) == f"{name}: {line}"


def test_every_argument_of_flowers_classes_is_accepted_or_has_a_replacement():

    for name, ours in (
        *((name, name) for name in ("FedAvg", "FedProx", "FedAdam", "FedYogi", "FedAvgM")),
        ("QFedAvg", "QFFL"),
    ):
        parameters = inspect.signature(getattr(strategies, ours).__init__).parameters
        for argument in inspect.signature(getattr(flowers, name)).parameters:
            assert argument in parameters or argument in FLOWER_ARGUMENTS, (name, argument)
