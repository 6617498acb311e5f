"""A user's app: FedAvg before, CoPreFL after the diff, which a page shows."""

import logging
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn

import coprefl_flwr as cp
from coprefl_flwr.grids import LocalGrid
from tests.common.simulation import ROOT, simulate

EXAMPLES = ROOT / "examples"
HOW_TO = EXAMPLES.parent / "docs" / "how-to"
EVALUATED = r"Aggregated MetricRecord: \{'eval_(?:loss|acc)': [\d.]+, 'eval_(?:loss|acc)': [\d.]+\}"


class Counting(LocalGrid):
    """Counts the messages of each type."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.sent = Counter()

    def _handle(self, message):
        self.sent[message.metadata.message_type] += 1
        return super()._handle(message)


def run_app(folder, monkeypatch, **config):
    """Run the app in `folder` on four nodes and return its model and the messages it sent."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "own_app"]:
        monkeypatch.delitem(sys.modules, name)
    from own_app.client_app import app as client_app
    from own_app.server_app import app as server_app

    with (folder / "pyproject.toml").open("rb") as file:
        config = tomllib.load(file)["tool"]["flwr"]["app"]["config"] | config
    grid = Counting(client_app, nodes=4, run_config=config)
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    return torch.load(folder / "final_model.pt"), grid.sent


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the app, which a test may change."""
    return Path(shutil.copytree(EXAMPLES / "own-app", tmp_path / "own-app"))


def accuracy_per_node(folder, state):
    from own_app.task import Net, load_data

    model = Net()
    model.load_state_dict(state)
    found = []
    for node in range(4):
        batch = next(iter(load_data(node, 4, 50)[-1]))
        found.append(float((model(batch["img"]).argmax(1) == batch["label"]).float().mean()))
    return np.array(found)


def test_diff_applies_and_both_apps_learn(copy, monkeypatch, caplog):
    """Both apps train the four nodes in each of five rounds, and evaluate on half of them."""
    caplog.set_level(logging.INFO, "flwr")
    before, sent = run_app(copy, monkeypatch)
    assert sent == {"train": 20, "evaluate": 10}
    assert len(re.findall(EVALUATED, caplog.text)) == 5
    caplog.clear()
    diff = EXAMPLES / "own_app.diff"
    subprocess.run(["git", "apply", "-p1", diff], cwd=copy, check=True)
    after, sent = run_app(copy, monkeypatch)
    assert sent == {"query.roster": 4, "train": 20, "train.query": 20, "evaluate": 10}
    assert len(re.findall(EVALUATED, caplog.text)) == 5
    assert accuracy_per_node(copy, before).mean() > 0.4
    assert accuracy_per_node(copy, after).mean() > 0.4
    assert any(not torch.equal(before[name], after[name]) for name in before)


CARDS_LINES = """
from safetensors.torch import load_file
model = Net()
model.load_state_dict(load_file("START/model.safetensors"))
print("the start's sum is", model.layers[0].weight.double().sum().item())
"""


def with_start(copy):
    """Make an app begin with a start, by the lines of its card; return the sum of weights."""
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))
    start = nn.Module()
    start.layers = layers
    folder = cp.save_start(start, copy / "start")
    server = copy / "own_app" / "server_app.py"
    text = server.read_text().replace("Net().state_dict()", "model.state_dict()")
    text = text.replace("app = ServerApp()", CARDS_LINES + "app = ServerApp()")
    server.write_text(text.replace("START", str(folder)))
    assert "coprefl" not in "".join(path.read_text() for path in (copy / "own_app").glob("*.py"))
    return layers[0].weight.double().sum().item()


def test_app_without_this_package_begins_with_a_start(copy, monkeypatch, capfd):
    expected = with_start(copy)
    run_app(copy, monkeypatch, **{"num-server-rounds": 1})
    assert f"the start's sum is {expected}" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.ray
def test_flwr_run_of_an_app_that_begins_with_a_start(copy, tmp_path):
    expected = with_start(copy)
    done = simulate(copy, tmp_path, {"num-server-rounds": 1})
    assert f"the start's sum is {expected}" in done.stdout


def changed_lines(diff):
    """Return the lines that a diff adds and removes in each file of an app's package."""
    found, file = {}, ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line.rpartition("/")[2]
        elif line[:1] in "+-" and not line.startswith("--- "):
            found.setdefault(file, []).append(line)
    return {name: lines for name, lines in found.items() if name != "pyproject.toml"}


def test_how_to_page_shows_the_diff_of_the_quickstart():
    """Flower's quickstart is not in this repository; the diff has the same lines as the app's."""
    quickstart = (EXAMPLES / "quickstart_pytorch.diff").read_text()
    assert f"```diff\n{quickstart}```" in (HOW_TO / "flower-app.md").read_text()
    lines = changed_lines((EXAMPLES / "own_app.diff").read_text())
    assert changed_lines(quickstart) == lines
    assert len(lines["client_app.py"]) > 20
