"""How results were made, as a report shows it."""

import subprocess

import pytest

import coprefl_flwr
from coprefl_flwr.cli import main
from coprefl_flwr.studies.provenance import made_by
from coprefl_flwr.studies.results import without_folders
from tests.common.recipes import tiny_recipe, write_recipe


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """Return a function that makes a git repository with a package in one of its folders."""

    def make(package, name="repository"):
        root = tmp_path / name
        file = root / package / "coprefl_flwr" / "__init__.py"
        file.parent.mkdir(parents=True)
        file.write_text("a = 1\n")
        git(root.parent, "init", "-q", name)
        git(root, "add", ".")
        git(root, "commit", "-qm", "a")
        return file

    return make


@pytest.fixture
def trap(tmp_path):
    """Return a function that makes git run a program in a repository; the program makes a file."""

    def prepare(root):
        program, mark = tmp_path / "program.sh", tmp_path / "mark"
        program.write_text(f"#!/bin/sh\ntouch {mark}\n")
        program.chmod(0o755)
        git(root, "config", "core.fsmonitor", str(program))
        return mark

    return prepare


def test_the_commit_is_that_of_a_checkout_of_the_package(checkout, monkeypatch):
    file = checkout(".")
    monkeypatch.setattr(coprefl_flwr, "__file__", str(file))
    assert len(made_by()["commit"]) == 12
    file = checkout(".", "changed")
    file.write_text("a = 2\n")
    monkeypatch.setattr(coprefl_flwr, "__file__", str(file))
    assert made_by()["commit"].endswith("-dirty")


def test_a_package_inside_of_another_repository_has_no_commit(checkout, trap, monkeypatch):
    """Git runs the programs that a repository's configuration names."""
    for name in ("plain", "with a .git"):
        file = checkout("venv/site-packages", name)
        mark = trap(file.parents[3])
        if name != "plain":
            (file.parents[1] / ".git").mkdir()  # Git ignores this folder and looks above it.
        monkeypatch.setattr(coprefl_flwr, "__file__", str(file))
        assert "commit" not in made_by()
        assert not mark.exists()


def test_git_runs_nothing_in_the_folder_of_a_recipe(tiny_images, tmp_path, trap):
    folder = tmp_path / "cloned"
    folder.mkdir()
    content = tiny_recipe(tiny_images, {"tasks": 0}, methods=["random"], reference=None)
    recipe = write_recipe(folder / "recipe.yaml", content | {"metrics": ["models"]})
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "a")
    mark = trap(folder)
    assert main(["run", str(recipe), "--out", str(tmp_path / "out")]) == 0
    assert not mark.exists()


def test_what_made_a_result_names_no_folder_and_no_host():
    provenance = made_by()
    assert provenance["machine"].endswith(" cores") or " cores, " in provenance["machine"]
    assert {"flwr", "torch", "coprefl-flwr", "python"} == set(provenance["versions"])


def test_a_file_of_ones_own_is_named_without_its_folder():
    assert without_folders("/home/me/net.py:NET+cyclic") == "net.py:NET+cyclic"
    assert (
        without_folders("file:/home/me/start.safetensors fedavg") == "file:start.safetensors fedavg"
    )
    assert without_folders("data/mnist_m") == "data/mnist_m"
    assert without_folders(0.5) == 0.5
