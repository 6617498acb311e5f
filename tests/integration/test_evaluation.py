"""In an app's `start`, clients evaluate as with Flower's strategies, unless options change it."""

import numpy as np
import pytest
from flwr.client import NumPyClient
from flwr.serverapp import strategy as flowers

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import FedAvg, FedProx, Schedule

START = {"w": np.zeros(2, np.float32)}


class Adds(NumPyClient):
    """A client that adds its id to the weights, and reports the metric `trust`, its id plus 1."""

    def __init__(self, client, asked):
        self.client, self.asked = client, asked

    def fit(self, parameters, config):
        return [parameters[0] + self.client], 1, {"loss": 1.0, "trust": float(self.client + 1)}

    def evaluate(self, parameters, config):
        self.asked.append((config["server-round"], self.client))
        return float(self.client), 1, {}


def grid(asked, nodes=4):
    return LocalGrid(client_app(lambda _, client: Adds(client, asked)), nodes=nodes)


def test_all_clients_evaluate_each_round_like_with_flowers_fedavg():
    ours, theirs = [], []
    found = FedAvg(min_available_nodes=4).start(grid(ours), to_record(START), 2)
    flower = flowers.FedAvg(min_available_nodes=4, min_train_nodes=4, min_evaluate_nodes=4)
    expected = flower.start(grid(theirs), to_record(START), 2)
    assert sorted(ours) == sorted(theirs) == [(n, c) for n in (1, 2) for c in range(4)]
    assert {number: one["loss"] for number, one in found.evaluate_metrics_clientapp.items()} == {
        number: one["eval_loss"] if "eval_loss" in one else one["loss"]
        for number, one in expected.evaluate_metrics_clientapp.items()
    }


@pytest.mark.parametrize("options", [{"fraction_evaluate": 0.0}, {"evaluate_every": 0}])
def test_no_client_evaluates_with_fraction_or_interval_zero(options):
    asked = []
    for strategy in (FedAvg(**options), Schedule([(FedAvg(**options), 1), (FedAvg(), 1)])):
        strategy.start(grid(asked), to_record(START), 2)
    assert asked == []


def test_fraction_evaluate_draws_other_clients_each_round():
    asked = []
    strategy = FedAvg(fraction_evaluate=0.5, min_available_nodes=4, seed=1)
    strategy.start(grid(asked), to_record(START), 6)
    drawn = {n: tuple(c for number, c in asked if number == n) for n in range(1, 7)}
    assert {len(clients) for clients in drawn.values()} == {2}
    assert len(set(drawn.values())) > 1


@pytest.mark.parametrize("method", [FedAvg, FedProx])
def test_weighted_by_key_weights_the_models(method):
    """The models 0, 1, 2, 3 have the weights 1, 2, 3, 4: the weighted mean is 2."""
    strategy = method(weighted_by_key="trust", min_available_nodes=4)
    result = strategy.start(grid([]), to_record(START), 1)
    np.testing.assert_allclose(from_record(result.arrays)["w"], 2.0)


def test_node_with_several_clients_counts_as_these_clients():
    app = client_app(lambda _, client: Adds(client, []), clients=lambda *_: [0, 1, 2])
    FedAvg(min_available_nodes=3).start(LocalGrid(app, nodes=1), to_record(START), 1)
    with pytest.raises(RunFailedError, match="needed: 4 clients"):
        FedAvg(min_available_nodes=4).start(LocalGrid(app, 1), to_record(START), 1, timeout=0.01)
