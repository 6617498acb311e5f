"""The comparison of starts: its rule of equal effort, and the rates that a search chose."""

import importlib
import sys

import pytest
import yaml

from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.search import table_rows
from coprefl_flwr.studies.costs import cost
from tests.common.simulation import ROOT

FOLDER = ROOT / "examples" / "startbench"
sys.path.append(str(FOLDER))
# The rate of `fedswa equal step` is that of fedavg times 2 n / (n + 1), for n local steps.
WITHOUT_SEARCH = ("random", "fedswa equal step", "fractals")
startbench, tables = map(importlib.import_module, ("startbench", "tables"))


@pytest.mark.parametrize("name", startbench.SETTINGS)
def test_every_method_of_startbench_has_eight_trials(name):
    recipe = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    tried = recipe["protocols"]["tune"]["methods"]
    labels = [label for label, _ in startbench.rows(FOLDER / f"{name}.yaml")]
    assert [*tried] == [label for label in labels if label not in WITHOUT_SEARCH]
    for values in tried.values():
        trials = 1
        for one in values.values():
            trials *= len(one)
        assert trials == 8
    assert not {*recipe["seeds"]} & {*recipe["protocols"]["tune"]["seeds"]}


def test_every_start_computes_equally_many_gradients():
    recipe = read_recipe(FOLDER / "glyphs.yaml", ["seeds=[1000]"], protocol="fresh")
    runs = {row.label: row.reported(row.trials()[0])[0] for row in table_rows(recipe)}
    given = {"random", "fractals"}
    found = {name: cost(run.main).gradients for name, run in runs.items() if name not in given}
    assert len(found) == 17
    assert all(one == pytest.approx(found["fedavg"], rel=0.03) for one in found.values())


def test_stored_table_stays_valid_when_its_recipe_gets_further_rows():
    recipe = dict(read_recipe(FOLDER / "glyphs.yaml", protocol="fresh").effective)
    rows = tables.labels_of(recipe)
    more = recipe | {"methods": [*recipe["methods"], {"new": {"method": "fedavg"}}]}
    other = recipe | {"methods": [recipe["methods"][0], {"fedavg": {"learning-rate": 9.0}}]}
    older = {"settings": tables.hashed(recipe)}
    assert tables.is_of(older, more)
    assert tables.is_of(older | {"rows": rows}, more)
    assert not tables.is_of(older, other)
    of_new = {"settings": tables.hashed(more, ["fedavg", "new"]), "rows": ["fedavg", "new"]}
    assert tables.is_of(of_new, more)
    assert not tables.is_of(of_new, recipe)
