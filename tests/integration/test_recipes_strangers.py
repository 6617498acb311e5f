"""A folder of results from somebody else: commands that show results run no code from it."""

import json
import subprocess
import sys

import pytest

from coprefl_flwr.cli import main
from tests.common.checks import files
from tests.common.recipes import tiny_recipe, write_recipe
from tests.common.simulation import ROOT

PARTS = """\
import os
import pathlib

import numpy as np

from coprefl_flwr.strategies import FedAvg
from tests.common.networks import network

pathlib.Path(os.environ["MARK"]).write_text("run")


def slices(labels, clients, rng):
    return np.array_split(np.argsort(labels, kind="stable"), clients)


def errors(logits, labels):
    return float((logits.argmax(dim=1) != labels).sum())


errors.title = "Errors"
errors.better = "lower"


class Mine(FedAvg):
    name = ""
"""
RUNS_NO_CODE = "`coprefl report` runs no code"
RECIPES = {
    "partition": (
        ["fedavg"],
        ["accuracy", "parts.py:errors"],
        "parts.py:slices",
        f"the cost of starts is left out: {{folder}}/parts.py:slices: {RUNS_NO_CODE}",
    ),
    "method": (
        [{"mine": {"method": "parts.py:Mine"}}],
        ["accuracy"],
        "iid",
        f"parts.py:Mine: {RUNS_NO_CODE} that a recipe names; use `coprefl run`",
    ),
}
"""{what its author wrote: (methods, metrics, partition, what `coprefl report` prints)}."""

PROGRAM = """
import json, sys
from coprefl_flwr.cli import main
for status, command in json.loads(sys.argv[1]):
    assert main(command) == status, command
"""


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=() if part == "method" else pytest.mark.slow) for part in RECIPES],
)
def test_list_show_and_report_run_no_code_of_a_recipe(part, tiny_images, tmp_path, monkeypatch):
    """The code is a network with a partition and a metric, or with a method.

    A report is refused only if it needs the method, which defines the options and phases.
    """
    methods, metrics, partition, line = RECIPES[part]
    mark, outputs = tmp_path / "mark", tmp_path / "outputs"
    monkeypatch.setenv("MARK", str(mark))
    (tmp_path / "parts.py").write_text(PARTS)
    settings = {"model": "parts.py:network", "partition": partition, "tasks": 1}
    keys = {"methods": methods, "metrics": metrics, "figures": ["landscape"]}
    content = tiny_recipe(tiny_images, settings, reference=None, **keys)
    recipe = write_recipe(tmp_path / "recipe.yaml", content)
    assert main(["run", str(recipe), "--out", str(outputs / "out")]) == 0
    mark.unlink()
    before, refused = files(outputs / "out"), part == "method"
    commands = [(0, ["list", str(outputs)]), (int(refused), ["report", str(outputs / "out")])]
    if not refused:
        commands.append((0, ["show", "fedavg", "--models", str(outputs / "models")]))
    # A new process has not imported the recipe's parts.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not mark.exists()
    assert "A tiny comparison" in done.stdout
    assert ("Errors" in done.stdout) != refused
    assert line.format(folder=tmp_path) in done.stderr
    assert (files(outputs / "out") == before) == refused
