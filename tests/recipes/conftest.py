"""What tests of recipes share."""

import pytest

from coprefl_flwr.recipes.reading import read_recipe


@pytest.fixture
def read(tmp_path, request):
    """Read a text as a recipe, that of the tests' file if none is given."""

    def from_text(text=None, changes=()):
        path = tmp_path / "recipe.yaml"
        path.write_text(request.module.TEXT if text is None else text)
        return read_recipe(path, changes)

    return from_text
