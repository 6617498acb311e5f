"""Clients and nodes whose replies no honest client would send, and a grid that runs them."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.client import NumPyClient

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.federation.messages import ROSTER
from coprefl_flwr.grids import LocalGrid
from tests.common.federation import without_roster

START = {"w": np.zeros(2, np.float32), "b": np.zeros(3, np.float32), "n": np.array(0)}
KINDS = {"one": (1, 5), "two": (2, 5), "own": (5, None), "plain": (5, None)}
"""Number of nodes, and the strategy's `clients`; "plain" nodes do not know the roster query."""


def of_kind(kind):
    """Return the strategy's options for a run on the `grid` of a kind."""
    nodes, clients = KINDS[kind]
    return {"min_available_nodes": nodes, "clients": clients}


class Good(NumPyClient):
    """Adds 1 to all arrays; every gradient is 1. `fault` may return another answer.

    The arguments of `fault` are the client, the method and the parts of the answer.
    """

    def __init__(self, client, fault, method=""):
        self.client, self.fault, self.method = client, fault, method

    def answer(self, method, answer):
        changed = self.fault(self.client, method, *answer)
        return changed or answer

    def fit(self, parameters, config):
        arrays = [a + 1 for a in parameters]
        if "extra" in config:
            control = config["extra"]["control"].items()
            arrays = dict(zip(START, arrays, strict=True))
            arrays |= {f".control/{name}": a + 1 for name, a in control}
        return self.answer("fit", (arrays, 1, {"loss": 1.0}))

    def query(self, parameters, config):
        gradient = {"w": np.ones(2, np.float32), "b": np.ones(3, np.float32)}
        return self.answer("query", (gradient, 1, {"loss": 1.0}))

    def evaluate(self, parameters, config):
        return self.answer("evaluate", (1.0, 4, {"correct": 2}))


class Lying(LocalGrid):
    """A grid on which `lie(node, message type, reply)` may return another reply."""

    asked = 0
    own_nodes = False  # As in a deployment, where the nodes belong to other people.

    def __init__(self, app, nodes, lie):
        super().__init__(app, nodes)
        self.lie = lie

    def _handle(self, message):
        reply = super()._handle(message)
        about = message.metadata
        self.asked += about.message_type == ROSTER
        content = self.lie(about.dst_node_id, about.message_type, reply)
        return reply if content is None else Message(RecordDict(content), reply_to=message)


def grid(kind, fault=lambda *_: None, lie=lambda *_: None):
    nodes, _ = KINDS[kind]
    app = client_app(lambda _, i: Good(i, fault))
    if kind == "plain":
        app = without_roster(client_app(lambda c: Good(c.node_config["partition-id"], fault)))
    return Lying(app, nodes, lie)


def of(client, method, change):
    """Return a fault that changes the answers of one client to one method."""
    return lambda number, asked, *answer: (
        change(*answer) if (number, asked) == (client, method) else None
    )


def more(metrics):
    return lambda arrays, n, old: ([a + 4 for a in arrays], n, old | metrics)


SPOILT = {
    "infinite once it is cast": (
        lambda arrays, n, m: ([np.full(2, 1e300), *arrays[1:]], n, m),
        "array 'w' holds 1e+300, which is outside the range of float32",
    ),
    "beyond a whole number": (
        lambda arrays, n, m: ([*arrays[:2], np.array(1e30)], n, m),
        "array 'n' holds 1e+30, which is outside the range of int64",
    ),
    "samples beyond all": (
        lambda arrays, n, m: ([a + 4 for a in arrays], 10**18, m),
        "metric 'num-examples' is 1e+18; it must be between 1 and 1e+09",
    ),
    "half a sample": (
        lambda arrays, n, m: ([a + 4 for a in arrays], 0.5, m),
        "metric 'num-examples' is 0.5; it must be between 1 and 1e+09",
    ),
}


def lie_of(node, change):
    """Return a lie that changes the records of a node's train and evaluate replies in place."""

    def lie(asked, message_type, reply):
        if asked != node or message_type not in ("train", "evaluate"):
            return None
        content = dict(reply.content)
        change(content)
        return content

    return lie


def blame(content):
    content["failed"] = ConfigRecord({"clients": [4], "reasons": ["TypeError: it is its fault"]})


def data(content):
    """Return the name of the record with the arrays of a client, or with a sum."""
    return next(name for name, one in content.items() if isinstance(one, ArrayRecord))


def with_arrays(arrays):
    """Return a lie that adds arrays to a reply and replaces arrays of the same names."""

    def lie(content):
        where = data(content)
        content[where] = to_record({**from_record(content[where]), **arrays})

    return lie


def many_records(content):
    content |= {f"r{i}": to_record({"w": np.ones(2)}) for i in range(50)}


LIES = {
    "blames another": (blame, "failures of clients [4], expected: [1]"),
    "bytes": (
        with_arrays({"w": np.ones(10_000)}),
        "array 'w' has shape (10000,); expected is (2,)",
    ),
    "arrays": (
        with_arrays({f"a{i}": np.ones(1) for i in range(50)}),
        "array 'a0' is not one of the 3 expected arrays",
    ),
    "records": (many_records, "51 ArrayRecords in the reply, not one"),
}
