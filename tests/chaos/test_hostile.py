"""One client or node that sends replies as no honest one would affects only its own results.

NumPy computes the expected results of the good clients from the papers' formulas. Lies about which
clients a node hosts are tested in tests/integration/test_hostile.py.
"""

import asyncio
import io
import logging
import os
import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.client import NumPyClient
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.federation.validation import Bounds
from coprefl_flwr.strategies import CoPreFL, FedAvg
from tests.chaos.draws import draws
from tests.common.federation import without_roster
from tests.common.replies import KINDS, LIES, START, Lying, data, with_arrays

NAN, INF = float("nan"), float("inf")
ROUNDS, CLIENTS, GAMMA, ZETA = 2, range(5), 0.25, 0.125
TYPES = {"fit": "train", "query": "train.query", "evaluate": "evaluate"}
STRATEGIES = {FedAvg: ("fit", "evaluate"), CoPreFL: ("fit", "query", "evaluate")}
"""By strategy: the exchanges in which its clients answer."""


# ---- behaviours of a client ----------------------------------------------------------------------
#
# A behaviour is called with the honest answer (the arrays by name, or the loss in an evaluation),
# the number of samples and the metrics. It returns what is sent instead.

FIRST_ARRAY = [
    np.float32([0, NAN]), np.float32([INF, INF]), np.full(2, -1e300), np.full(2, 1j),
    np.array(["x", "y"]), np.array([1.0, None], object), None, "weights",
    np.zeros(3, np.float32), np.float32(1), np.zeros(10**6),
]  # fmt: skip
"""Values instead of the array `w` of two float32."""

ALL_ARRAYS = [
    lambda arrays: {},
    lambda arrays: [],
    lambda arrays: {**arrays, "extra": np.ones(2)},
    lambda arrays: {**arrays, "w": arrays["b"], "b": arrays["w"]},
    lambda arrays: None,
]
SAMPLES = [0, -5, 10**18, 0.5, NAN, INF, None, "7", [1, 2]]
METRICS = [{"x": NAN}, {"x": "good"}, {"x": [1.0]}, {"clients": 3.0}]
LOSSES = [NAN, INF, 1e200, -5, 101, "small", None]
"""Losses outside the range from 0 to 100, which the strategies allow."""
ERRORS = [
    ArithmeticError(), ArithmeticError("\n".join(["line"] * 2000)), MemoryError(),
    ArithmeticError("x\nWARNING: client 1 on node 2 is left out: it is its fault"),
    ExceptionGroup("g", [ValueError("a"), TypeError("b")]), SystemExit("bye"),
    asyncio.CancelledError(),
]  # fmt: skip


def raises(error):
    def raising(*_):
        raise type(error)(*error.args)

    return raising


def behaviours(exchange):
    """Return all that a client can do in an exchange."""
    found = [raises(error) for error in ERRORS]
    found += [lambda a, n, m, value=value: (a, value, m) for value in SAMPLES]
    found += [lambda a, n, m, more=more: (a, n, {**m, **more}) for more in METRICS]
    found += [lambda a, n, m: (a, n, None), lambda *_: None, lambda *_: ([], 1)]
    if exchange == "evaluate":
        found += [lambda a, n, m, value=value: (value, n, m) for value in LOSSES]
        return [*found, lambda a, n, m: (a, n, {"correct": 400})]
    found += [lambda a, n, m, value=value: (a, n, {**m, "loss": value}) for value in LOSSES]
    found += [lambda a, n, m, value=value: ({**a, "w": value}, n, m) for value in FIRST_ARRAY]
    return found + [lambda a, n, m, change=change: (change(a), n, m) for change in ALL_ARRAYS]


# ---- lies of a node ------------------------------------------------------------------------------


def metric(name, change):
    """Return a lie about one of the reply's metrics."""

    def lie(content):
        metrics = dict(content["metrics"])
        content["metrics"] = MetricRecord({**metrics, name: change(metrics[name])})

    return lie


def array(**changes):
    """Return a lie that changes attributes of an array, such as its dtype or its bytes."""

    def lie(content):
        where = data(content)
        old = content[where]["w"]
        same = {key: getattr(old, key) for key in ("dtype", "shape", "stype", "data")}
        content[where] = ArrayRecord({**content[where], "w": Array(**same | changes)})

    return lie


class Program:
    """A pickled program, which would run if somebody unpickled it."""

    def __reduce__(self):
        return os._exit, (3,)


def pickled():
    """Return the bytes of an array of objects, which NumPy would unpickle."""
    file = io.BytesIO()
    about = {"descr": "|O", "fortran_order": False, "shape": (2,)}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue() + pickle.dumps(Program())


def failed(**lists):
    return lambda content: content.update(failed=ConfigRecord(lists))


LIES_IN_METRICS = [
    lambda content: content.clear(),
    lambda content: content.pop("metrics"),
    metric("clients", lambda ids: ids + ids),
    metric("clients", lambda ids: [i + 77 for i in ids]),
    metric("clients", lambda ids: list(range(10**6))),
    metric("loss", lambda losses: [*losses, 1.0]),
    metric("loss", lambda losses: [INF] * len(losses)),
    metric("num-examples", lambda ns: [10.0**18] * len(ns)),
    failed(clients=["x"], reasons=["y"]),
    failed(clients=[0, 1]),
    failed(clients=[4], reasons=["TypeError: it is its fault"]),
]
LIES_IN_ARRAYS = [
    lambda content: content.pop(data(content)),
    array(data=b"no array"),
    array(data=pickled(), dtype="object"),
    lambda content: array(data=content[data(content)]["w"].data[:-5])(content),
    lambda content: content.update(more=content[data(content)]),
    with_arrays({"w": np.full(2, NAN)}),
    with_arrays({"w": np.full(2, 1e300)}),
    with_arrays({"w": np.ones(3)}),
    *(lie for lie, _ in LIES.values()),
]


