"""`coprefl check-app`: what it says of an app, before the app is deployed."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

from coprefl_flwr.cli import main
from tests.common.simulation import ROOT

EXAMPLES = ROOT / "examples"
WEIGHTS = (
    "layers.0.weight (32, 2), layers.0.bias (32,), layers.2.weight (3, 32), layers.2.bias (3,)"
)


@pytest.fixture
def app(tmp_path):
    """Return the folder of an app of functions with CoPreFL, which a test may change."""
    folder = shutil.copytree(EXAMPLES / "own-app", tmp_path / "own-app")
    patch = (EXAMPLES / "own_app.diff").read_bytes()
    subprocess.run(["patch", "-s", "-p1", "-d", folder], input=patch, check=True)
    return folder


@pytest.fixture
def said(capsys, monkeypatch, tmp_path):
    """Return a function: the exit status and the lines of `check-app` with these arguments."""

    def run(*arguments):
        monkeypatch.setattr(sys, "path", sys.path[:])
        monkeypatch.chdir(tmp_path)
        for name in [n for n in sys.modules if n.split(".")[0] in ("own_app", "deployment_app")]:
            monkeypatch.delitem(sys.modules, name)
        status = main(["check-app", *map(str, arguments)])
        printed = capsys.readouterr()
        return status, (printed.out + printed.err).splitlines()

    return run


def change(app, old, new):
    path = app / "own_app" / "client_app.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_good_app_answers_both_exchanges(app, said):
    status, (train, query) = said(app)
    assert status == 0
    assert train.startswith(f"train: ok: {WEIGHTS}, train_loss ")
    assert train.endswith("num-examples 120")
    assert query.startswith("train.query: ok: num-examples 30, loss ")
    assert query.endswith(WEIGHTS)


def test_app_of_fedavg_sends_no_query(said):
    status, (train, query, why) = said(EXAMPLES / "own-app")
    assert status == 1
    assert train.startswith("train: ok: ")
    assert query == "train.query: not sent"
    assert why == "the server's log: the first round has ended"


def test_app_whose_clients_have_no_query(app, said):
    change(app, '@app.train("query")', "")
    status, lines = said(app)
    assert status == 1
    assert lines[1].startswith("train.query: failed: ")
    assert "No train function registered with name 'query'" in lines[1]


def test_bug_is_named_with_its_line(app, said):
    change(app, "return query_reply(msg, model, queryloader, loss)", "return query_rply(msg)")
    status, lines = said(app, "--nodes", 3)
    assert status == 1
    assert lines[0].startswith("train: ok: ")
    error = "NameError: name 'query_rply' is not defined (own_app/client_app.py:69)"
    assert lines[1] == f"train.query: failed: {error}"


def test_reply_that_the_server_refuses(app, said):
    change(app, "num-examples", "number")
    status, lines = said(app)
    assert status == 1
    assert lines[1] == "train.query: not sent"
    no_number = "no metric 'num-examples' in the reply"
    assert lines[2] == f"the server's log: client 0 on node 2 is left out: {no_number}"


def test_node_config_and_run_config_reach_the_app(tmp_path, said):
    path = tmp_path / "of node.npz"
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(20))
    app = shutil.copytree(EXAMPLES / "deployment", tmp_path / "app")
    config = app / "pyproject.toml"
    config.write_text(f"{config.read_text()}local.rate = 0.5\n")  # Arrives as "local.rate".
    _, (refused,) = said(app)
    assert "unknown setting 'local.rate'" in refused
    config.write_text(config.read_text().replace("local.rate = 0.5\n", ""))
    _, lines = said(app)
    assert "node-config has no data-path" in lines[0]
    status, lines = said(app, "--node-config", f"partition-id=7 data-path='{path}'")
    assert status == 0
    assert lines[1].startswith("train.query: ok: conv1.weight (32, 1, 3, 3)")
    # A deployment would continue after a checkpoint.
    assert list((tmp_path / "outputs").rglob("*.safetensors")) == []


def test_folder_without_an_app_is_refused_in_one_line(said):
    status, (line,) = said(EXAMPLES)
    assert status == 1
    assert line.startswith(f"coprefl: {EXAMPLES}: the app cannot be loaded: FileNotFoundError: ")
