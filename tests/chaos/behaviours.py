"""What a client or a node may answer that no honest one would; each must be left out, alone.

A client's behaviour is given its honest (arrays, number of samples, metrics), where the arrays are
{name: array}, or its loss where it evaluates, and returns what it answers instead. A node's is
given the records of its reply by name, and changes them.
"""

import asyncio
import io
import os
import pickle

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from coprefl_flwr.arrays import from_record, to_record
from tests.common.replies import LIES

FIT, QUERY, EVALUATE = "fit", "query", "evaluate"
NAMES = ("w", "b", "n")


def first(change):
    """Return a behaviour that changes the first array."""
    return lambda arrays, n, metrics: ({**arrays, "w": change(arrays["w"])}, n, metrics)


def arrays_are(change):
    return lambda arrays, n, metrics: (change(arrays), n, metrics)


def samples_are(value):
    return lambda answer, n, metrics: (answer, value, metrics)


def metrics_have(more):
    return lambda answer, n, metrics: (answer, n, {**metrics, **more})


def metrics_are(value):
    return lambda answer, n, metrics: (answer, n, value)


def answers(value):
    return lambda *_: value


def raises(error):
    def raising(*_):
        raise error()

    return raising


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self):
        raise ValueError("no text")


def changed_in_place(arrays, n, metrics):
    for array in arrays.values():
        array[...] = 7
    raise ArithmeticError("after it changed what it was given")


