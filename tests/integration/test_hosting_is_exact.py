"""Hosting does not change results, whatever clients do with arrays of a shared process."""

import logging

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import (
    CoPreFLClient,
    FedMetaClient,
    FedProxClient,
    PerFedAvgClient,
    QFFLClient,
    TorchClient,
    client_app,
)
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation.aggregation import LossMoments
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import QFFL, CoPreFL, Exchange, FedAvg, FedMeta, FedProx, PerFedAvg
from tests.common.federation import HOSTINGS, renamed
from tests.common.runs import run_of

START = {"w": np.zeros(3, np.float32)}


class InPlace(NumPyClient):
    """A client that adds 1 to its input arrays in place."""

    def fit(self, parameters, config):
        parameters[0] += 1
        return parameters, 1, {}


@pytest.mark.parametrize("nodes", [1, 4])
def test_client_that_changes_its_input_does_not_change_the_others(nodes):
    grid = LocalGrid(client_app(lambda _, i: InPlace()), nodes=nodes)
    result = FedAvg(clients=4).start(grid, to_record(START), 2)
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [2, 2, 2])


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


def test_further_arrays_reach_the_client():
    class Two(FedAvg):
        def round(self, ctx, arrays):
            extra = {"variate": {"w": np.float32([1, 2, 3])}}
            replies = yield Exchange("train", arrays, ctx.sample(), extra=extra)
            return replies.arrays, {}

    class Adds(NumPyClient):
        def fit(self, parameters, config):
            return [parameters[0] + config["extra"]["variate"]["w"]], 1, {}

    grid = LocalGrid(client_app(lambda _, i: Adds()), nodes=2)
    result = Two(clients=3).start(grid, to_record(START), 2)
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [2, 4, 6])


def plain_app(reply):
    """Return an app whose node with partition-id 1 answers with `reply(message)`.

    The other nodes answer with good replies.
    """
    app = ClientApp()

    @app.train()
    def train(message, context):
        if context.node_config["partition-id"] == 1:
            return Message(reply(message), reply_to=message)
        return Message(content(np.float32([1, 1, 1])), reply_to=message)

    return app


def content(array, **metrics):
    return RecordDict(
        {
            "arrays": to_record({"w": array}),
            "metrics": MetricRecord({"num-examples": 1, **metrics}),
        }
    )


def without_bytes(message):
    record = message.content["arrays"]
    array = record["w"]
    array.data = b""
    return RecordDict({"arrays": ArrayRecord({"w": array}), "metrics": MetricRecord({})})


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (
            lambda _: content(np.ones(3, np.complex64)),
            "array 'w' has dtype complex64; real numbers",
        ),
        (without_bytes, "left out: "),
        (lambda _: content(np.float32([1, 1, 1]), loss=float("inf")), "metric 'loss' is inf"),
        (lambda _: content(np.float32([1, 1, 1]), loss=float("nan")), "metric 'loss' is nan"),
        (
            lambda _: RecordDict(
                {**content(np.float32([1, 1, 1])), "failed": ConfigRecord({"clients": [1]})}
            ),
            None,
        ),
    ],
)
def test_bad_reply_is_left_out(reply, reason, caplog):
    grid = LocalGrid(plain_app(reply), nodes=3)
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        strategy = FedAvg(min_available_nodes=3, evaluate_every=0)
        result = strategy.start(grid, to_record(START), 1)
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [1, 1, 1])
    assert (reason or "") in caplog.text
    assert len(caplog.records) == (1 if reason else 0)


