"""A folder of results from somebody else: commands that show results run no code from it."""

import json
import subprocess
import sys

from coprefl_flwr.cli import main
from tests.common.checks import files
from tests.common.recipes import tiny_recipe, write_recipe
from tests.common.simulation import ROOT

PARTS = """\
import os
import pathlib

from coprefl_flwr.strategies import FedAvg
from tests.common.networks import network

pathlib.Path(os.environ["MARK"]).write_text("run")


class Mine(FedAvg):
    name = ""
"""
PROGRAM = """
import json, sys
from coprefl_flwr.cli import main
for status, command in json.loads(sys.argv[1]):
    assert main(command) == status, command
"""


def test_list_and_report_run_no_code_of_a_recipe(tiny_images, tmp_path, monkeypatch):
    """The code is a network and a method.

    The report is refused, because it needs the method, which defines the options and phases.
    """
    mark, outputs = tmp_path / "mark", tmp_path / "outputs"
    monkeypatch.setenv("MARK", str(mark))
    (tmp_path / "parts.py").write_text(PARTS)
    methods = [{"mine": {"method": "parts.py:Mine"}}]
    settings = {"model": "parts.py:network", "tasks": 1}
    content = tiny_recipe(tiny_images, settings, reference=None, methods=methods)
    recipe = write_recipe(tmp_path / "recipe.yaml", content)
    assert main(["run", str(recipe), "--out", str(outputs / "out")]) == 0
    mark.unlink()
    before = files(outputs / "out")
    commands = [(0, ["list", str(outputs)]), (1, ["report", str(outputs / "out")])]
    # A new process has not imported the recipe's parts.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not mark.exists()
    assert "A tiny comparison" in done.stdout
    assert "parts.py:Mine: `coprefl report` runs no code that a recipe names" in done.stderr
    assert files(outputs / "out") == before
