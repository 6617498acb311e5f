"""A hosting node adds up its clients' results, leaves out bad results, and names their clients."""

import numpy as np
import pytest
import torch
from flwr.client import NumPyClient

from coprefl_flwr.arrays import from_record
from coprefl_flwr.clients import TorchClient, client_app
from coprefl_flwr.federation.hosting import call_client
from tests.common.federation import CPU
from tests.common.messages import ask

SENT = {"w": np.float32([1, 2]), "n": np.array(10)}


class Counter(NumPyClient):
    """Client i adds i to both arrays and has i + 1 samples; `fault` replaces its results."""

    calls = ()

    def __init__(self, number, fault=None):
        self.number, self.fault = number, fault

    def fit(self, parameters, config):
        Counter.calls += ((self.number, config),)
        if self.fault:
            return self.fault(self.number, parameters)
        return [array + self.number for array in parameters], self.number + 1, {"loss": 0.5}

    def query(self, parameters, config):
        return {"w": np.float32([self.number, 1])}, 2, {"loss": np.float32(self.number)}

    def evaluate(self, parameters, config):
        return float(self.number), np.int64(4), {"correct": np.int64(3)}


def host(action, clients, combine, fault=None, **config):
    Counter.calls = ()
    app = client_app(lambda _, i: Counter(i, fault))
    return ask(app, action, SENT, clients=clients, combine=combine, own=1, **config)


def sums(content):
    return {name: from_record(record) for name, record in content.array_records.items()}


def test_node_sends_the_weighted_sum_in_the_order_of_ids():
    """Weights 2 and 4 (clients 1 and 3): w = 2 (2, 3) + 4 (4, 5), n = 2 * 11 + 4 * 13."""
    content = host("train", [3, 1], "mean:num-examples", state_version=["b", "a"])
    assert Counter.calls == tuple(
        (i, {"own": 1, "client": i, "state-version": version})
        for i, version in ((1, "a"), (3, "b"))
    )
    results = sums(content)
    assert list(results) == ["sum"]
    assert {array.dtype for array in results["sum"].values()} == {np.dtype(np.float64)}
    np.testing.assert_array_equal(results["sum"]["w"], [20.0, 26.0])
    assert results["sum"]["n"] == 74
    assert dict(content["metrics"]) == {
        "clients": [1, 3],
        "loss": [0.5, 0.5],
        "num-examples": [2.0, 4.0],
    }
    assert "failed" not in content


def test_node_sends_the_sums_of_loss_moments():
    """G1 = (1 + 3, 2), G2 = 1 (1, 1) + 3 (3, 1) = (10, 4)."""
    results = sums(host("train.query", [1, 3], "loss-moments"))
    np.testing.assert_array_equal(results["gradient"]["w"], [4.0, 2.0])
    np.testing.assert_array_equal(results["loss-gradient"]["w"], [10.0, 4.0])
    assert results["gradient"].keys() == {"w"}


def test_arrays_of_a_single_client_are_sent_unchanged():
    """The arrays of a single client are not weighted, because the server knows the rule.

    They are not in float64, so only half as many bytes are sent.
    """
    records = sums(host("train", [3], "mean:num-examples"))
    assert list(records) == ["arrays"]
    np.testing.assert_array_equal(records["arrays"]["w"], np.float32([4, 5]))
    assert records["arrays"]["w"].dtype == np.float32
    assert records["arrays"]["n"].dtype == np.int64


def append(number, parameters):
    """Append the digit `number` to both arrays."""
    return [10 * array + number for array in parameters], 1, {"loss": float(number)}


def test_chain_runs_in_the_order_of_the_request():
    content = host("train", [3, 1, 2], "chain", append)
    assert [number for number, _ in Counter.calls] == [3, 1, 2]
    assert list(sums(content)) == ["last"]
    np.testing.assert_array_equal(sums(content)["last"]["w"], [1312, 2312])
    assert sums(content)["last"]["n"] == 10312
    # Metrics are in the order of ids, as always.
    assert content["metrics"]["clients"] == [1, 2, 3]
    assert content["metrics"]["loss"] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "fault",
    [lambda p: None, lambda p: ([p[0] * np.nan, p[1]], 1, {}), lambda p: (p, 0, {})],
)
def test_chain_skips_bad_results(fault):
    """The next client starts from the last good model, not from the bad client's arrays."""

    def bad(number, parameters):
        if number in (3, 4):
            parameters[0][:] = 77  # A client may change the arrays that it gets.
            return fault(parameters)
        return append(number, parameters)

    content = host("train", [3, 1, 4, 2], "chain", bad)
    np.testing.assert_array_equal(sums(content)["last"]["w"], [112, 212])
    assert content["metrics"]["clients"] == [1, 2]
    assert content["failed"]["clients"] == [3, 4]


