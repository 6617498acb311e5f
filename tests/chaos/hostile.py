"""Hostile replies x exchanges x positions: what remains is what the good clients make alone.

For FedAvg and CoPreFL that is computed here by NumPy from the papers' formulas; for others it is
what the same strategy comes to where the bad client fails with an ordinary exception.
"""

import functools
import itertools
import logging
import random
from collections.abc import Iterator

import numpy as np
from flwr.app import ConfigRecord
from flwr.client import NumPyClient

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.rounds.bounds import Bounds
from coprefl_flwr.rounds.protocol import ROSTER
from coprefl_flwr.strategies import (
    QFFL,
    CoPreFL,
    CoPreFLStd,
    Cyclic,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMeta,
    FedProx,
    FedYogi,
)
from tests.chaos.behaviours import (
    EVALUATE,
    FIT,
    LOSS_RANGE,
    NAMES,
    NODES_LIE,
    NODES_LIE_IN_ARRAYS,
    QUERY,
    clients_behave,
)
from tests.chaos.tally import Case
from tests.common.federation import without_roster
from tests.common.replies import KINDS, ROSTERS, START, Lying

ROUNDS, CLIENTS = 2, range(5)
POSITIONS = {"first": 0, "middle": 2, "last": 4}
GAMMA, ZETA = 0.25, 0.125
TYPES = {FIT: "train", QUERY: "train.query", EVALUATE: "evaluate"}
BY_NUMPY = {
    "fedavg": (FedAvg, (FIT, EVALUATE)),
    "coprefl": (CoPreFL, (FIT, QUERY, EVALUATE)),
}
OTHERS = {
    "coprefl-std": (CoPreFLStd, (FIT, QUERY)),
    "qffl": (QFFL, (FIT,)),
    "cyclic": (Cyclic, (FIT,)),
    "fedadam": (FedAdam, (FIT,)),
    "fedavgm": (FedAvgM, (FIT,)),
    "fedmeta": (FedMeta, (QUERY,)),
    "fedprox": (FedProx, (FIT,)),
    "fedyogi": (FedYogi, (FIT,)),
}


class Client(NumPyClient):
    """Client i: everything says which one it is, so that a sum shows who is in it.

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


# ---- what good clients make alone ---------------------------------------------------------------


def by_numpy(strategy, good, rounds=ROUNDS):
    """Return the arrays after all rounds; `good` are the clients of each exchange."""
    arrays = {name: array.astype(np.float64) for name, array in START.items()}
    for _ in range(rounds):
        more = np.array([i + 1.0 for i in good[FIT]])
        mean = (more * more).sum() / more.sum()  # Samples are as many.
        arrays = {name: array + mean for name, array in arrays.items()}
        arrays["n"] = np.rint(arrays["n"])
        if strategy == "coprefl":
            asked = [i for i in good[QUERY] if i in good[FIT]]
            losses = np.array([query_loss(i) for i in asked])
            of = GAMMA + (1 - GAMMA) * 2 / len(asked) * (losses - losses.mean())
            for name in ("w", "b"):
                step = sum(c * gradient(i)[name] for c, i in zip(of, asked, strict=True))
                arrays[name] = arrays[name] - ZETA * step
    return arrays


def accuracy_of(good):
    return sum(good) / sum(i + 4 for i in good)


# ---- one run ------------------------------------------------------------------------------------


class Heard(logging.Handler):
    """Keeps the lines of warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        log, flower = logging.getLogger("flwr.coprefl"), logging.getLogger("flwr")
        self.before = log.level, log.propagate, flower.level
        log.setLevel(logging.WARNING)
        flower.setLevel(logging.CRITICAL)
        log.propagate = False
        log.addHandler(self)
        return self

    def __exit__(self, *_):
        log = logging.getLogger("flwr.coprefl")
        log.removeHandler(self)
        log.setLevel(self.before[0])
        log.propagate = self.before[1]
        logging.getLogger("flwr").setLevel(self.before[2])


def run(name, kind, faults, lie=lambda *_: None):
    """Return (arrays, accuracies by round, lines of warnings) of a run of a strategy."""
    nodes, clients = KINDS[kind]
    app = client_app(lambda _, i: Client(i, faults), clients=clients)
    if kind == "plain":
        app = without_roster(
            client_app(lambda c: Client(int(c.node_config["partition-id"]), faults))
        )
    strategy_class = (BY_NUMPY | OTHERS)[name][0]
    own = {"gamma": GAMMA, "meta_learning_rate": ZETA} if name == "coprefl" else {}
    strategy = strategy_class(
        min_nodes=nodes, evaluate_every=1, bounds=Bounds(loss_range=LOSS_RANGE), **own
    )
    with Heard() as heard:
        result = strategy.start(Lying(app, nodes, lie), to_record(START), ROUNDS)
    measured = result.evaluate_metrics_clientapp
    return (
        from_record(result.arrays),
        [metrics["accuracy"] for metrics in measured.values()],
        heard.lines,
    )


