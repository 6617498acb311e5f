"""Results of strategies if one client or node sends replies that no honest one would send.

For FedAvg and CoPreFL, NumPy computes the expected result from the papers' formulas. For the other
strategies, a run in which the bad client fails gives the expected result; it fails with an ordinary
exception.
"""

import functools
import logging

import numpy as np
from flwr.client import NumPyClient
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.federation.validation import Bounds
from coprefl_flwr.strategies import (
    QFFL,
    CoPreFL,
    CoPreFLStd,
    Cyclic,
    FedAdam,
    FedAvg,
    FedMeta,
)
from tests.chaos.behaviours import EVALUATE, FIT, LOSS_RANGE, NAMES, QUERY
from tests.common.federation import without_roster
from tests.common.replies import KINDS, START, Lying

ROUNDS, CLIENTS = 2, range(5)
GAMMA, ZETA = 0.25, 0.125
TYPES = {FIT: "train", QUERY: "train.query", EVALUATE: "evaluate"}
BY_NUMPY = {FedAvg: (FIT, EVALUATE), CoPreFL: (FIT, QUERY, EVALUATE)}
OTHERS = {
    CoPreFLStd: (FIT, QUERY),
    FedMeta: (QUERY,),
    **dict.fromkeys((QFFL, Cyclic, FedAdam), (FIT,)),
}
"""By strategy: the exchanges in which its clients answer."""


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
        arrays = {k: (a + more).astype(a.dtype) for k, a in zip(NAMES, parameters, strict=True)}
        metrics = {"loss": float(more), "q-weight": float(more), "q-curvature": 3.0}
        return self.answer(FIT, arrays, more, metrics)

    def query(self, parameters, config):
        arrays = gradient(self.number)
        if "meta-variant" in config:  # FedMeta asks for buffers too.
            arrays["n"] = np.array(0)
        return self.answer(QUERY, arrays, self.number + 1, {"loss": query_loss(self.number)})

    def evaluate(self, parameters, config):
        return self.answer(EVALUATE, float(self.number), self.number + 4, {"correct": self.number})


def gradient(number):
    one = np.float32(number + 1)
    return {"w": np.float32([one, -one]), "b": np.float32([1, one, 0])}


def query_loss(number):
    return 1.0 + number * number / 4


# ---- the expected results of good clients -------------------------------------------------------


def by_numpy(strategy, good):
    """Return the arrays after all rounds; `good` lists the good clients of each exchange."""
    arrays = {name: array.astype(np.float64) for name, array in START.items()}
    for _ in range(ROUNDS):
        more = np.array([i + 1.0 for i in good[FIT]])
        mean = (more * more).sum() / more.sum()  # A client's step equals its number of samples.
        arrays = {name: array + mean for name, array in arrays.items()}
        arrays["n"] = np.rint(arrays["n"])
        if strategy is CoPreFL:
            asked = [i for i in good[QUERY] if i in good[FIT]]
            losses = np.array([query_loss(i) for i in asked])
            of = GAMMA + (1 - GAMMA) * 2 / len(asked) * (losses - losses.mean())
            for name in ("w", "b"):
                step = sum(c * gradient(i)[name] for c, i in zip(of, asked, strict=True))
                arrays[name] = arrays[name] - ZETA * step
    return arrays


def accuracy_of(good):
    return sum(good) / sum(i + 4 for i in good)


def good_without(bad, exchange):
    """Return the good clients of each exchange; the bad clients are missing in one exchange."""
    others = [i for i in CLIENTS if i not in bad]
    return {one: others if one == exchange else list(CLIENTS) for one in TYPES}


# ---- one run ------------------------------------------------------------------------------------


class Heard(logging.Handler):
    """Keeps the lines of warnings, which are then not printed."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []
        self.log, self.flower = logging.getLogger("flwr.coprefl"), logging.getLogger("flwr")

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        self.before = self.log.level, self.log.propagate, self.flower.level
        self.log.setLevel(logging.WARNING)
        self.flower.setLevel(logging.CRITICAL)
        self.log.propagate = False
        self.log.addHandler(self)
        return self

    def __exit__(self, *_):
        self.log.removeHandler(self)
        self.log.setLevel(self.before[0])
        self.log.propagate = self.before[1]
        self.flower.setLevel(self.before[2])


def strategy_of(strategy, **options):
    """Return a strategy that evaluates in every round and knows the range of these losses."""
    constants = {"gamma": GAMMA, "meta_learning_rate": ZETA} if strategy is CoPreFL else {}
    bounds = Bounds(loss_range=LOSS_RANGE)
    return strategy(evaluate_every=1, bounds=bounds, **constants, **options)


def run(strategy, kind, faults, lie=lambda *_: None):
    """Return (arrays, accuracies by round, lines of warnings) of a run of a strategy."""
    nodes, clients = KINDS[kind]
    app = client_app(lambda _, i: Client(i, faults))
    if kind == "plain":
        app = without_roster(
            client_app(lambda c: Client(int(c.node_config["partition-id"]), faults))
        )
    with Heard() as heard:
        grid = Serialising(app, nodes, lie)
        made = strategy_of(strategy, min_available_nodes=nodes, clients=clients)
        result = made.start(grid, to_record(START), ROUNDS)
    accuracies = [one["accuracy"] for one in result.evaluate_metrics_clientapp.values()]
    return from_record(result.arrays), accuracies, heard.lines


def check_lines(lines, bad, shift=0):
    """Check that each line is short, printable and names a bad client, and that none is missing."""
    for line in lines:
        assert line.isprintable(), f"does not print: {line!r}"
        assert len(line) <= 260, f"a line of {len(line)} characters"
    starts = [
        (f"client {i + shift} on node ", f"train: client {i + shift} failed with ") for i in bad
    ]
    for start in starts:
        assert any(line.startswith(start) for line in lines), f"no line of {start}: {lines}"
    for line in lines:
        assert line.startswith(sum(starts, ())), f"a line of another: {line}"


def check_arrays(found, expected):
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, err_msg=name)


def check_client(strategy, kind, client, exchange, behaviour):
    """Check that a client's behaviour affects only the results of this client."""
    arrays, accuracies, lines = run(strategy, kind, {(client, exchange): behaviour})
    check_lines(lines, {client}, shift=2 if kind == "plain" else 0)
    good = good_without({client}, exchange)
    if strategy in BY_NUMPY:
        check_arrays(arrays, by_numpy(strategy, good))
    else:
        check_arrays(arrays, reference(strategy, kind, client, exchange))
    np.testing.assert_allclose(accuracies, [accuracy_of(good[EVALUATE])] * ROUNDS)


def fails(*_):
    raise ArithmeticError("cleanly")


@functools.cache
def reference(strategy, kind, client, exchange):
    """Return the arrays of a strategy if the client fails with an ordinary exception."""
    return run(strategy, kind, {(client, exchange): fails})[0]


def check_node(strategy, kind, node, exchange, change):
    """Check that a node's lie affects only the results of the clients on this node."""
    bad = set()

    def lie(asked, message_type, reply):
        if asked != node or message_type != TYPES[exchange]:
            return None
        content = dict(reply.content)
        bad.update(content["metrics"].get("clients"))
        change(content)
        return content

    arrays, accuracies, lines = run(strategy, kind, {}, lie)
    assert bad, "the node was not asked"
    check_lines(lines, bad)
    good = good_without(bad, exchange)
    check_arrays(arrays, by_numpy(strategy, good))
    np.testing.assert_allclose(accuracies, [accuracy_of(good[EVALUATE])] * ROUNDS)