def test_missing_gradient_is_0_and_gradients_of_other_parameters_are_left_out(caplog):
    """G1 and G2 are sums over the same clients for every parameter."""
    start = {"a": np.float32([0]), "b": np.float32([0]), "n": np.array(3)}

    class Asks(FedAvg):
        def round(self, ctx, arrays):
            self.replies = yield Exchange(
                "train.query", arrays, ctx.sample(), combine=LossMoments()
            )
            return arrays, {}

    class Partial(NumPyClient):
        def __init__(self, client_id):
            self.client_id = client_id

        def query(self, parameters, config):
            gradient = {"a": np.float32([1]), "b": np.float32([1]), "n": np.float32(1)}
            kept = {0: "ab", 1: "a", 2: "ab", 3: "abn"}[self.client_id]
            return {name: gradient[name] for name in kept}, 1, {"loss": 0.5}

    for nodes in (1, 4):
        caplog.clear()
        strategy = Asks(clients=4)
        grid = LocalGrid(client_app(lambda _, i: Partial(i)), nodes=nodes)
        with caplog.at_level(logging.WARNING, "flwr.coprefl"):
            strategy.start(grid, to_record(start), 1)
        assert strategy.replies.clients == (0, 1, 2)
        np.testing.assert_array_equal(strategy.replies.sums["gradient"]["a"], [3])
        np.testing.assert_array_equal(strategy.replies.sums["loss-gradient"]["b"], [1])
        assert "array 'n' is not a trainable parameter" in caplog.text


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


def test_second_node_with_the_same_client_is_left_out(caplog):
    """After a crash, a node may restart under a new id while its old id is still listed."""

    class Growing(LocalGrid):
        rounds = 0

        def get_node_ids(self):
            return [n for n in super().get_node_ids() if n < 4 or self.rounds > 1]

        def send_and_receive(self, messages, *, timeout=None):
            self.rounds += 1
            return super().send_and_receive(messages, timeout=timeout)

    class Good(NumPyClient):
        def fit(self, parameters, config):
            return [parameters[0] + 1], 1, {}

    grid = Growing(renamed(client_app(lambda _, i: Good()), {4: 0}), nodes=3)
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        result = FedAvg(participants=2, min_available_nodes=2).start(grid, to_record(START), 3)
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [3, 3, 3])
    assert "node 4 does not get client 0: node 2 named it first" in caplog.text


def test_nodes_without_clients_end_the_run_in_one_line(monkeypatch):
    """No node reports its clients: the run fails with a one-line error and does not hang."""
    monkeypatch.setattr("coprefl_flwr.federation.transport.OWN_NODES_WAIT", 0.01)
    app = renamed(client_app(lambda _, i: InPlace()), {2: None, 3: None})
    grid = LocalGrid(app, nodes=2)
    with pytest.raises(RunFailedError, match=r"node 2 is left out: .*: start the node with"):
        FedAvg().start(grid, to_record(START), 1)


METHODS = {
    "fedavg": (TorchClient, FedAvg, {}),
    "fedprox": (FedProxClient, FedProx, {"mu": 1.0}),
    "qffl": (QFFLClient, QFFL, {"q": 2.0}),
    "maml": (FedMetaClient, FedMeta, {"variant": "maml"}),
    "meta-sgd": (FedMetaClient, FedMeta, {"variant": "meta-sgd", "meta_learning_rate": 0.5}),
    "maml, local steps": (FedMetaClient, FedMeta, {"meta_learning_rate": 0.5, "local_steps": 3}),
    "per-fedavg": (PerFedAvgClient, PerFedAvg, {"variant": "hf", "inner_learning_rate": 0.5}),
    "coprefl": (CoPreFLClient, CoPreFL, {"meta_learning_rate": 0.1}),
}


@pytest.mark.parametrize("method", METHODS)
def test_method_has_the_same_result_for_every_hosting(stochastic_federation, method):
    """Three rounds with three participants, small batches and BatchNorm, in float32."""
    client_class, strategy_class, options = METHODS[method]
    start, ends = to_record(stochastic_federation.arrays()), {}
    for hosting in HOSTINGS:
        grid = stochastic_federation.grid(hosting, client_class)
        strategy = strategy_class(participants=3, seed=3, clients=grid.clients, **options)
        ends[hosting] = from_record(strategy.start(grid, start, 3).arrays)
    for hosting, arrays in ends.items():
        for name, array in ends["1"].items():
            np.testing.assert_allclose(
                arrays[name], array, rtol=0, atol=1e-6, err_msg=f"{hosting}: {name}"
            )
