"""Runs into folders that hold a user's files: killed and resumed, they change none of these.

The files have every name that the package gives its own files, in every folder that a run is given
or uses unasked. Where a run needs such a place for itself, it is refused and writes nothing.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import coprefl_flwr as cp
from coprefl_flwr.client_app import app
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.recipes import command_line
from coprefl_flwr.studies.build import run_study
from tests.chaos.forked import Kill, forked
from tests.chaos.tally import Case
from tests.common.data import write_images
from tests.common.networks import network
from tests.common.recipes import tiny_recipe, write_recipe
from tests.common.studies import tiny_study

NAMES = (
    "models.txt",
    "runs.json",
    "failed.json",
    "commit.txt",
    ".lock",
    ".locks/a",
    "index.html",
    "results.csv",
    "units.csv",
    "provenance.md",
    "run.json",
    "settings.yaml",
    "texts.json",
    "rows.jsonl",
    "rounds.jsonl",
    "summary.md",
    "summary.csv",
    "pretraining.md",
    "learning_curves.png",
    "client_accuracies.png",
    "model.json",
    "model.safetensors",
    "result.json",
    "seconds.json",
    "SHA256SUMS",
    "landscape.npz",
    "checkpoint.safetensors",
    "result.json.damaged",
    "report/index.html",
    "report/figures/mine.png",
    "report/tables/table.md",
    "figures/mine.png",
    "tables/mine.md",
    "features/0-train.npy",
    "features/mine/0-train.npy",
    "tasks/0/random/result.json",
    "starts/random/model.safetensors",
    "methods/fedpcl/result.json",
    "client-state/a/b/0/1-0.safetensors",
    "llama.partial",
    "sub/big.gguf.partial",
    ".part",
    ".mine.part",
    ".mine.7.part",
    "mine.7.coprefl-part",
)
"""Of a user's files, in each folder."""

FULL = (".", "full", "models", "outputs", "outputs/models", "../elsewhere")
"""The folders that hold them, from where the commands are given; `link` leads to the last."""

AGED = 1_000_000_000
"""When they were written, in seconds: long ago, as leftovers of a kill would be."""


@dataclass(frozen=True)
class Run:
    """A run that is told to use these places, and whether it is to be refused."""

    kind: str
    places: tuple[str, ...]
    refused: bool = False

    @property
    def name(self) -> str:
        return " ".join((self.kind, *self.places))


RUNS = (
    Run("recipe", (".", ""), refused=True),
    Run("recipe", ("full", "."), refused=True),
    Run("recipe", ("models", "models"), refused=True),
    Run("recipe", ("report", "full"), refused=True),
    Run("recipe", ("outputs", ""), refused=True),
    Run("recipe", ("link", "link"), refused=True),
    Run("recipe", ("new", "")),
    Run("recipe", ("", "")),
    Run("recipe", ("new", ".")),
    Run("recipe", ("full/new", "full")),
    Run("recipe", ("models/new", "models")),
    Run("recipe", ("new", "new")),
    Run("recipe", ("full/new", "full/new/below")),
    Run("recipe", ("link/new", "link")),
    Run("study", (".", "full"), refused=True),
    Run("study", (".", "link"), refused=True),
    Run("study", (".", "new")),
    Run("study", ("full", "new")),
    Run("checkpoint", (".",), refused=True),
    Run("checkpoint", ("full",), refused=True),
    Run("checkpoint", ("models/new",)),
)


def cases(seed: int, count: int, folder: Path) -> Iterator[Case]:
    """Yield cases without end, of all runs in turn."""
    images = folder / "tiny.npz"
    write_images(images)
    number = 0
    while True:
        for run in RUNS:
            rng = random.Random(f"{seed} {number}")
            kill = Kill(operation=rng.randint(1, 90))
            check = _checked(run, kill, images, folder)
            yield Case(f"{run.name}, {number} of seed {seed}", check)
            number += 1


def _checked(run: Run, kill: Kill, images: Path, folder: Path) -> Callable[[], int]:
    return lambda: check_overlap(run, kill, images, folder)


