"""Hosting does not change results, whatever clients do with arrays of a shared process."""

import logging

import numpy as np
import pytest
from flwr.client import NumPyClient

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import (
    CoPreFLClient,
    FedMetaClient,
    FedProxClient,
    FRLClient,
    PerFedAvgClient,
    QFFLClient,
    TorchClient,
    client_app,
)
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import FRL, QFFL, CoPreFL, FedAvg, FedMeta, FedProx, PerFedAvg
from tests.common.federation import HOSTINGS
from tests.common.runs import run_of

START = {"w": np.zeros(3, np.float32)}


@pytest.mark.parametrize("nodes", [1, 2])
def test_reply_is_copied_before_the_next_client_trains(nodes):
    """Client 0 returns the model itself; client 1 overwrites it and then fails."""
    model = np.zeros(3, np.float32)

    class Shared(NumPyClient):
        def __init__(self, client_id):
            self.client_id = client_id

        def fit(self, parameters, config):
            model[:] = 1
            if self.client_id == 1:
                model[:] = 99
                raise ArithmeticError("boom")
            return [model], 1, {}

    grid = LocalGrid(client_app(lambda _, i: Shared(i)), nodes=nodes)
    result = FedAvg(clients=2).start(grid, to_record(START), 1)
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [1, 1, 1])


METHODS = {
    "fedavg": (TorchClient, FedAvg, {}),
    "fedprox": (FedProxClient, FedProx, {"mu": 1.0}),
    "qffl": (QFFLClient, QFFL, {"q": 2.0}),
    "maml": (FedMetaClient, FedMeta, {"variant": "maml"}),
    "meta-sgd": (FedMetaClient, FedMeta, {"variant": "meta-sgd", "meta_learning_rate": 0.5}),
    "maml, local steps": (FedMetaClient, FedMeta, {"meta_learning_rate": 0.5, "local_steps": 3}),
    "per-fedavg": (PerFedAvgClient, PerFedAvg, {"variant": "hf", "inner_learning_rate": 0.5}),
    "coprefl": (CoPreFLClient, CoPreFL, {"meta_learning_rate": 0.1}),
    "frl": (FRLClient, FRL, {"episode_rounds": 2}),
}


@pytest.mark.parametrize("method", METHODS)
def test_method_has_the_same_result_for_every_hosting(stochastic_federation, method, tmp_path):
    """Three rounds with three participants, small batches and BatchNorm, in float32."""
    client_class, strategy_class, options = METHODS[method]
    start, ends = to_record(stochastic_federation.arrays()), {}
    for hosting in HOSTINGS:
        states = {"states": tmp_path / hosting} if method == "frl" else {}
        grid = stochastic_federation.grid(hosting, client_class, **states)
        strategy = strategy_class(participants=3, seed=3, clients=grid.clients, **options)
        ends[hosting] = from_record(strategy.start(grid, start, 3).arrays)
    for hosting, arrays in ends.items():
        for name, array in ends["1"].items():
            np.testing.assert_allclose(
                arrays[name], array, rtol=0, atol=1e-6, err_msg=f"{hosting}: {name}"
            )


def test_evaluation_on_no_samples_is_left_out(caplog):
    class Evaluates(NumPyClient):
        def __init__(self, client_id):
            self.client_id = client_id

        def fit(self, parameters, config):
            return parameters, 1, {}

        def evaluate(self, parameters, config):
            return 0.5, 4 * self.client_id, {"correct": self.client_id}

    strategy = FedAvg(evaluate_every=1, clients=3)
    grid = LocalGrid(client_app(lambda _, i: Evaluates(i)), nodes=1)
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        result = strategy.start(grid, to_record(START), 1)
    assert run_of(strategy).evaluation.clients == (1, 2)
    # 3 hits in 12 samples: the accuracy is a fraction of all samples, not a mean of counts.
    assert dict(result.evaluate_metrics_clientapp[1]) == {"loss": 0.5, "accuracy": 0.25}
    assert "client 0 on node 2 is left out: metric 'num-examples' is 0" in caplog.text
