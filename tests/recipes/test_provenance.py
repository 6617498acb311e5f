"""How results were made, as a report says it."""

import subprocess

from coprefl_flwr.recipes.provenance import portable
from coprefl_flwr.studies.study import commit_of, made_by


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True)


def test_the_commit_is_that_of_the_folder_that_git_knows(tmp_path):
    known, strange = tmp_path / "known", tmp_path / "known" / "outputs"
    strange.mkdir(parents=True)
    (known / "recipe.yaml").write_text("title: a\n")
    git(known, "init", "-q")
    git(known, "add", "recipe.yaml")
    git(known, "commit", "-qm", "a")
    commit = commit_of(known)
    assert len(commit) == 12
    assert commit_of(strange) == ""
    commit_of.cache_clear()
    (known / "recipe.yaml").write_text("title: b\n")
    assert commit_of(known) == f"{commit}-dirty"


def test_what_made_a_result_names_no_folder_and_no_host():
    found = made_by()
    assert found["machine"].endswith(" cores") or " cores, " in found["machine"]
    assert {"flwr", "torch", "coprefl-flwr", "python"} == set(found["versions"])


def test_a_file_of_ones_own_is_named_without_its_folder():
    assert portable("/home/me/net.py:NET+cyclic") == "net.py:NET+cyclic"
    assert portable("file:/home/me/start.safetensors fedavg") == "file:start.safetensors fedavg"
    assert portable("data/mnist_m") == "data/mnist_m"
    assert portable(0.5) == 0.5
