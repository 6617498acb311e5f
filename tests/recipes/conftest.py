"""Fixtures that the tests of recipes share."""

import pytest

from coprefl_flwr.cli import main
from coprefl_flwr.recipes import execute
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.studies.store import Store
from tests.common.recipes import tiny_recipe, write_recipe


@pytest.fixture
def read(tmp_path, request):
    """Return a function that reads a text as a recipe; by default `TEXT` of the test file."""

    def from_text(text=None, changes=()):
        path = tmp_path / "recipe.yaml"
        path.write_text(request.module.TEXT if text is None else text)
        return read_recipe(path, changes)

    return from_text


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Return a function that runs `coprefl` next to a recipe and returns its one-line error.

    The command must write no file and make no grid.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(execute, "LocalGrid", None)
    path = tmp_path / "recipe.yaml"

    def run(text, *command):
        path.write_text(text)
        assert main([*command] or ["run", "recipe.yaml"]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        (line,) = printed.err.splitlines()
        assert list(tmp_path.iterdir()) == [path]
        assert path.read_text() == text
        assert line.startswith("coprefl: ")
        return line.removeprefix("coprefl: ")

    return run


@pytest.fixture
def recipe_of(tiny_images, tmp_path, request):
    """Return a function that makes a tiny recipe with other settings and keys.

    They replace the keys of the test file's `RECIPE_KEYS`.
    """
    of_file = getattr(request.module, "RECIPE_KEYS", {})

    def read(settings=None, **keys):
        content = tiny_recipe(tiny_images, settings, **{**of_file, **keys})
        return read_recipe(write_recipe(tmp_path / "recipe.yaml", content))

    return read


@pytest.fixture
def store(tmp_path):
    """The folder of a recipe's results."""
    return Store(tmp_path / "models")
