"""A folder of results from somebody else: commands that show results run no code from it."""

import json
import subprocess
import sys

import pytest

from coprefl_flwr.cli import main
from coprefl_flwr.studies.store import read_result, write_result
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


FITTING, PARTITIONED, METHOD = "fitting", "partitioned", "method"
RECIPES = {
    FITTING: (["fedavg"], ["accuracy", "parts.py:errors"], "iid"),
    PARTITIONED: (["fedavg"], ["accuracy", "parts.py:errors"], "parts.py:slices"),
    METHOD: ([{"mine": {"method": "parts.py:Mine"}}], ["accuracy"], "iid"),
}
"""{name of the folder: (methods, metrics, partition)} of recipes with parts by their author."""


@pytest.fixture(scope="module")
def run(tiny_images, tmp_path_factory):
    """Run each recipe; return the folder that contains the recipes' folders."""
    root = tmp_path_factory.mktemp("strangers")
    for name, (methods, metrics, partition) in RECIPES.items():
        folder = root / name
        folder.mkdir()
        (folder / "parts.py").write_text(PARTS)
        settings = {"model": "parts.py:network", "partition": partition, "tasks": 1}
        keys = {"methods": methods, "metrics": metrics, "figures": ["landscape"]}
        content = tiny_recipe(tiny_images, settings, reference=None, **keys)
        recipe = write_recipe(folder / "recipe.yaml", content)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MARKS", str(folder / "mark"))
            assert main(["run", str(recipe), "--out", str(folder / "outputs" / "out")]) == 0
        (folder / "mark").unlink()
    return root


PROGRAM = """
import json, os, sys
from coprefl_flwr.cli import main
for name, commands in json.loads(sys.argv[1]):
    os.environ["MARKS"] = os.path.join(name, "mark")
    for stream in (sys.stdout, sys.stderr):
        print("=====", file=stream, flush=True)
    for status, command in commands:
        assert main(command) == status, command
"""


@pytest.fixture(scope="module")
def shown(run):
    """Run the commands that show results; return {recipe: (output, warnings, earlier files)}.

    The commands run in a new process, which has not imported the recipes' parts yet.
    """
    commands, before = {}, {}
    for name in RECIPES:
        out, models = (str(run / name / "outputs" / folder) for folder in ("out", "models"))
        before[name] = files(run / name / "outputs" / "out")
        commands[name] = [(0, ["list", str(run / name / "outputs")])]
        if name != METHOD:
            commands[name].append((0, ["show", "fedavg", "--models", models]))
        commands[name].append((int(name == METHOD), ["report", out]))
    calls = json.dumps([(str(run / name), each) for name, each in commands.items()])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, calls],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outputs, warned = (stream.split("=====\n")[1:] for stream in (done.stdout, done.stderr))
    return {
        name: (*each, before[name]) for name, *each in zip(RECIPES, outputs, warned, strict=True)
    }


@pytest.mark.parametrize("name", [FITTING, PARTITIONED])
def test_list_show_and_report_run_no_code_of_a_recipe(name, run, shown):
    """The code is a network, a partition and a metric; the results contain their output."""
    output, warned, before = shown[name]
    assert not [*run.rglob("mark")]
    assert "A tiny comparison" in output
    assert "Errors" in output
    left_out = "the cost of starts is left out: "
    if name == FITTING:
        assert files(run / name / "outputs" / "out") == before
        assert left_out not in warned
    else:
        assert f"{left_out}{run / name}/parts.py:slices: `coprefl report` runs no code" in warned


def test_a_report_that_needs_code_of_a_recipe_is_refused(run, shown):
    """The report needs the recipe's method, because the method defines the options and phases."""
    output, warned, before = shown[METHOD]
    assert not [*run.rglob("mark")]
    assert "A tiny comparison" in output
    assert len(warned.splitlines()) == 1
    assert (
        "parts.py:Mine: `coprefl report` runs no code that a recipe names; use `coprefl run`"
        in warned
    )
    assert files(run / METHOD / "outputs" / "out") == before


ESCAPES = "\x1b]0;title\x07\x1b[2J\u202e\r"
"""Control characters: they change a terminal's title, clear it and reverse the text direction."""


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
    printed = capfd.readouterr()
    for text in (printed.out, printed.err, caplog.text):
        assert "\\x1b]0;title\\x07\\x1b[2J\\u202e\\r" in text
        assert [c for c in text if c != "\n" and not c.isprintable()] == []
