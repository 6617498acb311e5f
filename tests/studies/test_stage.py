"""A stage's result on disk."""

import json
import math

from coprefl_flwr.report.results import frame
from coprefl_flwr.studies.stage import RESULT, read_result, write_result


def test_numbers_that_are_not_finite_are_null(tmp_path):
    """Others than Python's reader refuse NaN in JSON; what a server measures may be that."""
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
