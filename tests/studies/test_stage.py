"""The result of a stage on disk."""

import json
import math

from coprefl_flwr.report.frames import frame
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
