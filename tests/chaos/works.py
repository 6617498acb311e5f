"""Works to kill: a tiny study and a tiny recipe, and the files that they write."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from coprefl_flwr import cli
from coprefl_flwr.client_app import app
from coprefl_flwr.files import LOCK, LOCKS, SUMS, check_sums
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from tests.chaos.forked import Ended, Kill, forked, quiet
from tests.common.checks import files
from tests.common.recipes import tiny_recipe, write_recipe
from tests.common.studies import tiny_study


def study(images: Path, home: Path, method: str = "scaffold coprefl", **changes: object) -> None:
    """Run a study with client states in a folder, or continue it as its user would."""
    os.chdir(home)  # Results contain the path of their folder.
    settings = replace(
        tiny_study(images, Path()), method=method, rounds=2, tasks=1, task_rounds=1, **changes
    )
    run_study(LocalGrid(app, 1, settings.to_config()), build(settings))


RUN = ["run", "recipe.yaml", "--out", "outputs/tiny"]


def recipe(_: Path, home: Path, arguments: list[str] = RUN) -> int:
    """Run a command in a folder with a recipe; the same `run` continues an earlier run."""
    os.chdir(home)
    return cli.main(arguments)


def write_tiny(images: Path, home: Path, reference: str) -> None:
    """Write a recipe of two methods; the first one has client states."""
    content = tiny_recipe(
        images,
        {"rounds": 2, "task-rounds": 1, "tasks": 1},
        methods=["scaffold", reference],
        reference=reference,
        figures=["accuracies"],
    )
    write_recipe(home / "recipe.yaml", content)


class Whole:
    """A work without interruptions: its files, its number of file operations and its seconds."""

    def __init__(self, work, images: Path, folder: Path) -> None:
        self.work, self.images, self.folder = work, images, folder
        self.prepare(folder / "0")
        with quiet(), contextlib.chdir("."):
            self.run(folder / "0")  # In this process, so that forked processes have all imports.
        self.ended = self.forked(folder / "1")
        assert self.ended.status == 0, self.ended.output
        self.left = left(folder / "1")
        other = [name for name, one in left(folder / "0").items() if self.left.get(name) != one]
        assert not other, f"differ in two runs that nothing interrupted: {other}"

    def run(self, place: Path) -> int | None:
        return self.work(self.images, place)

    def prepare(self, place: Path) -> None:
        """Make a folder with the recipe in it."""
        if not place.exists():
            place.mkdir()
            write_tiny(self.images, place, "coprefl")

    def forked(self, place: Path, kill: Kill = Kill()) -> Ended:  # noqa: B008
        """Run the work in a separate process."""
        self.prepare(place)
        return forked(lambda: self.run(place), kill, self.folder / "ended")


def left(folder: Path) -> dict[str, bytes]:
    """Return {path: content} of the files of a work, except locks."""
    found = files(folder / "outputs").items()
    return {name: one for name, one in found if not {LOCK, LOCKS} & {*Path(name).parts}}


def check_whole(folder: Path, expected: dict[str, bytes]) -> None:
    """Check that all files are there, with the expected bytes, and that none is half written."""
    halves = [str(one) for one in folder.rglob("*.coprefl-part")]
    assert not halves, f"half written: {halves}"
    for sums in folder.rglob(SUMS):
        check_sums(sums.parent)
    found = left(folder)
    assert sorted(found) == sorted(expected)
    other = [name for name in expected if found[name] != expected[name]]
    assert not other, f"other bytes: {other}"