# ---- one run -------------------------------------------------------------------------------------


class Serialising(Lying):
    """A grid whose replies are sent as bytes, as over a network."""

    def _handle(self, message):
        reply = message_to_proto(super()._handle(message)).SerializeToString()
        return message_from_proto(ProtoMessage.FromString(reply))


class Client(NumPyClient):
    """Client i, whose arrays and metrics contain i, so that a sum shows which clients are in it.

    `faults` are behaviours by (client, exchange).
    """

    def __init__(self, number, faults):
        self.number, self.faults = number, faults

    def answer(self, exchange, *honest):
        return self.faults.get((self.number, exchange), lambda *answer: answer)(*honest)

    def fit(self, parameters, config):
        more = self.number + 1
        arrays = {k: (a + more).astype(a.dtype) for k, a in zip("wbn", parameters, strict=True)}
        return self.answer("fit", arrays, more, {"loss": float(more)})

    def query(self, parameters, config):
        metrics = {"loss": query_loss(self.number)}
        return self.answer("query", gradient(self.number), self.number + 1, metrics)

    def evaluate(self, parameters, config):
        metrics = {"correct": self.number}
        return self.answer("evaluate", float(self.number), self.number + 4, metrics)


def gradient(number):
    one = np.float32(number + 1)
    return {"w": np.float32([one, -one]), "b": np.float32([1, one, 0])}


def query_loss(number):
    return 1.0 + number * number / 4


def by_numpy(strategy, good):
    """Return the arrays after all rounds; `good` lists the good clients of each exchange."""
    arrays = {name: array.astype(np.float64) for name, array in START.items()}
    for _ in range(ROUNDS):
        more = np.array([i + 1.0 for i in good["fit"]])
        mean = (more * more).sum() / more.sum()  # A client's step equals its number of samples.
        arrays = {name: array + mean for name, array in arrays.items()}
        arrays["n"] = np.rint(arrays["n"])
        if strategy is CoPreFL:
            asked = [i for i in good["query"] if i in good["fit"]]
            losses = np.array([query_loss(i) for i in asked])
            of = GAMMA + (1 - GAMMA) * 2 / len(asked) * (losses - losses.mean())
            for name in ("w", "b"):
                step = sum(c * gradient(i)[name] for c, i in zip(of, asked, strict=True))
                arrays[name] = arrays[name] - ZETA * step
    return arrays


@pytest.fixture
def check(caplog):
    """Return a function that runs a strategy and checks its results and its log.

    The function gets the strategy, the kind of hosting, the exchange, the set of the bad clients,
    which a lie may fill, the behaviours by (client, exchange), and a lie of a node.
    """
    caplog.set_level(logging.WARNING, "flwr.coprefl")

    def checked(strategy, kind, exchange, bad, faults, lie=lambda *_: None):
        nodes, clients = KINDS[kind]
        app = client_app(lambda _, i: Client(i, faults))
        if kind == "plain":
            app = without_roster(
                client_app(lambda c: Client(int(c.node_config["partition-id"]), faults))
            )
        constants = {"gamma": GAMMA, "meta_learning_rate": ZETA} if strategy is CoPreFL else {}
        made = strategy(
            bounds=Bounds(loss_range=(0.0, 100.0)), min_available_nodes=nodes, clients=clients,
            **constants,
        )  # fmt: skip
        result = made.start(Serialising(app, nodes, lie), to_record(START), ROUNDS)
        assert bad
        shift = 2 if kind == "plain" else 0
        starts = tuple(f"client {i + shift} on node " for i in bad)
        for line in caplog.messages:
            assert line.isprintable()
            assert len(line) <= 260
            assert line.startswith(starts), "a line of another"
        for start in starts:
            assert any(line.startswith(start) for line in caplog.messages), f"no line of {start}"
        others = [i for i in CLIENTS if i not in bad]
        good = {one: others if one == exchange else list(CLIENTS) for one in TYPES}
        found = from_record(result.arrays)
        for name, array in by_numpy(strategy, good).items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, err_msg=name)
        accuracy = sum(good["evaluate"]) / sum(i + 4 for i in good["evaluate"])
        for metrics in result.evaluate_metrics_clientapp.values():
            np.testing.assert_allclose(metrics["accuracy"], accuracy)

    return checked


@draws("hostile", 30)
def test_hostile_client_affects_only_its_results(rng, check):
    strategy = rng.choice(list(STRATEGIES))
    exchange, client = rng.choice(STRATEGIES[strategy]), rng.choice([0, 2, 4])
    faults = {(client, exchange): rng.choice(behaviours(exchange))}
    check(strategy, rng.choice(list(KINDS)), exchange, {client}, faults)


@draws("hostile", 10)
def test_lying_node_affects_only_the_results_of_its_clients(rng, check):
    strategy = rng.choice(list(STRATEGIES))
    exchange, bad = rng.choice(STRATEGIES[strategy]), set()
    kind, liar = rng.choice([("own", 2), ("own", 4), ("two", 2), ("two", 3)])
    change = rng.choice(LIES_IN_METRICS + LIES_IN_ARRAYS * (exchange != "evaluate"))

    def lie(node, message_type, reply):
        if node != liar or message_type != TYPES[exchange]:
            return None
        content = dict(reply.content)
        bad.update(content["metrics"].get("clients"))
        change(content)
        return content

    check(strategy, kind, exchange, bad, {}, lie)
