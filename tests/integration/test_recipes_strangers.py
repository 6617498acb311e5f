"""A folder of results that came from somebody else: to show it runs none of its code."""

import json
import subprocess
import sys

import pytest

from coprefl_flwr.recipes.command_line import main
from coprefl_flwr.studies.kept import read_result, write_result
from tests.common.checks import files
from tests.common.recipes import tiny_recipe, write_recipe
from tests.common.simulation import ROOT

PARTS = """\
import os
import pathlib

import numpy as np

from coprefl_flwr.strategies import FedAvg
from tests.common.networks import network

pathlib.Path(os.environ["MARKS"]).write_text("run")


def slices(labels, clients, rng):
    return np.array_split(np.argsort(labels, kind="stable"), clients)


def errors(logits, labels):
    return float((logits.argmax(dim=1) != labels).sum())


errors.title = "Errors"
errors.better = "lower"


class Mine(FedAvg):
    name = ""
"""


@pytest.fixture
def folder(tiny_images, tmp_path, monkeypatch):
    """Return a function that runs a recipe with parts of its author's, and gives their place."""
    (tmp_path / "parts.py").write_text(PARTS)
    monkeypatch.setenv("MARKS", str(tmp_path / "mark"))

    def run(methods, metrics=("accuracy",), partition="iid"):
        settings = {"model": "parts.py:network", "partition": partition, "tasks": 1}
        keys = {"methods": methods, "metrics": list(metrics), "figures": ["landscape"]}
        content = tiny_recipe(tiny_images, settings, reference=None, **keys)
        recipe = write_recipe(tmp_path / "recipe.yaml", content)
        assert main(["run", str(recipe), "--out", str(tmp_path / "outputs" / "out")]) == 0
        (tmp_path / "mark").unlink()
        return tmp_path

    return run


def shown(folder, *commands):
    """Run commands in a new process, which has not read the parts yet; return what it says."""
    program = "import sys; from coprefl_flwr.recipes.command_line import main\n"
    program += "".join(f"assert main({command!r}) == {status}\n" for status, command in commands)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "mark").exists()
    return done


@pytest.mark.parametrize("partition", ["iid", "parts.py:slices"])
def test_list_show_and_report_run_no_code_of_a_recipe(partition, folder):
    """A network, a partition and a metric; what these gave is in the results."""
    there = folder(["fedavg"], ["accuracy", "parts.py:errors"], partition)
    out, models = (str(there / "outputs" / name) for name in ("out", "models"))
    before = files(there / "outputs" / "out")
    commands = [["list", str(there / "outputs")], ["show", "fedavg", "--models", models]]
    said = shown(there, *((0, one) for one in [*commands, ["report", out]]))
    assert "A tiny comparison" in said.stdout
    assert "Errors" in said.stdout
    left_out = "what starts cost is left out: "
    if partition == "iid":
        assert files(there / "outputs" / "out") == before
        assert left_out not in said.stderr
    else:
        assert f"{left_out}{there}/parts.py:slices: `coprefl report` runs no code" in said.stderr


def test_a_report_that_needs_code_of_a_recipe_is_refused(folder):
    """Its method says which options and which phases there are."""
    there = folder([{"mine": {"method": "parts.py:Mine"}}])
    out = there / "outputs" / "out"
    before = files(out)
    assert "A tiny comparison" in shown(there, (0, ["list", str(there / "outputs")])).stdout
    said = shown(there, (1, ["report", str(out)])).stderr
    assert len(said.splitlines()) == 1
    assert "parts.py:Mine: `coprefl report` runs no code that a recipe names; `coprefl run`" in said
    assert files(out) == before


ESCAPES = "\x1b]0;title\x07\x1b[2J\u202e\r"
"""It changes a terminal's title, clears it and turns the direction of what follows."""


def test_no_text_of_a_stranger_reaches_the_terminal_as_it_is(tiny_images, tmp_path, capfd, caplog):
    folder, label = tmp_path / f"out{ESCAPES}", f"fed{ESCAPES}avg"
    keys = {"title": f"A title{ESCAPES}", "methods": [{label: {"method": "fedavg"}}]}
    keys |= {"reference": None, "metrics": ["models"]}
    recipe = write_recipe(tmp_path / "recipe.yaml", tiny_recipe(tiny_images, {"tasks": 0}, **keys))
    assert main(["run", str(recipe), "--out", str(folder)]) == 0
    (run,) = (tmp_path / "models").glob("fedavg-*")
    result = read_result(run)
    about = json.loads((run / "model.json").read_text())
    about["settings"]["method"] += ESCAPES
    about["phases"][0]["method"] += ESCAPES
    (run / "model.json").write_text(json.dumps(about))
    result["rounds"][-1][f"loss{ESCAPES}"] = 1.0
    write_result(run, result["rows"], result["rounds"])
    assert main(["list", str(tmp_path)]) == 0
    assert main(["show", run.name, "--models", str(tmp_path / "models")]) == 0
    assert main(["report", str(folder)]) == 0
    (run / "result.json").write_text("damaged")
    assert main(["report", str(folder)]) == 0
    assert main(["report", f"{tmp_path}/{ESCAPES}"]) == 1
    said = capfd.readouterr()
    for text in (said.out, said.err, caplog.text):
        assert "\\x1b]0;title\\x07\\x1b[2J\\u202e\\r" in text
        assert [c for c in text if c != "\n" and not c.isprintable()] == []
