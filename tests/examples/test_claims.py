"""Recipes of claims and starts can be read under each protocol; pages match the stored tables."""

import pytest
import yaml

from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.search import check_runs
from tests.common.claims import page, tables
from tests.common.simulation import ROOT

RECIPES = tables.recipes_of(ROOT / "examples")


def protocols():
    """Return (recipe, protocol) for every protocol of every recipe."""
    written = {name: yaml.safe_load(path.read_text()) for name, path in RECIPES.items()}
    return [(name, one) for name, of in written.items() for one in of.get("protocols", [""])]


@pytest.mark.parametrize(("name", "protocol"), protocols())
def test_recipe_can_run_under_each_protocol(name, protocol):
    recipe = read_recipe(RECIPES[name], protocol=protocol)
    assert recipe.protocol == protocol
    assert len(recipe.seeds) >= 5 or protocol.startswith("tune")
    if not name.startswith("startbench/"):  # The small data of these recipes differ too much.
        small = read_recipe(RECIPES[name], ("seeds=[0]",), "small", protocol)
        assert check_runs(small)


def test_pages_match_the_stored_tables(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert page.main(["--check"]) == 0
