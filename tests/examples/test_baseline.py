"""The example in the form of a Flower Baseline: its files, its commands, and a short run."""

import io
import sys
import tomllib
import zipfile

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.settings import Settings
from tests.common.simulation import ROOT

BASELINE = ROOT / "examples" / "baseline"
TABLES = sorted((BASELINE / "conf").glob("*.toml"))

SMALLER = {
    **{"method": "fedavg coprefl", "rounds": 2, "participants": 3, "clients": 10},
    **{"tasks": 1, "task-rounds": 2, "task-clients": 3},
}
"""Settings for two rounds of the pre-training and of a task."""


@pytest.fixture
def app(monkeypatch):
    """Return the apps of server and clients, imported as Flower imports them."""
    monkeypatch.syspath_prepend(str(BASELINE))
    for name in [name for name in sys.modules if name.split(".")[0] == "coprefl"]:
        monkeypatch.delitem(sys.modules, name)
    from coprefl.client_app import app as client_app
    from coprefl.server_app import app as server_app

    return server_app, client_app


def config():
    """Return the baseline's run-config."""
    project, warnings = load_and_validate(BASELINE / "pyproject.toml")
    assert warnings == []
    return project["tool"]["flwr"]["app"]["config"]


def test_app_bundle_has_every_file_of_the_baseline():
    names = set(zipfile.ZipFile(io.BytesIO(build_fab_from_disk(BASELINE))).namelist())
    ours = {path.relative_to(BASELINE).as_posix() for path in BASELINE.rglob("*.py")}
    assert ours | {"README.md", "pyproject.toml"} < names
    assert {f"conf/{path.name}" for path in TABLES} < names


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_each_configuration_is_a_valid_study(table, monkeypatch):
    """Flower and our settings both refuse an unknown setting, and a setting of another type."""
    monkeypatch.syspath_prepend(str(BASELINE))
    usual, given = config(), tomllib.loads(table.read_text(encoding="utf-8"))
    assert {key: type(usual[key]) for key in given} == {key: type(given[key]) for key in given}
    study = build(Settings.from_config(usual | given | SMALLER | given).named())
    assert study.stages


def test_baseline_writes_a_report(app, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BASELINE))
    server_app, client_app = app
    run_config = config() | SMALLER | {"output-dir": str(tmp_path), "run-name": "small"}
    grid = LocalGrid(client_app, nodes=2, run_config=run_config)
    server_app(grid, Context(1, 1, {}, RecordDict(), run_config))
    assert (tmp_path / "small" / "report" / "report.html").is_file()