OF_ARRAYS = {
    "NaN": first(lambda a: np.full_like(a, np.nan)),
    "one NaN": first(lambda a: np.array([a[0], np.nan], np.float32)),
    "infinite": first(lambda a: np.full_like(a, np.inf)),
    "minus infinite": first(lambda a: np.full_like(a, -np.inf)),
    "1e300": first(lambda a: np.full(a.shape, 1e300)),
    "-1e300": first(lambda a: np.full(a.shape, -1e300)),
    "long double": first(lambda a: np.full(a.shape, np.longdouble("1e4000"))),
    "complex": first(lambda a: a + 1j),
    "texts": first(lambda a: np.array(["x", "y"])),
    "bytes": first(lambda a: np.array([b"1", b"2"])),
    "objects": first(lambda a: np.array([1.0, None], object)),
    "dates": first(lambda a: np.array(["2026-01-01"] * 2, "datetime64[D]")),
    "a record": first(lambda a: np.zeros(2, [("x", "f4")])),
    "None for an array": first(lambda a: None),
    "a text for an array": first(lambda a: "weights"),
    "a function for an array": first(lambda a: first),
    "ragged": first(lambda a: [[1.0], [1.0, 2.0]]),
    "longer": first(lambda a: np.append(a, 1)),
    "two-dimensional": first(lambda a: a[None]),
    "one number": first(lambda a: np.float32(1)),
    "no number": first(lambda a: np.zeros(0, np.float32)),
    "a million numbers": first(lambda a: np.zeros(10**6, np.float32)),
    "missing": arrays_are(lambda arrays: {k: a for k, a in arrays.items() if k != "w"}),
    "all missing": arrays_are(lambda arrays: {}),
    "an empty list": arrays_are(lambda arrays: []),
    "one more": arrays_are(lambda arrays: {**arrays, "extra": np.ones(2)}),
    "a thousand more": arrays_are(
        lambda arrays: {**arrays, **{str(i): np.ones(1) for i in range(1000)}}
    ),
    "renamed": arrays_are(lambda arrays: {f"{name}2": a for name, a in arrays.items()}),
    "exchanged": arrays_are(lambda arrays: {**arrays, "w": arrays["b"], "b": arrays["w"]}),
    "numbers for names": arrays_are(lambda arrays: dict(enumerate(arrays.values()))),
    "control characters for a name": arrays_are(lambda a: {**a, "\x1b[2J\n\0" * 999: np.ones(1)}),
    "None for arrays": arrays_are(lambda arrays: None),
    "a number for arrays": arrays_are(lambda arrays: 3),
    "a text for arrays": arrays_are(lambda arrays: "no"),
    "a generator": arrays_are(lambda arrays: (a for a in arrays.values())),
    "what it was given, changed": changed_in_place,
}
OF_ALL = {
    "no samples": samples_are(0),
    "negative samples": samples_are(-5),
    "1e18 samples": samples_are(10**18),
    "10^400 samples": samples_are(10**400),
    "half a sample": samples_are(0.5),
    "a part of a sample": samples_are(1e-300),
    "NaN samples": samples_are(float("nan")),
    "infinite samples": samples_are(float("inf")),
    "None samples": samples_are(None),
    "samples in words": samples_are("7"),
    "samples as truth": samples_are(True),
    "a list of samples": samples_are([1, 2]),
    "complex samples": samples_are(1 + 2j),
    "an array of samples": samples_are(np.ones(3)),
    "NaN metric": metrics_have({"x": float("nan")}),
    "infinite metric": metrics_have({"x": float("inf")}),
    "1e200 metric": metrics_have({"x": 1e200}),
    "10^400 metric": metrics_have({"x": 10**400}),
    "metric in words": metrics_have({"x": "good"}),
    "None metric": metrics_have({"x": None}),
    "list metric": metrics_have({"x": [1.0]}),
    "metric of bytes": metrics_have({"x": b"1"}),
    "nested metrics": metrics_have({"x": {"y": 1.0}}),
    "an array for a metric": metrics_have({"x": np.ones(2)}),
    "metrics without end": metrics_have({str(i): 0.0 for i in range(2000)}),
    "a metric's name without end": metrics_have({"x" * 5000: 0.0}),
    "a number for a metric's name": metrics_have({3: 1.0}),
    "a metric called clients": metrics_have({"clients": 3.0}),
    "None for metrics": metrics_are(None),
    "a number for metrics": metrics_are(3),
    "a text for metrics": metrics_are("good"),
    "a list for metrics": metrics_are([1.0]),
    "None": answers(None),
    "two things": answers(([], 1)),
    "four things": answers(([], 1, {}, {})),
    "a text": answers("done"),
    "an error": raises(lambda: ArithmeticError("boom")),
    "an error without words": raises(ArithmeticError),
    "an error of 10 kB": raises(lambda: ArithmeticError("\n".join(["line"] * 2000))),
    "an error of control characters": raises(
        lambda: ArithmeticError("\x1b[31m\r\n\0\u202e\x07\x9b" * 500)
    ),
    "an error of half a letter": raises(lambda: ArithmeticError("\ud800\udfff\ud800")),
    "an error that looks like a log's": raises(
        lambda: ArithmeticError("x\nWARNING: client 1 on node 2 is left out: it is its fault")
    ),
    "an error that cannot be told": raises(Mute),
    "an error of errors": raises(lambda: ExceptionGroup("g", [ValueError("a"), TypeError("b")])),
    "out of memory": raises(MemoryError),
    "too deep": raises(RecursionError),
    "stopped": raises(StopIteration),
    "sys.exit": raises(lambda: SystemExit(0)),
    "sys.exit with words": raises(lambda: SystemExit("bye")),
    "cancelled": raises(asyncio.CancelledError),
    "a generator's end": raises(GeneratorExit),
}
OF_LOSS = {
    "NaN loss": float("nan"),
    "infinite loss": float("inf"),
    "1e200 loss": 1e200,
    "loss below its range": -5.0,
    "loss above its range": 101.0,
    "loss in words": "small",
    "None loss": None,
    "10^400 loss": 10**400,
}
LOSS_RANGE = (0.0, 100.0)
"""Of the strategies that these clients answer."""

OF_EVALUATION = {
    "more hits than samples": metrics_have({"correct": 400}),
    "negative hits": metrics_have({"correct": -1}),
}


