"""The link between the server and the nodes."""

import pytest

from coprefl_flwr.federation.transport import PULL_INTERVAL, Transport
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
