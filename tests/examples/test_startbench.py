"""The comparison of starts: its rule of equal effort, and the rates that a search chose."""

import importlib
import sys

import pytest
import yaml

from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.plan import plan_of
from coprefl_flwr.studies.store import Store
from tests.common.simulation import ROOT

FOLDER = ROOT / "examples" / "startbench"
sys.path.append(str(FOLDER))
startbench = importlib.import_module("startbench")


@pytest.mark.parametrize("name", startbench.SETTINGS)
def test_every_method_of_startbench_has_eight_trials(name):
    recipe = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    tried = recipe["protocols"]["tune"]["methods"]
    labels = [label for label, _ in startbench.rows(FOLDER / f"{name}.yaml")]
    assert [*tried] == [label for label in labels if label != "random"]
    for values in tried.values():
        trials = 1
        for one in values.values():
            trials *= len(one)
        assert trials == 8
    assert not {*recipe["seeds"]} & {*recipe["protocols"]["tune"]["seeds"]}


def test_every_start_computes_equally_many_gradients(tmp_path):
    recipe = read_recipe(FOLDER / "glyphs.yaml", ["seeds=[1000]"], protocol="fresh")
    rows = plan_of(recipe, Store(tmp_path)).rows
    of_tasks = next(row for row in rows if row.label == "random").counts.gradients
    found = {row.label: row.counts.gradients - of_tasks for row in rows if row.label != "random"}
    assert len(found) == 10
    assert all(one == pytest.approx(found["fedavg"], rel=0.03) for one in found.values())