def check_lines(lines, bad, shift=0):
    """Each line names a bad client, is short and prints; each bad client has one."""
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


def check_client(name, kind, client, exchange, behaviour):
    """Check that a client's behaviour costs the client alone."""
    faults = {(client, exchange): behaviour}
    arrays, accuracies, lines = run(name, kind, faults)
    check_lines(lines, {client}, shift=2 if kind == "plain" else 0)
    others = [i for i in CLIENTS if i != client]
    good = {one: others if one == exchange else list(CLIENTS) for one in TYPES}
    if name in BY_NUMPY:
        check_arrays(arrays, by_numpy(name, good))
    else:
        check_arrays(arrays, reference(name, kind, client, exchange))
    np.testing.assert_allclose(accuracies, [accuracy_of(good[EVALUATE])] * ROUNDS)


def fails(*_):
    raise ArithmeticError("cleanly")


@functools.cache
def reference(name, kind, client, exchange):
    """Return what a strategy comes to where the client fails cleanly."""
    return run(name, kind, {(client, exchange): fails})[0]


def check_node(name, kind, node, exchange, change):
    """Check that a node's lie costs its clients alone."""
    bad = set()

    def lie(asked, message_type, reply):
        if asked != node or message_type != TYPES[exchange]:
            return None
        content = dict(reply.content)
        ids = content["metrics"].get("clients")
        bad.update(ids)
        change(content)
        return content

    arrays, accuracies, lines = run(name, kind, {}, lie)
    assert bad, "the node was not asked"
    check_lines(lines, bad)
    others = [i for i in CLIENTS if i not in bad]
    good = {one: others if one == exchange else list(CLIENTS) for one in TYPES}
    check_arrays(arrays, by_numpy(name, good))
    np.testing.assert_allclose(accuracies, [accuracy_of(good[EVALUATE])] * ROUNDS)


def check_roster(name, shared, node, said):
    """Check that a node that lies about who it hosts costs itself alone."""

    def lie(asked, message_type, reply):
        if asked == node and message_type == ROSTER:
            return {"roster": ConfigRecord(said)}
        assert asked != node, "a node that lied was asked"
        return None

    nodes = 5
    app = client_app(lambda _, i: Client(i, {}), clients=5 if shared else None)
    own = {"gamma": GAMMA, "meta_learning_rate": ZETA} if name == "coprefl" else {}
    strategy = BY_NUMPY[name][0](min_nodes=nodes, **own)
    with Heard() as heard:
        result = strategy.start(Lying(app, nodes, lie), to_record(START), ROUNDS)
    for line in heard.lines:
        assert line.startswith(f"node {node} is left out: "), f"a line of another: {line}"
    assert heard.lines, "no line"
    good = [i for i in CLIENTS if shared or i != node - 2]
    check_arrays(from_record(result.arrays), by_numpy(name, dict.fromkeys(TYPES, good)))


# ---- the table ----------------------------------------------------------------------------------


def cases(seed, count, folder) -> Iterator[Case]:
    """Yield the table, in an order that the seed draws."""
    found = [*of_clients(), *of_nodes(), *of_rosters()]
    random.Random(seed).shuffle(found)
    yield from found


def of_clients():
    kinds = itertools.cycle(KINDS)
    for name, (_, exchanges) in (BY_NUMPY | OTHERS).items():
        for exchange in exchanges:
            for behaviour, change in clients_behave(exchange).items():
                for where, client in POSITIONS.items():
                    of = (name, next(kinds), client, exchange, change)
                    # Every way of hosting for these, one in turn for others.
                    for kind in KINDS if name in BY_NUMPY else [of[1]]:
                        yield Case(
                            f"{name}, {kind}, {exchange}, {where} client: {behaviour}",
                            lambda of=of, kind=kind: check_client(of[0], kind, *of[2:]),
                        )


def of_nodes():
    for name, (_, exchanges) in BY_NUMPY.items():
        for exchange in exchanges:
            lies = NODES_LIE if exchange == EVALUATE else NODES_LIE | NODES_LIE_IN_ARRAYS
            if exchange == QUERY:  # A NaN says that there is none, and none is needed.
                lies = {name: lie for name, lie in lies.items() if name != "NaN samples"}
            for behaviour, change in lies.items():
                for kind, places in {"own": (2, 4, 6), "two": (2, 3)}.items():
                    for node in places:
                        yield Case(
                            f"{name}, {kind}, {exchange}, node {node}: {behaviour}",
                            lambda of=(name, kind, node, exchange, change): check_node(*of),
                        )


def of_rosters():
    for name in BY_NUMPY:
        for behaviour, said in ROSTERS.items():
            for shared, node in itertools.product((True, False), (2, 4, 6)):
                kind = "shared" if shared else "own"
                yield Case(
                    f"{name}, {kind}, roster, node {node}: {behaviour}",
                    lambda of=(name, shared, node, said): check_roster(*of),
                )
