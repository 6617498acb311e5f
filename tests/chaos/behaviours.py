"""Replies of a client or a node that no honest one would send; only the sender must be left out.

A client's behaviour is called with the honest answer: the arrays {name: array} (in an evaluation:
the loss), the number of samples, and the metrics. It returns the answer that is sent instead. A
node's behaviour is called with the records of the reply by name, and changes them.
"""

import asyncio
import io
import os
import pickle

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from tests.common.replies import LIES, data, with_arrays

FIT, QUERY, EVALUATE = "fit", "query", "evaluate"
NAMES = ("w", "b", "n")
NAN, INF = float("nan"), float("inf")
LOSS_RANGE = (0.0, 100.0)
"""The range of losses of the strategies that these clients answer."""


class Mute(Exception):
    """An exception that cannot be converted to a text."""

    def __str__(self):
        raise ValueError("no text")


# ---- clients ------------------------------------------------------------------------------------

FIRST_ARRAY = [
    np.float32([NAN, NAN]), np.float32([0, NAN]), np.float32([INF, INF]), np.float32([-INF, -INF]),
    np.full(2, 1e300), np.full(2, -1e300), np.full(2, np.longdouble("1e4000")), np.full(2, 1j),
    np.array(["x", "y"]), np.array([b"1", b"2"]), np.array([1.0, None], object),
    np.array(["2026-01-01"] * 2, "datetime64[D]"), np.zeros(2, [("x", "f4")]), None, "weights",
    print, [[1.0], [1.0, 2.0]], np.zeros(3, np.float32), np.zeros((1, 2), np.float32),
    np.float32(1), np.zeros(0, np.float32), np.zeros(10**6, np.float32),
]  # fmt: skip
"""Values instead of the array `w` of two float32."""

ALL_ARRAYS = {
    "one missing": lambda arrays: {k: a for k, a in arrays.items() if k != "w"},
    "none": lambda arrays: {},
    "a list": lambda arrays: [],
    "one more": lambda arrays: {**arrays, "extra": np.ones(2)},
    "a thousand more": lambda arrays: {**arrays, **{str(i): np.ones(1) for i in range(1000)}},
    "renamed": lambda arrays: {f"{name}2": a for name, a in arrays.items()},
    "exchanged": lambda arrays: {**arrays, "w": arrays["b"], "b": arrays["w"]},
    "numbers for names": lambda arrays: dict(enumerate(arrays.values())),
    "control characters": lambda arrays: {**arrays, "\x1b[2J\n\0" * 999: np.ones(1)},
    "None": lambda arrays: None,
    "a number": lambda arrays: 3,
    "a text": lambda arrays: "no",
    "a generator": lambda arrays: (a for a in arrays.values()),
}
SAMPLES = [
    0, -5, 10**18, 10**400, 0.5, 1e-300, NAN, INF, None, "7", True, [1, 2], 1 + 2j, np.ones(3),
]  # fmt: skip
MORE_METRICS = [
    *({"x": value} for value in (NAN, INF, 1e200, 10**400, "good", None, [1.0], b"1")),
    {"x": {"y": 1.0}}, {"x": np.ones(2)}, {str(i): 0.0 for i in range(2000)}, {"x" * 5000: 0.0},
    {3: 1.0}, {"clients": 3.0},
]  # fmt: skip
METRICS = [None, 3, "good", [1.0]]
ANSWERS = [None, ([], 1), ([], 1, {}, {}), "done"]
ERRORS = [
    ArithmeticError("boom"), ArithmeticError(), ArithmeticError("\n".join(["line"] * 2000)),
    ArithmeticError("\x1b[31m\r\n\0\u202e\x07\x9b" * 500), ArithmeticError("\ud800\udfff\ud800"),
    ArithmeticError("x\nWARNING: client 1 on node 2 is left out: it is its fault"), Mute(),
    ExceptionGroup("g", [ValueError("a"), TypeError("b")]), MemoryError(), RecursionError(),
    StopIteration(), SystemExit(0), SystemExit("bye"), asyncio.CancelledError(), GeneratorExit(),
]  # fmt: skip
LOSSES = [NAN, INF, 1e200, LOSS_RANGE[0] - 5, LOSS_RANGE[1] + 1, "small", None, 10**400]


def raises(error):
    def raising(*_):
        raise type(error)(*error.args)

    return raising


def changed_in_place(arrays, n, metrics):
    for array in arrays.values():
        array[...] = 7
    raise ArithmeticError("after it changed what it was given")


