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


# ---- clients ------------------------------------------------------------------------------------

FIRST_ARRAY = [
    np.float32([0, NAN]), np.float32([INF, INF]), np.full(2, -1e300), np.full(2, 1j),
    np.array(["x", "y"]), np.array([1.0, None], object), None, "weights", [[1.0], [1.0, 2.0]],
    np.zeros(3, np.float32), np.zeros((1, 2), np.float32), np.float32(1), np.zeros(10**6),
]  # fmt: skip
"""Values instead of the array `w` of two float32."""

ALL_ARRAYS = {
    "one missing": lambda arrays: {k: a for k, a in arrays.items() if k != "w"},
    "none": lambda arrays: {},
    "a list": lambda arrays: [],
    "one more": lambda arrays: {**arrays, "extra": np.ones(2)},
    "renamed": lambda arrays: {f"{name}2": a for name, a in arrays.items()},
    "exchanged": lambda arrays: {**arrays, "w": arrays["b"], "b": arrays["w"]},
    "None": lambda arrays: None,
}
SAMPLES = [0, -5, 10**18, 0.5, NAN, INF, None, "7", True, [1, 2]]
MORE_METRICS = [
    *({"x": value} for value in (NAN, INF, "good", None, [1.0])), {"clients": 3.0},
]  # fmt: skip
METRICS = [None, "good"]
ANSWERS = [None, ([], 1)]
ERRORS = [
    ArithmeticError("boom"), ArithmeticError(), ArithmeticError("\n".join(["line"] * 2000)),
    ArithmeticError("x\nWARNING: client 1 on node 2 is left out: it is its fault"),
    ExceptionGroup("g", [ValueError("a"), TypeError("b")]), MemoryError(), SystemExit("bye"),
    asyncio.CancelledError(),
]  # fmt: skip
LOSSES = [NAN, INF, 1e200, LOSS_RANGE[0] - 5, LOSS_RANGE[1] + 1, "small", None]


def raises(error):
    def raising(*_):
        raise type(error)(*error.args)

    return raising


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
    return found


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
        same = {key: getattr(old, key) for key in ("dtype", "shape", "stype", "data")}
        content[where] = ArrayRecord({**content[where], "w": Array(**same | changes)})

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
    "its clients twice": metric("clients", lambda ids: ids + ids),
    "foreign clients": metric("clients", lambda ids: [i + 77 for i in ids]),
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
    "failures of nobody": failed(clients=["x"], reasons=["y"]),
    "failures without reasons": failed(clients=[0, 1]),
    "all failed and none": failed(clients=list(range(5)), reasons=["x"] * 5),
    "failures of another client": failed(clients=[4], reasons=["TypeError: it is its fault"]),
}
NODES_LIE_IN_ARRAYS = {
    "no arrays": only("metrics"),
    "bytes that are no array": array(data=b"no array"),
    "a program for an array": array(data=pickled(), dtype="object"),
    "an array cut short": cut_short,
    "one record more": lambda content: content.update(more=content[data(content)]),
    "NaN in sums": with_arrays({"w": np.full(2, NAN)}),
    "1e300 in sums": with_arrays({"w": np.full(2, 1e300)}),
    "sums of another shape": with_arrays({"w": np.ones(3)}),
    **{f"{name} of LIES": lie for name, (lie, _) in LIES.items()},
}
