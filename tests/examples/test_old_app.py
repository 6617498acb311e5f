"""An app in Flower's old style: FedAvg before, CoPreFL after the diff, and error messages."""

import logging
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict

from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.grids import LocalGrid
from tests.common.simulation import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the app, which a test may change."""
    return Path(shutil.copytree(EXAMPLES / "old-app", tmp_path / "old-app"))


def apply_diff(copy):
    diff = EXAMPLES / "old_app.diff"
    subprocess.run(["git", "apply", "-p1", diff], cwd=copy, check=True)


def run_app(folder, monkeypatch):
    """Run the app in `folder` for two rounds on four nodes."""
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "old_app"]:
        monkeypatch.delitem(sys.modules, name)
    from old_app.client_app import app as client_app
    from old_app.server_app import app as server_app

    with (folder / "pyproject.toml").open("rb") as file:
        config = tomllib.load(file)["tool"]["flwr"]["app"]["config"]
    config["num-server-rounds"] = 2
    grid = LocalGrid(client_app, nodes=4, run_config=config)
    grid.set_run(SimpleNamespace(run_id=1))  # Apps in the old style ask for the run.
    server_app(grid, Context(1, 1, {}, RecordDict(), config))


def test_diff_applies_and_both_apps_train_and_evaluate(copy, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "flwr")
    run_app(copy, monkeypatch)
    assert re.search(r"round 2: 0\.\d+", caplog.text)
    apply_diff(copy)
    caplog.clear()
    run_app(copy, monkeypatch)
    assert len(re.findall(r"MetricRecord: .*'query-loss': 0\.\d+", caplog.text)) == 2
    assert len(re.findall(r"MetricRecord: \{'accuracy': 0\.\d+, 'loss': ", caplog.text)) == 2


def test_strategy_in_an_unchanged_old_app_is_refused_with_the_remedy(copy, monkeypatch):
    """The error is not that CoPreFL has no attribute 'initialize_parameters'."""
    server = copy / "old_app" / "server_app.py"
    text = server.read_text()
    text = text.replace(
        "flwr.server.strategy import FedAvg", "coprefl_flwr.strategies import CoPreFL"
    )
    text = re.sub(r"FedAvg\(.*?\n    \)", "CoPreFL()", text, flags=re.DOTALL)
    assert "CoPreFL()" in text
    server.write_text(text)
    with pytest.raises(SettingsError) as refused:
        run_app(copy, monkeypatch)
    assert str(refused.value).startswith("CoPreFL cannot run in ServerApp(server_fn=...): ")
    assert "call its start()" in str(refused.value)


def test_old_clients_of_a_new_server_end_the_run(copy, monkeypatch):
    client = (copy / "old_app" / "client_app.py").read_text()
    apply_diff(copy)
    (copy / "old_app" / "client_app.py").write_text(client)
    with pytest.raises(RunFailedError, match=r"^round 1: .*KeyError: .fitins\.parameters"):
        run_app(copy, monkeypatch)