def clients_behave(exchange):
    """Return {name: behaviour} of all that a client can do in an exchange."""
    found = dict(OF_ALL)
    for name, value in OF_LOSS.items():
        answer = (lambda _, n, m, v=value: (v, n, m)) if exchange == EVALUATE else None
        found[name] = answer or metrics_have({"loss": value})
    if exchange == EVALUATE:
        return found | OF_EVALUATION | {"a list for a loss": lambda _, n, m: ([1.0], n, m)}
    return found | OF_ARRAYS


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

    def lie(content):
        content[name] = value

    return lie


def data(content):
    """Return the name of the record of arrays: one client's, or a sum."""
    return next(n for n, one in content.items() if isinstance(one, ArrayRecord))


def array(**changes):
    """Return a lie about what an array is."""

    def lie(content):
        where = data(content)
        old = content[where]["w"]
        known = {
            "dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": old.data,
        }  # fmt: skip
        content[where] = ArrayRecord({**content[where], "w": Array(**known | changes)})

    return lie


class Program:
    """What would be run by whoever unpickles it."""

    def __reduce__(self):
        return os._exit, (3,)


def pickled():
    """Return the bytes of an array of objects, which NumPy would unpickle."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "|O", "fortran_order": False, "shape": (2,)}
    )
    return file.getvalue() + pickle.dumps(Program())


def only(*names):
    def lie(content):
        for name in content.keys() - set(names):
            del content[name]

    return lie


def of_others(content):
    """Say that the results are all clients'."""
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
    "NaN samples": metric("num-examples", lambda ns: [float("nan")] * len(ns)),
    "infinite losses": metric("loss", lambda losses: [float("inf")] * len(losses)),
    "samples beyond all": metric("num-examples", lambda ns: [10.0**18] * len(ns)),
    "failures without a list": record("failed", ConfigRecord({"clients": 3, "reasons": "x"})),
    "failures of nobody": record("failed", ConfigRecord({"clients": ["x"], "reasons": ["y"]})),
    "failures without reasons": record("failed", ConfigRecord({"clients": [0, 1]})),
    "more reasons than failures": record(
        "failed", ConfigRecord({"clients": [1], "reasons": ["x", "y"]})
    ),
    "all failed and none": record(
        "failed", ConfigRecord({"clients": list(range(5)), "reasons": ["x"] * 5})
    ),
    "metrics without end": record("metrics", MetricRecord({str(i): 1.0 for i in range(5000)})),
    "settings without end": record(
        "failed", ConfigRecord({str(i): 1 for i in range(5000)})
    ),
    "blame of another": LIES["blames another"][0],
}  # fmt: skip
NODES_LIE_IN_ARRAYS = {
    "no arrays": only("metrics"),
    "bytes that are no array": array(data=b"no array"),
    "no bytes": array(data=b""),
    "a program for an array": array(data=pickled(), dtype="object"),
    "an array of another kind": array(stype="torch.tensor"),
    "an array cut short": lambda content: array(data=old(content).data[:-5])(content),
    "a header that lies": lambda content: array(data=endless(), shape=(10**11,))(content),
    "one record more": lambda content: record("more", content[data(content)])(content),
    "records without end": lambda content: content.update(
        {f"r{i}": to_record({"w": np.ones(2)}) for i in range(50)}
    ),
    "arrays without end": lambda content: _with(content, {f"a{i}": np.ones(1) for i in range(50)}),
    "bytes without end": lambda content: _with(content, {"w": np.ones(100_000)}),
    "NaN in sums": lambda content: _with(content, {"w": np.full(2, np.nan)}),
    "1e300 in sums": lambda content: _with(content, {"w": np.full(2, 1e300)}),
    "sums of another shape": lambda content: _with(content, {"w": np.ones(3)}),
}


def old(content):
    return content[data(content)]["w"]


def endless():
    """Return an array of 64 bytes whose header says that it has 10^11 numbers."""
    file = io.BytesIO()
    about = {"descr": "<f8", "fortran_order": False, "shape": (10**11,)}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue() + bytes(64)


def _with(content, arrays):
    where = data(content)
    content[where] = to_record({**from_record(content[where]), **arrays})
