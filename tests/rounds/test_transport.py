"""The link to the nodes."""

import pytest

from coprefl_flwr.rounds.transport import PULL_INTERVAL, Transport


class SleepingGrid:
    """A grid that sleeps between its looks for replies, as the one of a simulation does."""

    def __init__(self, pull_interval):
        self.pull_interval = pull_interval


class PlainGrid:
    """A grid that says nothing of how it waits."""


@pytest.mark.parametrize(("before", "after"), [(0.1, PULL_INTERVAL), (0.001, 0.001)])
def test_a_simulations_grid_sleeps_no_longer_than_needed(before, after):
    grid = SleepingGrid(before)
    Transport(grid, timeout=1.0, min_nodes=1, min_replies=1, population="train")
    assert grid.pull_interval == after


def test_a_grid_without_the_choice_is_left_alone():
    grid = PlainGrid()
    Transport(grid, timeout=1.0, min_nodes=1, min_replies=1, population="train")
    assert not hasattr(grid, "pull_interval")
