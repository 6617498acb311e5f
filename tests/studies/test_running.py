"""What is said before a run."""

import logging

import pytest

from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import say_caps
from coprefl_flwr.studies.settings import Settings

LINE = (
    "cyclic: at most max-local-steps = 20 steps of a client in a round, by its paper, not "
    "local-epochs = 7"
)


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"method": "cyclic fedavg", "local_epochs": 7}, [LINE]),
        ({"method": "cyclic:rounds=2+fedavg cyclic:rounds=3", "local_epochs": 7}, [LINE]),
        ({"method": "cyclic fedavg"}, []),
        ({"method": "cyclic", "local_steps": 30}, []),
        ({"method": "cyclic:local-epochs=7"}, []),
        ({"method": "cyclic", "local_epochs": 7, "max_local_steps": 40}, []),
        ({"method": "cyclic:max-local-steps=40", "local_epochs": 7}, []),
        ({"method": "fedavg coprefl", "local_epochs": 7}, []),
    ],
)
def test_a_cap_on_the_steps_of_all_is_said_once(settings, lines, caplog):
    stages = build(Settings(**settings)).stages
    with caplog.at_level(logging.INFO, "flwr.coprefl"):
        say_caps(stages)
    assert [record.getMessage() for record in caplog.records] == lines
