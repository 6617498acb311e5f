"""The bounds and the number of clients that a user sets."""

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import Bounds
from coprefl_flwr.strategies import Cyclic, FedAvg, Schedule
from tests.common.by_hand import record_samples
from tests.common.checks import warnings_of
from tests.common.replies import START, Good, Lying, grid, of, of_kind

LOSSES = Bounds(loss_range=(0.0, math.inf))


@pytest.mark.parametrize("kind", ["one", "own"])
def test_client_whose_loss_is_out_of_range_is_left_out(kind, caplog):
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


def test_bounds_are_options_of_checkpoints_and_schedules_only_if_they_are_set():
    assert "bounds" not in FedAvg().options()
    other = FedAvg(bounds=LOSSES, min_available_nodes=3)
    bounds = {"loss_range": (0.0, math.inf), "most_samples": 10**9}
    bounds |= {"clients_per_node": None, "positive": (), "buffers": ()}
    assert other.options() == FedAvg().options() | {"bounds": bounds, "min_available_nodes": 3}
    schedule = Schedule([(Cyclic(bounds=LOSSES, min_available_nodes=3), 1), (FedAvg(), 1)])
    assert (schedule.bounds, schedule.options()["min_available_nodes"]) == (LOSSES, 3)


@pytest.mark.parametrize(("clients", "questions"), [(4, 0), (None, 4)])
def test_nodes_are_asked_for_their_clients_only_without_a_number_of_clients(clients, questions):
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


@pytest.mark.parametrize("clients", [0, True, 2.5, {}])
def test_wrong_number_of_clients_is_refused(clients):
    with pytest.raises(SettingsError, match="clients"):
        FedAvg(clients=clients)
