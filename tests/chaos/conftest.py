"""Uninterrupted runs, with which killed runs are compared."""

from unittest import mock

import pytest

from tests.chaos.draws import NUMBERS
from tests.chaos.works import Whole, recipe, study


def study_without_figures(images, home):
    with mock.patch("coprefl_flwr.studies.running.write_results"):
        study(images, home)


@pytest.fixture(scope="session")
def wholes(tiny_images, tmp_path_factory):
    """A study; under `make chaos` also a recipe, and figures, which take most of the time."""
    works = (study, recipe) if NUMBERS else (study_without_figures,)
    return [Whole(work, tiny_images, tmp_path_factory.mktemp("whole")) for work in works]
