"""The comparison of starts: its rule of equal effort, and the rates that a search chose."""

import importlib
import shutil
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
SEARCH = """| Method | Values | After a quarter % | Accuracy % | Chosen |
|:--|:--|--:|--:|--:|
| fedavg | learning-rate=0.2 | 41.00 | **52.00** | **chosen** |
| fedavg | learning-rate=0.8 | 40.00 | 50.00 | no |
| coprefl † | learning-rate=0.4,meta-learning-rate=0.02 | 43.00 | **53.00** | **chosen** |
"""


@pytest.fixture
def searched(tmp_path):
    tables = tmp_path / "report" / "tables"
    tables.mkdir(parents=True)
    (tables / "table-search.md").write_text(SEARCH)
    return tmp_path


@pytest.mark.parametrize("name", startbench.SETTINGS)
def test_every_method_has_eight_trials(name):
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


def test_every_start_computes_as_many_gradients(tmp_path):
    recipe = read_recipe(FOLDER / "glyphs.yaml", ["seeds=[1000]"], protocol="fresh")
    rows = plan_of(recipe, Store(tmp_path)).rows
    of_tasks = next(row for row in rows if row.label == "random").counts.gradients
    found = {row.label: row.counts.gradients - of_tasks for row in rows if row.label != "random"}
    assert len(found) == 10
    assert all(one == pytest.approx(found["fedavg"], rel=0.03) for one in found.values())


def test_rates_that_were_not_chosen_are_named(searched, tmp_path):
    path = tmp_path / "glyphs.yaml"
    shutil.copy(FOLDER / "glyphs.yaml", path)
    chosen = startbench.chosen(searched)
    assert chosen == {
        "fedavg": {"learning-rate": 0.2},
        "coprefl": {"learning-rate": 0.4, "meta-learning-rate": 0.02},
    }
    before = dict(startbench.rows(path))
    for rates in ({"fedavg": {"learning-rate": 0.05}}, {"coprefl": {"learning-rate": 0.05}}):
        startbench.set_rates(path, rates)
    wrong = [line.split(": ")[1:3] for line in startbench.unlike(path, chosen)]
    assert [label for label, _ in wrong] == ["fedavg", "coprefl", "coprefl"]
    startbench.set_rates(path, chosen)
    assert startbench.unlike(path, chosen) == []
    after = dict(startbench.rows(path))
    assert {label: after[label] for label in after if label not in chosen} == {
        label: before[label] for label in before if label not in chosen
    }
    assert after["coprefl"] == before["coprefl"] | chosen["coprefl"]
