"""The result of a stage on disk."""

import json
import math
from dataclasses import replace

import pytest

from coprefl_flwr.client_app import app
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.report.frames import frame
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.store import RESULT, read_result, write_result

OWN = """\
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.strategies import FedAvg


class Naming(TorchClient):
    def fit(self, parameters, config):
        arrays, samples, metrics = super().fit(parameters, config)
        return arrays, samples, {**metrics, "NAME": 7.0}


class Mine(FedAvg):
    name = ""
    client = Naming
"""


@pytest.mark.parametrize("name", ["round", "start"])
def test_metric_with_the_name_of_a_column_is_refused(name, tiny_settings, tmp_path, caplog):
    """In an earlier version the metric replaced the column.

    The study then failed after all its rounds were done.
    """
    (tmp_path / "own.py").write_text(OWN.replace("NAME", name))
    settings = replace(tiny_settings, method=f"{tmp_path / 'own.py'}:Mine", tasks=0)
    with pytest.raises(RunFailedError, match=r"^round 1: "):
        run_study(LocalGrid(app, 1, settings.to_config()), build(settings))
    line = f"is left out: metric '{name}' has a reserved name; choose another name"
    assert any(message.endswith(line) for message in caplog.messages)


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
