"""The app of one's own: FedAvg before, CoPreFL after the diff that the README shows."""

import inspect
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run_app(folder, monkeypatch):
    """Run the app in `folder` on four nodes and return the model that it leaves."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "own_app"]:
        monkeypatch.delitem(sys.modules, name)
    from own_app.client_app import app as client_app
    from own_app.server_app import app as server_app

    config = {"num-rounds": 5, "learning-rate": 0.1}
    grid = LocalGrid(client_app, nodes=4, run_config=config)
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    return torch.load(folder / "model.pt")


@pytest.fixture
def copy(tmp_path):
    """A copy of the app, to change."""
    return Path(shutil.copytree(EXAMPLES / "own_app", tmp_path / "own_app"))


def accuracy_per_node(folder, state):
    from own_app.task import Net, load_data

    model = Net()
    model.load_state_dict(state)
    found = []
    for node in range(4):
        points, labels = next(iter(load_data(node)[1]))
        found.append(float((model(points).argmax(1) == labels).float().mean()))
    return np.array(found)


def test_the_diff_applies_and_both_apps_learn(copy, monkeypatch, capsys):
    before = run_app(copy, monkeypatch)
    diff = EXAMPLES / "own_app.diff"
    subprocess.run(["git", "apply", "-p1", diff], cwd=copy, check=True)
    after = run_app(copy, monkeypatch)
    assert accuracy_per_node(copy, before).mean() > 0.4
    assert accuracy_per_node(copy, after).mean() > 0.4
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_our_fedavg_in_the_unchanged_app_equals_flowers(copy, monkeypatch):
    before = run_app(copy, monkeypatch)
    server = copy / "own_app" / "server_app.py"
    text = server.read_text()
    text = text.replace("flwr.serverapp.strategy import", "coprefl_flwr.strategies import")
    old = "FedAvg(fraction_evaluate=0.0, min_train_nodes=4, min_available_nodes=4)"
    assert old in text
    server.write_text(text.replace(old, "FedAvg(min_nodes=4)"))
    after = run_app(copy, monkeypatch)
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-6)


def test_the_readme_shows_coprefls_round():
    source = textwrap.dedent(inspect.getsource(CoPreFL.round))
    lines = [line for line in source.splitlines() if not line.strip().startswith(("#", '"""'))]
    assert "\n".join(lines) in (EXAMPLES.parent / "README.md").read_text()


def test_the_readme_shows_the_diff():
    readme = (EXAMPLES.parent / "README.md").read_text()
    diff = (EXAMPLES / "own_app.diff").read_text()
    python = diff[: diff.index("--- a/pyproject.toml")]
    assert python in readme
