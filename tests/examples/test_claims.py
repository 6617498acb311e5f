"""The claims' recipes can be read under each protocol, and the page is what its figures give."""

import re

import pytest
import yaml

from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.sweep import check_runs
from tests.common.claims import FOLDER, page
from tests.common.simulation import ROOT

DOCS = ROOT / "docs"
CLAIMED = (DOCS, "claims.md"), (ROOT, "README.md")
RECIPES = sorted({path.name for path in FOLDER.glob("*.yaml")} - {"claims.yaml"})


def protocols():
    """Return each recipe with each of its protocols."""
    written = {name: yaml.safe_load((FOLDER / name).read_text()) for name in RECIPES}
    return [
        (name, protocol) for name, recipe in written.items() for protocol in recipe["protocols"]
    ]


@pytest.mark.parametrize(("name", "protocol"), protocols())
def test_it_can_be_read_and_would_run(name, protocol):
    recipe = read_recipe(FOLDER / name, protocol=protocol)
    assert recipe.protocol == protocol
    assert len(recipe.seeds) >= 5
    small = read_recipe(FOLDER / name, ("seeds=[0]",), "small", protocol)
    assert check_runs(small)


def test_the_page_is_made_of_its_figures(monkeypatch):
    """The committed page is the one that the values in docs/claims.csv give."""
    monkeypatch.chdir(ROOT)
    assert page.main(["--check"]) == 0


def test_every_recipe_has_claims():
    assert sorted(yaml.safe_load((FOLDER / "claims.yaml").read_text())) == [
        name.removesuffix(".yaml") for name in RECIPES
    ]


def test_the_readme_has_the_pages_intervals():
    """It said "some 4 points ahead" of what the page leaves open."""
    text, readme = ((file / name).read_text() for file, name in CLAIMED)
    rows = text.replace("\\", "").splitlines()
    differences = re.findall(r"[+-][\d.]+\s\[[+-][\d.]+,\s[+-][\d.]+\]", readme)
    assert len(differences) >= 5
    for one in differences:
        low, high = (float(number) for number in one.split("[")[1].strip("]").split(","))
        (row,) = (row for row in rows if f"%: {' '.join(one.split())}" in row)
        assert ("| **holds** |" in row) == (low > 0)
        assert ("| open |" in row) == (low < 0 < high)
    assert not re.search("points ahead|level with|no better than", readme)


def test_the_page_says_what_its_intervals_are_not():
    text = " ".join((DOCS / "claims.md").read_text().split())
    assert "they are not simultaneous" in text
    assert "that two rows are equal, or differ too little to matter) are read off the same" in text
    assert "outside of that order: the 5 % do not cover them" in text
