"""Compare FedAvg with a calculation by hand, and with Flower's FedAvg in a plain Flower app."""

import random

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import FedAvg
from tests.common.by_hand import assert_equal, means_by_hand, run


@pytest.mark.parametrize("nodes", [1, 4])
def test_two_rounds_by_hand(exact_federation, nodes):
    """Client i takes i + 1 full-batch steps; the weights of the mean are the numbers of samples."""
    start, app = exact_federation.arrays(), exact_federation.torch_app()
    arrays, rounds = run(FedAvg(participants=3), app, start, nodes=nodes)
    assert rounds[0] != rounds[1]
    for clients in rounds:
        start = means_by_hand(exact_federation, start, clients)
    assert_equal(arrays, start)


def plain_app():
    """Return a Message API app as in Flower's templates.

    Each node is one client and hosts no other clients. There are no client ids.
    """
    app = ClientApp()

    @app.train()
    def train(message, context):
        node = context.node_config["partition-id"]
        arrays = message.content["arrays"].to_numpy_ndarrays()
        rng = np.random.default_rng(message.content["config"]["server-round"] * 10 + node)
        arrays = [a * 0.5 + rng.normal(size=a.shape).astype(a.dtype) for a in arrays]
        names = list(message.content["arrays"])
        record = ArrayRecord(dict(zip(names, ArrayRecord(arrays).values(), strict=True)))
        metrics = MetricRecord({"num-examples": 5 + node, "train-loss": 1.0 / (1 + node)})
        return Message(RecordDict({"model": record, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        node = context.node_config["partition-id"]
        metrics = MetricRecord({"num-examples": 5 + node, "eval-acc": 0.1 * node})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def test_fedavg_equals_flowers_fedavg_in_a_plain_app():
    start = {"w": np.float32([[1, 2], [3, 4]]), "b": np.float32([0.5, -0.5])}
    ours = FedAvg(evaluate_every=1).start(
        LocalGrid(plain_app(), nodes=4), to_record(start), 3, train_config=ConfigRecord({"lr": 0.1})
    )
    random.seed(0)
    flowers = FlowerFedAvg(min_train_nodes=4, min_available_nodes=4, min_evaluate_nodes=4).start(
        LocalGrid(plain_app(), nodes=4), to_record(start), 3, train_config=ConfigRecord({"lr": 0.1})
    )
    for name, array in from_record(flowers.arrays).items():
        np.testing.assert_allclose(from_record(ours.arrays)[name], array, rtol=1e-6, atol=1e-6)
    for server_round in (1, 2, 3):
        assert ours.train_metrics_clientapp[server_round]["train-loss"] == pytest.approx(
            flowers.train_metrics_clientapp[server_round]["train-loss"]
        )
        assert ours.evaluate_metrics_clientapp[server_round]["eval-acc"] == pytest.approx(
            flowers.evaluate_metrics_clientapp[server_round]["eval-acc"]
        )
