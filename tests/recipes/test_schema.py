"""The schema of recipes: its file in the package, its use in editors, and all examples."""

import json
import os

import jsonschema
import pytest

from coprefl_flwr.cli import main
from coprefl_flwr.options import declared
from coprefl_flwr.recipes.schema import ELSEWHERE, KEYS, recipe_schema
from coprefl_flwr.recipes.yaml_file import parse_yaml, read_yaml
from coprefl_flwr.studies.settings import Settings
from tests.common.simulation import ROOT

FILE = ROOT / "coprefl_flwr" / "recipes" / "recipe.schema.json"
MODELINE = "# yaml-language-server: $schema="
EXAMPLES = sorted(
    path.relative_to(ROOT / "examples")
    for path in (ROOT / "examples").rglob("*.yaml")
    if "\nmethods:" in path.read_text()
)


@pytest.fixture(scope="module")
def validator():
    """The validator with which editors check a recipe."""
    schema = json.loads(FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_schema_file_is_that_of_the_code(capsys):
    assert len(EXAMPLES) > 90
    assert FILE.read_text() == recipe_schema(), f"run `coprefl schema > {FILE}`"
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == recipe_schema()


def test_schema_has_every_key_and_every_setting():
    schema = json.loads(FILE.read_text())
    assert sorted(schema["properties"]) == sorted(KEYS)
    settings = schema["$defs"]["Settings"]["properties"]
    assert declared(Settings).keys() - settings.keys() == ELSEWHERE.keys()
    assert settings["alpha"]["description"] == declared(Settings)["alpha"].meaning
    assert {"type": "integer", "minimum": 1} in settings["rounds"]["anyOf"]
    assert {"enum": ["batch", "group"]} in settings["norm"]["anyOf"]


@pytest.mark.parametrize("path", EXAMPLES, ids=str)
def test_example_is_valid_and_names_the_schema(path, validator):
    path = ROOT / "examples" / path
    first = path.read_text().splitlines()[0]
    named = os.path.normpath(path.parent / first.removeprefix(MODELINE))
    assert (first.startswith(MODELINE), named) == (True, str(FILE))
    tree, _ = read_yaml(path)
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(tree)] == []


RECIPE = """\
title: A recipe
settings: {rounds: 3, participants: [2, 4], downstream-classes: [[8, 9]], partition: iid}
methods: [random, {coprefl: {gamma: [0, 1]}}, {mine: {method: "own.py:Mine", strength: 3}}]
seeds: [0]
metrics: accuracy
protocols: {a: {because: b, settings: {local-steps: null}, methods: {mine: {strength: null}}}}
"""


@pytest.mark.parametrize(
    ("old", "new", "valid"),
    [
        ("", "", True),
        ("rounds: 3", "ronds: 3", False),
        ("rounds: 3", "rounds: 0", False),
        ("rounds: 3", "seed: 3", False),
        ("partition: iid", "norm: layer", False),
        ("gamma: [0, 1]", "gamma: [0, 2]", False),
        ("seeds: [0]", "seeds: 0", False),
        ("seeds: [0]", "seeds: [-1]", False),
        ("seeds: [0]", "seeds: {data: 10, training: [3, 4]}", True),
        ("seeds: [0]", "seeds: {data: 0}", False),
        ("seeds: [0]", "seeds: {draws: 2}", False),
        ("metrics: accuracy", "select: best", False),
        ("because: b, ", "", False),
        ("title: A recipe\n", "", False),
    ],
)
def test_schema_accepts_valid_recipes_alone(old, new, valid, validator):
    assert old in RECIPE
    tree, _ = parse_yaml(RECIPE.replace(old, new, 1), "recipe.yaml")
    assert validator.is_valid(tree) == valid
