"""A run that stops early, after some round, equals a run that was started with this last round.

`should_stop` has the form of Flower 1.43: it is called with (number of the round, result so far).
"""

import numpy as np

from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.federation.checkpoint import read_checkpoint
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL
from tests.common.checks import files
from tests.common.federation import Federation


def run(folder, rounds=6, resume=False, **more):
    """Run CoPreFL; return the final arrays, the result, and the reports that the hook received."""
    federation, seen = Federation.stochastic(), []
    strategy = CoPreFL(participants=2, seed=5, clients=4)
    grid = LocalGrid(federation.coprefl_app(), nodes=2)
    result = strategy.start(
        grid, to_record(federation.arrays()), rounds, checkpoint=folder / "checkpoint",
        resume=resume, hooks=[seen.append], **more,
    )  # fmt: skip
    return from_record(result.arrays), result, seen


def third(server_round, result):
    """Stop after round 3, by what a Flower `Result` has."""
    assert list(result.train_metrics_clientapp) == list(range(1, server_round + 1))
    assert list(from_record(result.arrays)) == list(Federation.stochastic().arrays())
    return server_round == 3


def test_stopped_run_has_the_bytes_of_a_run_with_as_many_rounds(tmp_path):
    (tmp_path / "stopped").mkdir()
    (tmp_path / "short").mkdir()
    stopped, result, seen = run(tmp_path / "stopped", should_stop=third)
    short, expected, _ = run(tmp_path / "short", rounds=3)
    for name, array in short.items():
        np.testing.assert_array_equal(stopped[name], array)
    assert [(one.round, one.num_rounds) for one in seen] == [(1, 6), (2, 6), (3, 3)]
    assert list(result.train_metrics_clientapp) == [1, 2, 3]
    assert str(result.train_metrics_clientapp) == str(expected.train_metrics_clientapp)
    assert files(tmp_path / "stopped") == files(tmp_path / "short")


def test_resumed_run_stops_in_the_same_round_and_runs_no_more(tmp_path):
    run(tmp_path, rounds=2)
    stopped, _, seen = run(tmp_path, resume=True, should_stop=third)
    assert [one.round for one in seen] == [3]
    again, _, seen = run(tmp_path, resume=True, should_stop=third)
    assert [(one.round, one.num_rounds) for one in seen] == [(3, 3)]
    for name, array in stopped.items():
        np.testing.assert_array_equal(again[name], array)
    assert read_checkpoint(tmp_path / "checkpoint").round == 3
