"""How results were made, as a report shows it."""

import subprocess

import pytest

import coprefl_flwr
from coprefl_flwr.studies.provenance import made_by
from coprefl_flwr.studies.results import without_folders


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


def test_commit_is_that_of_a_checkout_of_the_package(checkout, monkeypatch):
    file = checkout(".")
    monkeypatch.setattr(coprefl_flwr, "__file__", str(file))
    assert len(made_by()["commit"]) == 12
    assert {"flwr", "torch", "coprefl-flwr", "python"} == set(made_by()["versions"])
    file = checkout(".", "changed")
    file.write_text("a = 2\n")
    monkeypatch.setattr(coprefl_flwr, "__file__", str(file))
    assert made_by()["commit"].endswith("-dirty")


def test_git_runs_nothing_in_another_repository(checkout, tmp_path, monkeypatch):
    """Git runs the programs that a repository's configuration names."""
    program, mark = tmp_path / "program.sh", tmp_path / "mark"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    file = checkout("venv/site-packages")
    root = file.parents[3]
    git(root, "config", "core.fsmonitor", str(program))
    monkeypatch.setattr(coprefl_flwr, "__file__", str(file))
    monkeypatch.chdir(root)  # As in the folder of a recipe that was cloned.
    assert "commit" not in made_by()
    assert not mark.exists()


def test_folders_are_left_out_of_names():
    text = "file:/home/me/start.safetensors fedavg"
    assert without_folders(text) == "file:start.safetensors fedavg"
    assert without_folders("data/mnist_m") == "data/mnist_m"
