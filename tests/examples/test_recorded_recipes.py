"""Recipes in examples/ set all values that they depend on: new defaults do not change them."""

import json

import pytest

from tests.records.recipes import FILE, RECIPES, of_recipe

RECORDED = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", RECIPES)
def test_runs_of_a_recipe_are_the_recorded_ones(name):
    assert of_recipe(name) == RECORDED[name]