def clients_behave(exchange):
    """Return {name: behaviour} of everything that a client can do in an exchange."""
    found = {}

    def add(what, values, behaviour):
        for number, value in enumerate(values):
            found[f"{what} {number}: {ascii(value)[:40]}"] = behaviour(value)

    def metrics_have(more):
        return lambda answer, n, metrics: (answer, n, {**metrics, **more})

    add("samples", SAMPLES, lambda value: lambda answer, n, metrics: (answer, value, metrics))
    add("more metrics", MORE_METRICS, metrics_have)
    add("metrics", METRICS, lambda value: lambda answer, n, metrics: (answer, n, value))
    add("answer", ANSWERS, lambda value: lambda *_: value)
    add("error", ERRORS, raises)
    if exchange == EVALUATE:
        add("loss", [*LOSSES, [1.0]], lambda value: lambda _, n, metrics: (value, n, metrics))
        add("hits", [400, -1], lambda value: metrics_have({"correct": value}))
        return found
    add("loss", LOSSES, lambda value: metrics_have({"loss": value}))
    add("w", FIRST_ARRAY, lambda value: lambda a, n, metrics: ({**a, "w": value}, n, metrics))
    for name, change in ALL_ARRAYS.items():
        found[f"arrays: {name}"] = lambda a, n, metrics, change=change: (change(a), n, metrics)
    return found | {"what it was given, changed": changed_in_place}


# ---- nodes --------------------------------------------------------------------------------------


def metric(name, change):
    """Return a lie about one of the reply's metrics."""

    def lie(content):
        metrics = dict(content["metrics"])
        metrics[name] = change(metrics[name])
        content["metrics"] = MetricRecord(metrics)

    return lie


def record(name, value):
    """Return a lie that puts a record into the reply."""
    return lambda content: content.update({name: value})


def failed(**lists):
    return record("failed", ConfigRecord(lists))


def array(**changes):
    """Return a lie that changes attributes of an array, such as its dtype or its bytes."""

    def lie(content):
        where = data(content)
        old = content[where]["w"]
        known = {key: getattr(old, key) for key in ("dtype", "shape", "stype", "data")}
        content[where] = ArrayRecord({**content[where], "w": Array(**known | changes)})

    return lie


def cut_short(content):
    array(data=content[data(content)]["w"].data[:-5])(content)


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


def only(*names):
    def lie(content):
        for name in content.keys() - set(names):
            del content[name]

    return lie


def of_others(content):
    """Claim that the results are those of all clients."""
    n = 5
    each = {k: v for k, v in content["metrics"].items() if k != "clients"}
    lists = {k: [v[0]] * n if isinstance(v, list) else v for k, v in each.items()}
    content["metrics"] = MetricRecord({"clients": list(range(n)), **lists})


NODES_LIE = {
    "nothing": only(),
    "no metrics": only("arrays"),
    "two of metrics": record("more", MetricRecord({"loss": 1.0})),
    "its clients twice": metric("clients", lambda ids: ids + ids),
    "foreign clients": metric("clients", lambda ids: [i + 77 for i in ids]),
    "negative clients": metric("clients", lambda ids: [-1 - i for i in ids]),
    "clients beyond all": metric("clients", lambda ids: [2**62] * len(ids)),
    "fractions for clients": metric("clients", lambda ids: [i + 0.5 for i in ids]),
    "no clients": metric("clients", lambda ids: []),
    "a million clients": record(
        "metrics", MetricRecord({"clients": list(range(10**6)), "loss": [1.0] * 10**6})
    ),
    "everybody's results": of_others,
    "more losses than clients": metric("loss", lambda losses: [*losses, 1.0]),
    "no losses": metric("loss", lambda losses: []),
    "NaN samples": metric("num-examples", lambda ns: [NAN] * len(ns)),
    "infinite losses": metric("loss", lambda losses: [INF] * len(losses)),
    "samples beyond all": metric("num-examples", lambda ns: [10.0**18] * len(ns)),
    "failures without a list": failed(clients=3, reasons="x"),
    "failures of nobody": failed(clients=["x"], reasons=["y"]),
    "failures without reasons": failed(clients=[0, 1]),
    "more reasons than failures": failed(clients=[1], reasons=["x", "y"]),
    "all failed and none": failed(clients=list(range(5)), reasons=["x"] * 5),
    "metrics without end": record("metrics", MetricRecord({str(i): 1.0 for i in range(5000)})),
    "settings without end": failed(**{str(i): 1 for i in range(5000)}),
    "blames another": LIES["blames another"][0],
}
NODES_LIE_IN_ARRAYS = {
    "no arrays": only("metrics"),
    "bytes that are no array": array(data=b"no array"),
    "no bytes": array(data=b""),
    "a program for an array": array(data=pickled(), dtype="object"),
    "an array of another kind": array(stype="torch.tensor"),
    "an array cut short": cut_short,
    "one record more": lambda content: content.update(more=content[data(content)]),
    "NaN in sums": with_arrays({"w": np.full(2, NAN)}),
    "1e300 in sums": with_arrays({"w": np.full(2, 1e300)}),
    "sums of another shape": with_arrays({"w": np.ones(3)}),
    **{f"{name} of LIES": lie for name, (lie, _) in LIES.items() if name not in NODES_LIE},
}