def test_chain_passes_arrays_in_the_order_and_dtype_of_the_message():
    """Each client gets the arrays as if they came through the server.

    The clients return them in another order and with wider dtypes.
    """

    def careless(number, parameters):
        seen.append([(array.dtype.name, array.tolist()) for array in parameters])
        w, n = parameters
        return {"n": np.float64(n) + 0.6, "w": np.float64(w) + 1}, 1, {}

    seen = []
    content = host("train", [0, 1, 2], "chain", careless)
    assert seen == [
        [("float32", [1.0, 2.0]), ("int64", 10)],
        [("float32", [2.0, 3.0]), ("int64", 11)],
        [("float32", [3.0, 4.0]), ("int64", 12)],
    ]
    assert list(sums(content)["last"]) == ["w", "n"]


class Adopting(TorchClient):
    """A user's client, whose model takes the memory of the arrays that the client receives."""

    def load(self, parameters):
        tensors = map(torch.from_numpy, parameters)
        names = self.model.state_dict()
        self.model.load_state_dict(dict(zip(names, tensors, strict=True)), assign=True)


@pytest.mark.parametrize("make", [TorchClient, Adopting])
def test_every_client_starts_from_the_arrays_that_were_sent(federation, make):
    before = {name: array.copy() for name, array in federation.start.items()}
    for samples in federation.samples:
        client = make(federation.model, samples, training=federation.training, device=CPU)
        call_client(client, "fit", federation.start, {"server-round": 1})
        for name, array in federation.start.items():
            np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize(("kind", "copied"), [(TorchClient, False), (Adopting, True)])
def test_only_clients_of_users_get_copies(federation, monkeypatch, kind, copied):
    received = []
    monkeypatch.setattr(kind, "load", lambda _, parameters: received.extend(parameters))
    client = kind(federation.model, federation.samples[0], device=CPU)
    call_client(client, "fit", federation.start, {"server-round": 1})
    assert len(received) == len(federation.start)
    for array, sent in zip(received, federation.start.values(), strict=True):
        assert np.shares_memory(array, sent) != copied
        assert array.flags.writeable == copied


def test_reply_to_an_evaluation_has_no_arrays():
    content = host("evaluate", [0, 2], "nothing")
    assert sums(content) == {}
    assert dict(content["metrics"]) == {
        "clients": [0, 2],
        "correct": [3.0, 3.0],
        "loss": [0.0, 2.0],
        "num-examples": [4.0, 4.0],
    }


BAD = {"clients": [2, 3], "reasons": ["array 'w' holds a NaN or an infinity"] * 2}


def bad_2_and_3(number, parameters):
    if number in BAD["clients"]:
        return [parameters[0] * np.inf, parameters[1]], 1, {}
    return parameters, 1, {}


@pytest.mark.parametrize(
    ("clients", "total", "good"),
    [([0, 2, 3, 4], [2.0, 4.0], [0, 4]), ([1, 2, 3], [1.0, 2.0], [1]), ([2, 3], None, [])],
)
def test_bad_clients_are_named_and_not_in_the_sum(clients, total, good):
    content = host("train", clients, "mean:", bad_2_and_3)
    if good:
        np.testing.assert_array_equal(sums(content)["sum"]["w"], total)
    else:
        assert sums(content) == {}
    assert content["metrics"]["clients"] == good
    assert dict(content["failed"]) == BAD


def test_results_are_named_arrays_and_plain_numbers():
    arrays, metrics = call_client(Counter(3), "query", SENT, {})
    assert list(arrays) == ["w"]
    assert metrics == {"loss": 3.0, "num-examples": 2}
    arrays, metrics = call_client(Counter(3), "evaluate", SENT, {})
    assert (arrays, metrics) == ({}, {"loss": 3.0, "correct": 3, "num-examples": 4})
    assert type(metrics["num-examples"]) is int


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"Counter.fit must return \(list of arrays, number of samples, dict of metrics\)"),
        (([np.zeros(2)], 1, {}), r"Counter.fit .*: 1 arrays were returned; the message had 2"),
        (([torch.ones(2, requires_grad=True), 1], 1, {}), r"Counter.fit .*: RuntimeError: Can't"),
        ((list(SENT.values()), 1, {"ok": True}), "metric 'ok' is a bool; metrics are numbers"),
        ((list(SENT.values()), "1", {}), "metric 'num-examples' is a str; metrics are numbers"),
    ],
)
def test_invalid_result_of_a_client_is_named(returned, message):
    with pytest.raises(ValueError, match=message):
        call_client(Counter(0, lambda *_: returned), "fit", SENT, {})
