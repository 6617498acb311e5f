"""Recipes of claims and starts can be read under each protocol; pages match the stored tables."""

import pytest
import yaml

from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.search import check_runs
from tests.common.claims import FOLDER, page, tables
from tests.common.simulation import ROOT

DOCS = ROOT / "docs"
RECIPES = tables.recipes_of(ROOT / "examples")
PRIMARY = yaml.safe_load((FOLDER / "primary.yaml").read_text())


def protocols():
    """Return (recipe, protocol) for every protocol of every recipe."""
    written = {name: yaml.safe_load(path.read_text()) for name, path in RECIPES.items()}
    return [(name, one) for name, of in written.items() for one in of.get("protocols", [""])]


@pytest.mark.parametrize(("name", "protocol"), protocols())
def test_it_can_be_read_and_would_run(name, protocol):
    recipe = read_recipe(RECIPES[name], protocol=protocol)
    assert recipe.protocol == protocol
    assert len(recipe.seeds) >= 5 or protocol.startswith("tune")
    if not name.startswith("startbench/"):  # The small data of these recipes differ too much.
        small = read_recipe(RECIPES[name], ("seeds=[0]",), "small", protocol)
        assert check_runs(small)


def test_the_pages_are_made_of_their_tables(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert page.main(["--check"]) == 0


def test_the_stored_tables_are_small():
    files = [path for path in (DOCS / "tables").rglob("*") if path.is_file()]
    assert files
    assert sum(path.stat().st_size for path in files) < 2_000_000


def test_every_recipe_has_claims():
    explored = yaml.safe_load((FOLDER / "claims.yaml").read_text())
    named = {name if "/" in name else f"claims/{name}" for name in explored}
    named |= {f"primary/{one['recipe']}" for claims in PRIMARY.values() for one in claims}
    assert named == {name for name in RECIPES if not name.startswith("startbench/")}


def test_a_paper_has_at_most_ten_primary_claims_on_seeds_of_their_own():
    """Each claim has a short name that fits into the figure."""
    for claims in PRIMARY.values():
        assert 1 <= len(claims) <= 10
        assert len({one["short"] for one in claims}) == len(claims)
        assert max(len(one["short"]) for one in claims) <= 28
        for one in claims:
            assert {"metric", "says", "margin"} <= one.keys()
            seeds = read_recipe(RECIPES[f"primary/{one['recipe']}"]).seeds
            assert min(seeds) >= 1000
            assert 20 <= len(seeds) <= (48 if one["recipe"] == "fedpcl-label-shift" else 40)
