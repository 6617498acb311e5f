"""Recipes in examples/ set all values that they depend on: new defaults do not change them."""

import json

import pytest

from tests.records.recipes import FILE, RECIPES, of_recipe

KNOWN = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", RECIPES)
def test_its_runs_are_those_that_were_recorded(name):
    assert of_recipe(name) == KNOWN[name]
