"""The bounds that a user sets, and the time per node and per client in large rounds."""

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, Metadata
from flwr.client import NumPyClient

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import Bounds, Mean
from coprefl_flwr.federation.hosting import run_clients
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import Cyclic, FedAvg, Schedule
from tests.common.by_hand import record_samples
from tests.common.checks import warnings_of
from tests.common.federation import without_roster
from tests.common.replies import START, Good, Lying, grid, of, of_kind

LOSSES = Bounds(loss_range=(0.0, math.inf))


@pytest.mark.parametrize("kind", ["one", "own"])
def test_a_loss_out_of_its_range_is_left_out(kind, caplog):
    """The client is left out only if a range is set, because some losses may be below 0."""
    bad = of(1, "fit", lambda arrays, n, metrics: ([a + 4 for a in arrays], n, {"loss": -0.5}))
    ends = {}
    for bounds in (Bounds(), LOSSES):
        caplog.clear()
        strategy = FedAvg(**of_kind(kind), bounds=bounds)
        result = strategy.start(grid(kind, bad), to_record(START), 1)
        ends[bounds] = from_record(result.arrays)["w"][0], warnings_of(caplog)
    assert ends[Bounds()] == (np.float32(9 / 5), [])
    node = 3 if kind == "own" else 2
    line = "metric 'loss' is -0.5; it must be between 0 and inf"
    assert ends[LOSSES] == (1.0, [f"client 1 on node {node} is left out: {line}"])


@pytest.mark.parametrize(
    ("bounds", "line"),
    [
        ({"loss_range": (1.0, 0.0)}, "loss_range = (1.0, 0.0): must be two numbers, the smallest"),
        (
            {"loss_range": 3.0},
            "loss_range = 3.0: must be two numbers, the smallest and the largest",
        ),
        ({"loss_range": ("a", "b")}, "loss_range = ('a', 'b'): must be two numbers"),
        ({"loss_range": (math.nan, 1)}, "loss_range = (nan, 1): must be two numbers"),
        ({"most_samples": 0}, "most_samples = 0: must be at least 1"),
    ],
)
def test_bounds_are_checked(bounds, line):
    with pytest.raises(SettingsError) as caught:
        Bounds(**bounds)
    assert str(caught.value).startswith(line)


def test_bounds_are_in_checkpoints_only_where_they_are_set():
    assert "bounds" not in FedAvg().options()
    other = FedAvg(bounds=LOSSES, min_available_nodes=3)
    bounds = {"loss_range": (0.0, math.inf), "most_samples": 10**9}
    bounds |= {"clients_per_node": None, "positive": ()}
    assert other.options() == FedAvg().options() | {"bounds": bounds, "min_available_nodes": 3}


def test_a_schedule_has_the_bounds_of_its_first_phase():
    first, second = Cyclic(bounds=LOSSES, min_available_nodes=3), FedAvg()
    schedule = Schedule([(first, 1), (second, 1)])
    assert (schedule.bounds, schedule.options()["min_available_nodes"]) == (LOSSES, 3)
    assert Schedule([(second, 1), (first, 1)]).bounds == Bounds()


@pytest.mark.parametrize(("clients", "questions"), [(4, 0), (None, 4)])
def test_the_strategy_says_who_hosts_whom(clients, questions):
    """With a number of clients, no node is asked.

    Without a number, each node's report counts on its own, whatever other nodes report.
    """

    def lie(node, message_type, reply):
        own = {4: {"own": [7 + node]}, 5: {"clients": 9}}.get(node)
        return {"roster": ConfigRecord(own)} if "roster" in message_type and own else None

    lying_grid = Lying(client_app(lambda c, i: Good(i, lambda *_: None)), 4, lie)
    strategy = FedAvg(clients=clients, min_available_nodes=3, evaluate_every=0)
    seen = record_samples(strategy)
    result = strategy.start(lying_grid, to_record(START), 1)
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [1, 1])
    assert lying_grid.asked == questions
    assert seen == [[0, 1, 2, 3] if clients else [0, 1, 11]]


@pytest.mark.parametrize("clients", [0, -3, 10**18, True, 2.5, "", {}])
def test_clients_that_cannot_be_are_refused(clients):
    with pytest.raises(SettingsError, match="clients"):
        FedAvg(clients=clients)


class Counted(Metadata):
    """Metadata of a message that count how often the ids of all messages are read."""

    looks = 0

    @property
    def message_id(self):
        Counted.looks += 1
        return super().message_id


class Single(NumPyClient):
    def fit(self, parameters, config):
        return [parameters[0] + 1], 1, {}


def test_time_per_node_is_constant(monkeypatch):
    """Before, each reply was searched for among all messages: 125,000 reads for 500 nodes."""
    start = {"w": np.zeros(1, np.float32)}

    class Counting(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            ids = super().push_messages(messages)
            for message in messages:
                message.metadata.__class__ = Counted
            return ids

    Counted.looks = 0
    app = without_roster(client_app(lambda context: Single()))
    FedAvg().start(Counting(app, nodes=500), to_record(start), 1)
    assert 500 <= Counted.looks <= 10 * 500


class NoIndex(list):
    """A list that raises an error if it is searched."""

    def index(self, *_):
        raise AssertionError("the list was searched")


def test_time_per_hosted_client_is_constant():
    clients = NoIndex(range(1000))
    sent = {"w": np.zeros(1, np.float32)}
    config = {"state-version": ["1-0"] * 1000, "state-kept": [""] * 1000}
    reply = run_clients(lambda i, c: Single(), clients, "fit", sent, config, Mean(), Bounds(), sent)
    assert len(reply.metrics) == 1000
    assert reply.failed == {}
