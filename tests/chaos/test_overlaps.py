"""Runs into folders that hold a user's files: killed and resumed, they change none of these files.

The files have every name that the package gives its own files. They are in every folder that a run
is given or uses by default. If a run needs one of these folders for itself, it is refused and
writes nothing.
"""

import os

import pytest
import torch
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from tests.chaos import works
from tests.chaos.draws import draws
from tests.chaos.forked import Kill, forked
from tests.common.networks import network

NAMES = [
    "models.txt", "runs.json", "failed.json", "commit.txt", ".lock", ".locks/a", "report.html",
    "results.csv", "units.csv", "provenance.md", "run.json", "settings.yaml", "texts.json",
    "rows.jsonl", "rounds.jsonl", "about.json", "model.json", "model.safetensors", "result.json",
    "README.md",
    "seconds.json", "SHA256SUMS", "landscape.safetensors", "checkpoint.safetensors",
    "checkpoint.safetensors.rounds.jsonl", "result.json.damaged", "report/report.html",
    "report/tables/table.md", "figures/mine.png", "features/0-train.npy",
    "tasks/0/random/result.json", "starts/random/model.safetensors", "methods/fedpcl/result.json",
    "client-state/a/b/0/1-0.safetensors", "sub/big.gguf.partial", ".mine.part", "mine.7.part",
]  # fmt: skip
"""Names of the user's files in each folder."""

FULL = (".", "full", "models", "outputs", "outputs/models")
"""The folders with the user's files, relative to the working folder."""

AGED = 1_000_000_000
"""Modification time of the user's files, in seconds: as old as leftovers of a killed run."""


# ---- the runs -----------------------------------------------------------------------------------


def run_recipe(images, home, out, models):
    given = {"--out": out, "--models": models}.items()
    options = [word for option, value in given if value for word in (option, value)]
    return works.recipe(images, home, ["run", "recipe.yaml", *options])


def run_study(images, home, outputs, name):
    works.study(images, home, "scaffold", output_dir=outputs, run_name=name)


def run_checkpoint(images, home, folder):
    os.chdir(home)
    torch.manual_seed(0)
    data = [TensorDataset(torch.rand(12, 1, 6, 6), torch.arange(12) % 2) for _ in range(3)]
    options = {"rounds": 3, "local_steps": 1, "batch_size": 4, "quiet": True}
    cp.pretrain("scaffold", network(2), data, checkpoint=folder, **options)


REFUSED = [
    (run_recipe, ".", ""),
    (run_recipe, "full", "."),
    (run_recipe, "models", "models"),
    (run_recipe, "report", "full"),
    (run_recipe, "outputs", ""),
    (run_study, ".", "full"),
    (run_checkpoint, "."),
    (run_checkpoint, "full"),
]
TAKEN = [
    (run_recipe, "new", ""),
    (run_recipe, "", ""),
    (run_recipe, "new", "."),
    (run_recipe, "full/new", "full"),
    (run_recipe, "models/new", "models"),
    (run_recipe, "new", "new"),
    (run_recipe, "full/new", "full/new/below"),
    (run_study, ".", "new"),
    (run_study, "full", "new"),
    (run_checkpoint, "models/new"),
]
"""A function that starts a run, and the folders or the name that it is given."""


def name_of(case):
    return " ".join([case[0].__name__, *case[1:]])


# ---- the tests ----------------------------------------------------------------------------------


def filled(place, images):
    """Fill a folder with a user's files; return the working folder for the commands."""
    home = place / "home"
    home.mkdir()
    for folder in FULL:
        for name in NAMES:
            write(home / folder / name)
    works.write_tiny(images, home, "random")
    return home


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"the user's {path.name}".encode())
    os.utime(path, (AGED, AGED))


def content_of(place):
    """Return {path: content} of all files in a folder."""
    return {one: one.read_bytes() for one in place.rglob("*") if one.is_file()}


def add_files_of_the_user(place):
    """Put the user's files into the folders that a killed run has made; return all of them."""
    for ours in {mark.parent for mark in place.rglob(".coprefl")}:
        for folder in (ours, *(one for one in ours.iterdir() if one.is_dir())):
            for name in ("mine.partial", ".mine.part", "notes.md", "mine/notes.md"):
                write(folder / name)
    return {k: one for k, one in content_of(place).items() if one.startswith(b"the user's ")}


@pytest.mark.parametrize("case", REFUSED, ids=name_of)
def test_run_that_needs_a_folder_with_files_of_the_user_is_refused(case, tiny_images, tmp_path):
    run, *places = case
    place = tmp_path / "place"
    place.mkdir()
    home = filled(place, tiny_images)
    before = content_of(place)
    kill = Kill(operation=1)
    ended = forked(lambda: run(tiny_images, home, *places), kill, tmp_path / "ended")
    assert (ended.killed, ended.status) == (False, 1), ended.output
    line = ended.output.splitlines()[-1]  # After lines of the log.
    assert line.startswith(("coprefl: ", "refused: ")), ended.output
    assert "did not write" in line, line
    assert content_of(place) == before


@pytest.mark.slow
@draws("overlaps", 6)
def test_run_changes_no_file_of_the_user(rng, tiny_images, tmp_path):
    """A run is killed, more of the user's files are added, and the run is resumed."""
    run, *places = rng.choice(TAKEN)
    place = tmp_path / "place"
    place.mkdir()
    home = filled(place, tiny_images)
    before = content_of(place)
    for kill in (Kill(rng.randint(1, 90)), Kill()):
        ended = forked(lambda: run(tiny_images, home, *places), kill, tmp_path / "ended")
        if not ended.killed:
            break
        before |= add_files_of_the_user(place)
    assert ended.status == 0, ended.output
    found = content_of(place)
    changed = [str(name) for name, content in before.items() if found.get(name) != content]
    assert not changed, f"{run.__name__} {places}: the user's files that changed: {changed}"
    assert len(found) > len(before)
