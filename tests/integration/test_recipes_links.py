"""Folders of results that are symbolic links."""

import os
import shutil

import pytest

from coprefl_flwr.cli import main
from tests.common.recipes import tiny_recipe, write_recipe


@pytest.fixture(scope="module")
def outputs(tiny_images, tmp_path_factory):
    """Return the folder `outputs` with a recipe's results; the recipe is next to this folder."""
    outputs = tmp_path_factory.mktemp("links") / "outputs"
    more = {"methods": ["random", "fedavg"], "reference": None, "figures": ["accuracies"]}
    content = tiny_recipe(tiny_images, {"tasks": 1}, **more)
    path = write_recipe(outputs.parent / "tiny.yaml", content)
    assert main(["run", str(path), "--out", str(outputs / "tiny")]) == 0
    return outputs


@pytest.fixture
def home(outputs, tmp_path, monkeypatch):
    """Return the working directory, with a copy of the recipe and of the folder `outputs`."""
    shutil.copytree(outputs.parent, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def test_output_folder_can_be_a_link(home, tmp_path):
    """A user may store results on another disk in this way."""
    shutil.rmtree("outputs")
    (tmp_path / "scratch").mkdir()
    os.symlink(tmp_path / "scratch", "outputs")
    assert main(["run", "tiny.yaml"]) == 0
    assert main(["run", "tiny.yaml"]) == 0
    assert (tmp_path / "scratch" / "tiny" / "report" / "report.html").exists()
    (tmp_path / "other").mkdir()
    os.symlink(tmp_path / "other", "direct")
    assert main(["run", "tiny.yaml", "--out", "direct", "--models", "outputs/models"]) == 0
    assert (tmp_path / "other" / "report" / "report.html").exists()
