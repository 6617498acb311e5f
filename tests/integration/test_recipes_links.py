"""Symbolic links in the folders of a recipe: nothing is written or removed through a link."""

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


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("place", "commands"),
    [
        ("outputs/tiny/report", ("run", "report")),
        ("outputs/tiny/report/figures", ("run", "report")),
        ("outputs/tiny/report/tables", ("run", "report")),
        ("outputs/tiny/recipe.yaml", ("run",)),
        ("outputs/tiny/.*lock", ("run",)),
        ("outputs/models/.*locks", ("run",)),
        ("outputs/models/fedavg-*", ("run",)),
        ("outputs/models/fedavg-*/tasks", ("run",)),
    ],
)
def test_a_link_is_not_written_through(place, commands, home, capsys):
    (target,) = home.glob(place)
    elsewhere = home.parent / "elsewhere"
    target.rename(elsewhere)
    (elsewhere / "mine").write_bytes(b"mine") if elsewhere.is_dir() else None
    target.symlink_to(elsewhere)
    before = contents(home.parent)
    for command in commands:
        arguments = ["tiny.yaml", "--out", "outputs/tiny"] if command == "run" else ["outputs/tiny"]
        capsys.readouterr()
        assert main([command, *arguments]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{target.name} is a symbolic link, through which coprefl writes nothing" in line
    assert target.is_symlink()
    assert contents(home.parent) == before


def test_a_lock_that_is_a_link_leaves_its_target_whole(home, capsys):
    (lock,) = home.glob("outputs/tiny/.*lock")
    mine = home / "mine.csv"
    mine.write_bytes(b"mine")
    lock.unlink()
    lock.symlink_to(mine)
    assert main(["run", "tiny.yaml", "--out", "outputs/tiny"]) == 1
    assert "is a symbolic link" in capsys.readouterr().err
    assert mine.read_bytes() == b"mine"


def test_a_folder_that_the_user_names_can_be_a_link(home, tmp_path):
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


def test_a_link_to_nothing_is_one_line(home, capsys):
    os.symlink("nowhere", "direct")
    capsys.readouterr()
    assert main(["run", "tiny.yaml", "--out", "direct"]) == 1
    assert capsys.readouterr().err == "coprefl: --out: direct is a broken link\n"


def test_report_writes_into_no_folder_of_somebody_elses(home, capsys):
    """A folder with a user's own recipe.yaml, models and report looks like a recipe's folder."""
    shutil.copytree("outputs/models", "models")
    shutil.move("tiny.yaml", "recipe.yaml")
    os.makedirs("report/figures")
    with open("report/figures/mine.png", "wb") as file:
        file.write(b"mine")
    before = contents(home)
    capsys.readouterr()
    assert main(["report", "."]) == 1
    assert "report has files that coprefl did not write" in capsys.readouterr().err
    assert contents(home) == before