def check_overlap(run: Run, kill: Kill, images: Path, folder: Path) -> int:
    """Kill a run and go on with it, among a user's files; return 1, or raise an AssertionError."""
    place = Path(tempfile.mkdtemp(dir=folder))
    home = filled(place, images)
    before = left(place)
    program = {"recipe": _recipe, "study": _study, "checkpoint": _checkpoint}[run.kind]
    try:
        for attempt in (kill, Kill()):
            ended = forked(lambda: program(home, images, *run.places), attempt, folder / "told")
            if run.refused:
                assert (ended.killed, ended.status) == (False, 1), ended.output
                line = ended.output.splitlines()[-1]  # Behind lines of the log.
                assert line.startswith(("coprefl: ", "refused: ")), ended.output
                assert "did not write" in line or "is a link" in line, line
                assert left(place) == before
            if not ended.killed:
                break
            before |= _put_among_ours(place)
        assert ended.status == int(run.refused), ended.output
        found = left(place)
        changed = [name for name, content in before.items() if found.get(name) != content]
        assert not changed, f"the user's files that changed: {changed}"
        assert run.refused or len(found) > len(before)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 1


def filled(place: Path, images: Path) -> Path:
    """Fill a folder with a user's files; return the one in which commands are given."""
    home = place / "home"
    home.mkdir()
    for folder in FULL:
        for name in NAMES:
            _write(home / folder / name)
    (home / "link").symlink_to("../elsewhere")
    content = tiny_recipe(
        images,
        {"rounds": 2, "task-rounds": 1, "tasks": 1},
        methods=["scaffold", "random"],
        reference="random",
        figures=["accuracies"],
    )
    write_recipe(home / "recipe.yaml", content)
    return home


def left(place: Path) -> dict[str, bytes]:
    """Return {path: content} of all files in a folder; of a link, where it leads."""
    return {
        str(one.relative_to(place)): os.readlink(one).encode()
        if one.is_symlink()
        else one.read_bytes()
        for one in place.rglob("*")
        if one.is_symlink() or one.is_file()
    }


def _put_among_ours(place: Path) -> dict[str, bytes]:
    """Put files of the user's own into the folders that a killed run has made; return them."""
    ours = {mark.parent for mark in place.rglob(".coprefl")}
    names = ["mine.partial", ".mine.part", "notes.md", "mine/notes.md"]
    for folder in ours:
        below = [f"{one.name}/{name}" for one in folder.iterdir() if one.is_dir() for name in names]
        for name in names + below:
            _write(folder / name)
    return {name: content for name, content in left(place).items() if _of_user(content)}


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"the user's {path.name}".encode())
    os.utime(path, (AGED, AGED))


def _of_user(content: bytes) -> bool:
    return content.startswith(b"the user's ")


# ---- what is run --------------------------------------------------------------------------------


def _recipe(home: Path, images: Path, out: str, models: str) -> int:
    os.chdir(home)
    options = {"--out": out, "--models": models}
    given = [word for option, value in options.items() if value for word in (option, value)]
    return command_line.main(["run", "recipe.yaml", *given])


def _study(home: Path, images: Path, outputs: str, name: str) -> None:
    os.chdir(home)
    settings = replace(
        tiny_study(images, Path()),
        method="scaffold",
        rounds=2,
        tasks=1,
        task_rounds=1,
        output_dir=outputs,
        run_name=name,
        resume=name == "new" and Path(outputs, name, "settings.yaml").exists(),
    )
    run_study(LocalGrid(app, 1, settings.to_config()), settings)


def _checkpoint(home: Path, images: Path, folder: str) -> None:
    os.chdir(home)
    torch.manual_seed(0)
    data = [TensorDataset(torch.rand(12, 1, 6, 6), torch.arange(12) % 2) for _ in range(3)]
    options = {"rounds": 3, "local_steps": 1, "batch_size": 4, "quiet": True}
    cp.pretrain("scaffold", network(2), data, checkpoint=folder, resume=True, **options)
