"""The recipe with Flower's strategies: it is run, killed, resumed and reported."""

import re

import pytest
import yaml

from coprefl_flwr.cli import main
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.search import check_runs
from tests.common.checks import Killed, files
from tests.common.recipes import Witness, run, tiny_recipe, write_recipe
from tests.common.simulation import ROOT

EXAMPLE = ROOT / "examples" / "flower_strategies.yaml"
PLACE = "flwr.serverapp.strategy"


@pytest.fixture(scope="module")
def recipe(tiny_images, tmp_path_factory):
    """Write a recipe with the example's rows and three participants, which runs in seconds."""
    rows = yaml.safe_load(EXAMPLE.read_text())["methods"]
    rows[-1]["private"]["num-sampled-clients"] = 3
    content = tiny_recipe(tiny_images, {"tasks": 1}, methods=rows)
    return write_recipe(tmp_path_factory.mktemp("recipe") / "recipe.yaml", content)


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        assert run(recipe, folder / "out", Witness(), patch) == 0
    return folder


@pytest.mark.parametrize("scale", ["full", "small"])
def test_example_has_six_strategies_of_flower(scale):
    rows = check_runs(read_recipe(EXAMPLE, (), scale))
    assert sum(PLACE in str(one.settings.method) for one in rows) == 6


def test_report_has_every_row(whole, capsys):
    assert main(["report", str(whole / "out")]) == 0
    table = capsys.readouterr().out
    rows = ("CoPreFL", "FedAvg", "trimmed mean", "median", "krum", "adam", "q-fedavg", "private")
    for label in rows:
        assert re.search(rf"^{label} +\d+\.\d\d", table, re.MULTILINE), label


def test_run_killed_twice_ends_with_the_same_bytes(whole, recipe, tmp_path, monkeypatch):
    for strategy in ("FedAdam", "DifferentialPrivacy"):
        witness = Witness(("train", strategy, "pretrain", 3))
        with pytest.raises(Killed):
            run(recipe, tmp_path / "out", witness, monkeypatch)
    assert run(recipe, tmp_path / "out", Witness(), monkeypatch) == 0
    assert files(tmp_path / "models") == files(whole / "models")
    assert files(tmp_path / "out") == files(whole / "out")
