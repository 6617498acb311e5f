"""The link between the server and the nodes."""

import logging

import numpy as np
import pytest

from coprefl_flwr.clients import client_app
from coprefl_flwr.federation.client_state import Versions
from coprefl_flwr.federation.exchange import Exchange
from coprefl_flwr.federation.transport import PULL_INTERVAL, Transport
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import FedAvg


class SleepingGrid:
    """A grid that sleeps between its checks for replies, like the grid of a simulation."""

    def __init__(self, pull_interval):
        self.pull_interval = pull_interval


@pytest.mark.parametrize(("before", "after"), [(0.1, PULL_INTERVAL), (0.001, 0.001)])
def test_grid_of_a_simulation_polls_often_enough(before, after):
    grid = SleepingGrid(before)
    Transport(grid, FedAvg(), 1.0)
    assert grid.pull_interval == after


def test_disconnected_node_has_few_log_lines(caplog):
    """Before, a node with 100 clients that disconnected caused a log line for each client."""
    app = client_app(lambda context, client_id: None, clients=lambda *_: [0])
    link = Transport(LocalGrid(app), FedAvg(), 1.0)
    link.roster.hear(2, [0])
    link.roster.hear(3, list(range(1, 101)))
    link.roster.settle([2, 3])
    exchange = Exchange("train", {"w": np.zeros(1)}, range(101))
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        link.prepare(exchange, {}, Versions())
        link.new_round()
        link.prepare(exchange, {}, Versions())
    lines = [record.getMessage() for record in caplog.records]
    shown = [f"client {client} is left out: its node has disconnected" for client in range(1, 21)]
    assert lines == [*shown, "lost nodes: 80 more such lines in this round", *shown]
