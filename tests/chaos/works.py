"""What is killed and damaged: a tiny study, and a tiny recipe, each of a second."""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from coprefl_flwr.checksums import SUMS, damaged
from coprefl_flwr.client_app import app
from coprefl_flwr.files import LOCK, LOCKS
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.recipes import command_line
from coprefl_flwr.studies.build import run_study
from tests.common.checks import files
from tests.common.recipes import tiny_recipe, write_recipe
from tests.common.studies import tiny_study


@dataclass(frozen=True)
class StudyWork:
    """A study of two starts, of which one has states of clients, and their tasks."""

    images: Path
    name: str = "study"
    changes: dict[str, object] = field(default_factory=dict)

    def run(self, folder: Path) -> int:
        """Run it, or go on with it as its user would."""
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)  # As results say where they lie.
        settings = replace(
            tiny_study(self.images, Path()),
            method="scaffold coprefl",
            rounds=2,
            tasks=1,
            task_rounds=1,
            resume=(folder / "outputs" / "tiny" / "settings.yaml").exists(),
            **self.changes,
        )
        run_study(LocalGrid(app, 1, settings.to_config()), settings)
        return 0


@dataclass(frozen=True)
class RecipeWork:
    """`coprefl run` of a recipe of one method with states and another."""

    images: Path
    name: str = "recipe"

    def run(self, folder: Path) -> int:
        """Run it; the same command goes on with it."""
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        return command_line.main(self.command("run"))

    def command(self, command: str) -> list[str]:
        """Return the arguments of a command that is given in the folder."""
        recipe, out = self.images.with_name("tiny.yaml"), "outputs/tiny"
        if not recipe.exists():
            content = tiny_recipe(
                self.images,
                {"rounds": 2, "task-rounds": 1, "tasks": 1},
                methods=["scaffold", "coprefl"],
                reference="coprefl",
                figures=["accuracies"],
            )
            write_recipe(recipe, content)
        return {
            "run": ["run", str(recipe), "--out", out],
            "report": ["report", out],
            "list": ["list"],
            "show": ["show", "coprefl"],
        }[command]


RESUME = re.compile(rb'"?resume"?: (true|false)')
"""What says how a run was begun, which a run that was resumed is not alike in."""

Work = StudyWork | RecipeWork


def left(folder: Path) -> dict[str, bytes]:
    """Return what a work left: {path: content}, but for locks and what was put aside."""
    found = files(folder / "outputs")
    return {
        name: RESUME.sub(b"", content)
        for name, content in found.items()
        if not name.endswith(".damaged")
        and Path(name).name != LOCK
        and LOCKS not in Path(name).parts
    }


def check_whole(folder: Path, expected: dict[str, bytes]) -> None:
    """Raise an AssertionError unless all is there, to the byte, and nothing is half written."""
    halves = [str(one) for one in folder.rglob("*") if one.suffix == ".coprefl-part"]
    assert not halves, f"half written: {halves}"
    wrong = [str(one) for one in folder.rglob(SUMS) if damaged(one.parent)]
    assert not wrong, f"checksums do not fit: {wrong}"
    found = left(folder)
    missing, more = expected.keys() - found.keys(), found.keys() - expected.keys()
    assert not missing, f"missing: {sorted(missing)}"
    assert not more, f"left over: {sorted(more)}"
    other = [name for name in expected if found[name] != expected[name]]
    assert not other, f"other bytes: {other}"


def is_root() -> bool:
    return os.geteuid() == 0
