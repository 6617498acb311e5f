"""The result of a stage on disk."""

import json
import math
from types import SimpleNamespace

import numpy as np

from coprefl_flwr.federation.checkpoint import History
from coprefl_flwr.report.frames import frame
from coprefl_flwr.strategies import Replies
from coprefl_flwr.studies.stage import TrainingStage, client_rows, round_rows
from coprefl_flwr.studies.store import RESULT, read_result, write_result


def test_non_finite_numbers_are_null_in_json(tmp_path):
    """JSON readers in other languages refuse NaN.

    A value that the server measures may be NaN.
    """
    rows = [{"start": "a", "client": 0, "loss": 0.5}]
    rounds = [
        {"round": 1, "server-loss": math.nan, "loss": math.inf, "accuracy": None},
        {"round": 2, "server-loss": -2.0, "loss": 1.0, "accuracy": 50.0},
    ]
    write_result(tmp_path, rows, rounds)

    def refuse(name):
        raise AssertionError(name)

    content = json.loads((tmp_path / RESULT).read_text(), parse_constant=refuse)
    assert content["rounds"] == [{**rounds[0], "server-loss": None, "loss": None}, rounds[1]]
    assert content == read_result(tmp_path)
    assert content["rows"] == rows
    assert frame(content["rounds"])["server-loss"].isna().tolist() == [True, False]


def evaluation(**metrics):
    """Return the replies of two clients."""
    values = {name: np.array(of, dtype=np.float64) for name, of in metrics.items()}
    return Replies((0, 1), {"num-examples": np.array([10.0, 20.0]), **values})


class Tiny:
    """What rows need to know about a stage."""

    title, phase, start, task = "a task", "downstream", "a", 1
    has_client_rows, warmup_rounds = True, 0

    def domains(self):
        """Return no domains."""
        return ["", ""]


def test_rows_of_clients_without_classes_have_no_hits():
    replies = evaluation(loss=[0.5, 0.25], **{"metric:mae": [1.0, math.nan]})
    about = {"start": "a", "task": 1}
    assert client_rows(Tiny(), replies) == [
        {**about, "client": 0, "n": 10, "loss": 0.5, "metric:mae": 1.0},
        {**about, "client": 1, "n": 20, "loss": 0.25},
    ]
    with_hits = client_rows(Tiny(), evaluation(correct=[4, 7], loss=[0.5, 0.25]))
    assert list(with_hits[0]) == ["start", "task", "client", "n", "correct", "loss"]


def finished(tmp_path, *replies):
    """Return the rows of the rounds of a stage with these evaluations (None: no evaluation)."""
    history = History()
    for at, of_round in enumerate(replies, 1):
        history.train[at], history.evaluate[at] = {"loss": 2.0}, {}
        report = SimpleNamespace(
            evaluation=of_round, history=history, round=at, seconds=0.1, num_rounds=9
        )
        TrainingStage._finish(Tiny(), tmp_path, [], report)
    return round_rows(Tiny(), history, {})


def test_rounds_without_classes_have_means_of_all_measures_over_clients(tmp_path):
    """The mean over clients, whatever their number of samples: (0.5 + 0.25) / 2."""
    replies = evaluation(loss=[0.5, 0.25], **{"metric:mae": [1.0, math.nan]})
    (row,) = finished(tmp_path, replies)
    assert "accuracy" not in row
    assert row["evaluate-client-loss"] == 0.375
    assert row["evaluate-client-metric:mae"] == 1.0
    rows = finished(tmp_path, None, evaluation(correct=[5, 20], loss=[0.5, 0.25]))
    assert [row["accuracy"] for row in rows] == [None, 75.0]
    assert "evaluate-client-loss" not in rows[1]
