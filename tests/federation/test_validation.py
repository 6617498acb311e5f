"""The bounds that a user sets, and how large a round may be."""

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, Metadata
from flwr.client import NumPyClient

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import Bounds, Exchange, LossMoments, Mean, PerClient
from coprefl_flwr.federation.hosting import run_all
from coprefl_flwr.federation.validation import Limits
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import MOON, SCAFFOLD, CoPreFL, Cyclic, FedAvg, FedPCL, Schedule
from tests.common.by_hand import record_samples
from tests.common.checks import warnings_of
from tests.common.federation import without_roster
from tests.common.replies import START, Good, Lying, grid, of, of_kind
from tests.common.runs import run_of

LOSSES = Bounds(loss_range=(0.0, math.inf))


@pytest.mark.parametrize("kind", ["one", "own"])
def test_a_loss_out_of_its_range_is_left_out(kind, caplog):
    """Only where a range is set: there are losses below 0."""
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
    ("method", "action"), [(FedAvg, "fit"), (SCAFFOLD, "fit"), (CoPreFL, "query")]
)
def test_an_update_much_longer_than_the_median_is_left_out(method, action, caplog):
    """Of models, gradients and control variates, where a node is one client."""

    def long(arrays, n, metrics):
        if isinstance(arrays, dict):
            return {name: 50 * array for name, array in arrays.items()}, n, metrics
        return [50 * array for array in arrays], n, metrics

    ends = []
    for fault in (lambda *_: None, of(1, action, long)):
        strategy = method(min_available_nodes=5, bounds=Bounds(largest_update=10))
        ends.append(from_record(strategy.start(grid("own", fault), to_record(START), 1).arrays))
    (line,) = warnings_of(caplog)
    assert line.startswith("client 1 on node 3 is left out: the update has length ")
    assert "10 times the median is " in line
    # Good clients answer alike; CoPreFL's query losses are summed, not averaged.
    part = 0.8 if method is CoPreFL else 1.0
    step = ends[0]["w"] - np.float32(1 if method is CoPreFL else 0)
    np.testing.assert_allclose(ends[1]["w"], step * part + (1 if method is CoPreFL else 0))


def test_a_long_set_of_prototypes_is_left_out_of_those_that_one_node_hosts(caplog):
    """Each client's arrays travel by themselves there."""

    class Apart(FedAvg):
        def round(self, ctx, arrays):
            clients = ctx.sample()
            replies = yield Exchange("train", arrays, clients, PerClient())
            return arrays, {"clients": float(len(replies.sums))}

    bad = of(1, "fit", lambda arrays, n, metrics: ([99 * arrays[0]], n, metrics))
    start = {"w": np.zeros(2, np.float32)}
    for kind in ("one", "two", "own"):
        strategy = Apart(bounds=Bounds(largest_update=3), **of_kind(kind))
        strategy.start(grid(kind, bad), to_record(start), 1)
        assert run_of(strategy).history.train[1] == {"clients": 4.0}
    assert len(warnings_of(caplog)) == 3


@pytest.mark.parametrize("kind", ["one", "own"])
def test_a_gradient_has_the_names_that_are_trainable(kind, caplog):
    """Whatever most clients say: here three of five leave out an array, and one has one more."""

    def fault(number, asked, *answer):
        if asked != "query" or number == 4:
            return None
        gradient, n, metrics = answer
        if number == 3:
            return gradient | {"more": np.ones(1, np.float32)}, n, metrics
        return {"w": gradient["w"]}, n, metrics

    start = START | {"more": np.zeros(1, np.float32)}
    bounds = Bounds(trainable=("w", "b"))
    strategy = CoPreFL(gamma=1.0, meta_learning_rate=0.5, bounds=bounds, **of_kind(kind))
    arrays = from_record(strategy.start(grid(kind, fault), to_record(start), 1).arrays)
    np.testing.assert_allclose(arrays["b"], np.full(3, 0.5))
    np.testing.assert_allclose(arrays["more"], [1.0])
    said = [line.partition("is left out: ")[2] for line in warnings_of(caplog)]
    assert said == [
        *["array 'b' is missing"] * 3,
        "array 'more' is not one of the 2 trainable",
    ]


def test_a_weight_that_was_sent_under_two_names_counts_once():
    """A gradient may name it twice, and naming it twice is no better than once."""
    weight = np.float32([[1, 2], [3, 4]])
    sent = {"a": weight, "tied": weight.copy(), "b": np.zeros(2, np.float32)}
    limits = Limits(trainable=("a", "b"))
    good = {"loss": 1.0, "num-examples": 1}
    limits.check(sent, good, sent, LossMoments())
    with pytest.raises(ValueError, match="array 'b' is not one of the 1 trainable"):
        Limits(trainable=("a",)).check(sent, good, sent, LossMoments())


