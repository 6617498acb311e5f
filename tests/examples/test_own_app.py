"""A user's app: FedAvg before, CoPreFL after the diff, which a page shows."""

import ast
import inspect
import logging
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL
from tests.common.simulation import ROOT

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
    return Path(shutil.copytree(EXAMPLES / "own_app", tmp_path / "own_app"))


def accuracy_per_node(folder, state):
    from own_app.task import Net, load_data

    model = Net()
    model.load_state_dict(state)
    found = []
    for node in range(4):
        batch = next(iter(load_data(node)[1]))
        found.append(float((model(batch["img"]).argmax(1) == batch["label"]).float().mean()))
    return np.array(found)


def test_the_diff_applies_and_both_apps_learn(copy, monkeypatch, caplog):
    """Both apps train half of the four nodes in each of five rounds, and evaluate on all nodes."""
    caplog.set_level(logging.INFO, "flwr")
    before, sent = run_app(copy, monkeypatch)
    assert sent == {"train": 10, "evaluate": 20}
    assert len(re.findall(EVALUATED, caplog.text)) == 5
    caplog.clear()
    diff = EXAMPLES / "own_app.diff"
    subprocess.run(["git", "apply", "-p1", diff], cwd=copy, check=True)
    after, sent = run_app(copy, monkeypatch)
    assert sent == {"query.roster": 4, "train": 10, "train.query": 10, "evaluate": 20}
    assert len(re.findall(EVALUATED, caplog.text)) == 5
    assert accuracy_per_node(copy, before).mean() > 0.4
    assert accuracy_per_node(copy, after).mean() > 0.4
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_our_fedavg_in_the_unchanged_app_equals_flowers(copy, monkeypatch):
    task = copy / "own_app" / "task.py"
    task.write_text(task.read_text().replace("shuffle=True", "shuffle=False"))
    before, _ = run_app(copy, monkeypatch, **{"fraction-train": 1.0})
    server = copy / "own_app" / "server_app.py"
    text = server.read_text()
    text = text.replace("flwr.serverapp.strategy import", "coprefl_flwr.strategies import")
    assert "min_available_nodes=4" in text
    server.write_text(text.replace("min_available_nodes=4", "min_available_nodes=4"))
    after, _ = run_app(copy, monkeypatch, **{"fraction-train": 1.0})
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-6)


def test_a_page_shows_coprefls_round():
    """Line breaks may differ, because the page has at most 80 columns."""
    (source,) = ast.parse(textwrap.dedent(inspect.getsource(CoPreFL.round))).body
    del source.body[0]  # The docstring.
    page = (HOW_TO / "method.md").read_text()
    (shown,) = re.findall(r"^```python\n(def round.*?)^```$", page, flags=re.M | re.S)
    assert ast.unparse(ast.parse(shown)) == ast.unparse(source)


def test_a_page_shows_the_diff_and_the_readme_its_ten_lines():
    page = (HOW_TO / "flower-app.md").read_text()
    diff = (EXAMPLES / "own_app.diff").read_text()
    python = diff[: diff.index("--- a/pyproject.toml")]
    assert python in page
    readme = (ROOT / "README.md").read_text()
    shown = readme.partition('@app.train("query")')[2].partition("```")[0]
    added = [line[1:].split("#")[0].strip() for line in diff.splitlines() if line[:1] == "+"]
    for line in shown.strip().splitlines()[1:]:  # Without the signature: the diff's has types.
        assert line.split("#")[0].strip() in added
