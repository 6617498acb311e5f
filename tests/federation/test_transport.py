"""The link between the server and the nodes."""

import time
from types import SimpleNamespace

import pytest
from flwr.superlink.grid import http_grid

from coprefl_flwr.federation.flower import send_and_receive
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


class HttpGrid:
    """A grid of a deployment, whose nodes reply after some seconds, by the id of the message."""

    __module__ = http_grid.__name__

    def __init__(self, monkeypatch, **seconds):
        self.now, self.polls, self.seconds = 0.0, [], seconds
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.now += seconds

    def push_messages(self, messages):
        return messages

    def pull_messages(self, ids):
        self.polls.append(self.now)
        return [
            SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=name))
            for name in ids
            if self.seconds[name] <= self.now
        ]


def test_grid_of_a_deployment_waits_a_tenth_of_the_time_that_it_has_waited(monkeypatch):
    grid = HttpGrid(monkeypatch, first=0.2, second=10, third=300, late=2000)
    replies = send_and_receive(grid, ["first", "second", "third"], 1000)
    assert [r.metadata.reply_to_message_id for r in replies] == ["first", "second", "third"]
    waits = [after - before for before, after in zip([0, *grid.polls], grid.polls, strict=False)]
    assert waits[0] == 0.05
    assert max(waits) == pytest.approx(3)
    assert 300 <= grid.now <= 303
    assert sum(poll < 10 for poll in grid.polls) < 50
    grid.now = 0.0
    assert send_and_receive(grid, ["late"], 60) == []
    assert 60 <= grid.now <= 63


def test_reply_that_is_on_its_way_is_asked_for_again_soon(monkeypatch):
    kept = http_grid.pull_objects.__kwdefaults__
    monkeypatch.setattr(http_grid.pull_objects, "__kwdefaults__", dict(kept))
    send_and_receive(HttpGrid(monkeypatch, first=0), ["first"], 1)
    assert http_grid.pull_objects.__kwdefaults__ == kept | {"initial_backoff": 0.05}