@pytest.mark.parametrize(
    ("bounds", "line"),
    [
        ({"loss_range": (1.0, 0.0)}, "loss_range = (1.0, 0.0): must be two numbers, the least"),
        ({"loss_range": 3.0}, "loss_range = 3.0: must be two numbers, the least loss and the"),
        ({"loss_range": ("a", "b")}, "loss_range = ('a', 'b'): must be two numbers"),
        ({"loss_range": (math.nan, 1)}, "loss_range = (nan, 1): must be two numbers"),
        ({"most_samples": 0}, "most_samples = 0: must be at least 1"),
        ({"largest_update": 0.5}, "largest_update = 0.5: must be at least 1"),
        ({"most_bytes": -1}, "most_bytes = -1: must be at least 1"),
    ],
)
def test_bounds_are_checked(bounds, line):
    with pytest.raises(SettingsError) as caught:
        Bounds(**bounds)
    assert str(caught.value).startswith(line)


def test_bounds_are_in_checkpoints_only_where_they_are_set():
    """A range of losses never is: it leaves out what is no loss."""
    assert FedAvg(bounds=LOSSES).options() == FedAvg().options()
    assert "bounds" not in FedAvg().options()
    other = FedAvg(bounds=Bounds(largest_update=3), min_available_nodes=3)
    assert other.options() == FedAvg().options() | {
        "bounds": {"largest_update": 3.0},
        "min_available_nodes": 3,
    }
    both = Schedule([(Cyclic(), 1), (other, 1)])
    assert "bounds" not in both.options()
    assert both.options()["min_available_nodes"] == 1
    assert Schedule([(other, 1), (Cyclic(), 1)]).options()["min_available_nodes"] == 3


def test_phases_have_a_range_of_losses_where_each_has():
    assert Schedule([(Cyclic(bounds=LOSSES), 1), (FedAvg(bounds=LOSSES), 1)]).bounds == LOSSES
    assert Schedule([(Cyclic(bounds=LOSSES), 1), (MOON(), 1)]).bounds == Bounds()


def test_limits_travel():
    limits = Limits((0.0, math.inf), 7, 9, ("h",), ("counts",), ("a", "b"))
    assert Limits.parse(str(limits)) == limits
    assert str(Limits()) == ""
    assert Limits.parse("") == Limits()
    assert FedPCL.loss_of == "more"


@pytest.mark.parametrize(("clients", "questions"), [(4, 0), (None, 4)])
def test_the_strategy_says_who_hosts_whom(clients, questions):
    """With a number no node is asked; else each speaks for itself, whatever the others say."""

    def lie(node, message_type, reply):
        own = {4: {"own": [7 + node]}, 5: {"clients": 9}}.get(node)
        return {"roster": ConfigRecord(own)} if "roster" in message_type and own else None

    found = Lying(client_app(lambda c, i: Good(i, lambda *_: None)), 4, lie)
    strategy = FedAvg(clients=clients, min_available_nodes=3, evaluate_every=0)
    seen = record_samples(strategy)
    result = strategy.start(found, to_record(START), 1)
    np.testing.assert_array_equal(from_record(result.arrays)["w"], [1, 1])
    assert found.asked == questions
    assert seen == [[0, 1, 2, 3] if clients else [0, 1, 11]]


@pytest.mark.parametrize("clients", [0, -3, 10**18, True, 2.5, "", {}])
def test_clients_that_cannot_be_are_refused(clients):
    with pytest.raises(SettingsError, match="clients"):
        FedAvg(clients=clients)


class Counted(Metadata):
    """A message's metadata that count how often the ids of all are looked at."""

    looks = 0

    @property
    def message_id(self):
        Counted.looks += 1
        return super().message_id


class Single(NumPyClient):
    def fit(self, parameters, config):
        return [parameters[0] + 1], 1, {}


def test_time_per_node_is_constant(monkeypatch):
    """500 nodes: every reply was looked for among all messages, 125,000 looks."""
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
    """A list that is not searched."""

    def index(self, *_):
        raise AssertionError("the list was searched")


def test_time_per_hosted_client_is_constant():
    clients = NoIndex(range(1000))
    sent = {"w": np.zeros(1, np.float32)}
    config = {"state-version": ["1-0"] * 1000, "state-kept": [""] * 1000}
    reply = run_all(lambda i, c: Single(), clients, "fit", sent, config, Mean(), Limits())
    assert len(reply.metrics) == 1000
    assert reply.failed == {}
