"""Run small studies that were also run before a change of the structure, and compare the rows.

    python -m tests.kept [--into FOLDER] [--write]

The studies are four recipes at `--scale small` with one worker and one thread, and the quickstart's
settings on the local grid. They take ten minutes on one core. The rows kept in this folder (a
report's `units.csv`, the study's `rows.jsonl`) come from one processor, and another processor may
round differently. So compare on the machine that wrote them (`--write`, on the commit before the
change).
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import tomllib

from coprefl_flwr.cli import main as coprefl
from coprefl_flwr.client_app import app
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECIPES = ("coprefl-table-1a", "coprefl-table-1b", "cyclic-table-2", "fedpcl-table-2")


def recipe_rows(name: str, folder: Path) -> bytes:
    """Run a recipe, unless it is done; return its rows."""
    out = folder / name
    recipe = ROOT / "examples" / "recipes" / f"{name}.yaml"
    options = ["--scale", "small", "--workers", "1", "--out", out, "--models", folder / "models"]
    if coprefl(["run", *map(str, [recipe, *options])]):
        raise SystemExit(f"{name} failed")
    return (out / "report" / "units.csv").read_bytes()


def quickstart_rows(folder: Path) -> bytes:
    """Run the quickstart's study, unless it is done; return its rows."""
    config = tomllib.loads((ROOT / "examples" / "quickstart.toml").read_text())
    config |= {"output-dir": str(folder), "run-name": "quickstart"}
    settings = Settings.from_config(config)
    return (
        run_study(LocalGrid(app, 2, settings.to_config()), build(settings)) / "rows.jsonl"
    ).read_bytes()


def main() -> int:
    """Compare or write the rows; the exit status is 0 if all rows equal the kept rows."""
    parser = argparse.ArgumentParser(prog="python -m tests.kept", description=__doc__)
    parser.add_argument("--into", type=Path, help="a folder; an interrupted run continues in it")
    parser.add_argument("--write", action="store_true", help="replace the kept rows by these rows")
    given = parser.parse_args()
    folder = (given.into or Path(tempfile.mkdtemp())).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    found = {f"{name}.csv": recipe_rows(name, folder) for name in RECIPES}
    found["quickstart.jsonl"] = quickstart_rows(folder)
    wrong = [name for name, rows in found.items() if (HERE / name).read_bytes() != rows]
    if given.write:
        for name, rows in found.items():
            (HERE / name).write_bytes(rows)
    for name in found:
        print(f"{'DIFFERS' if name in wrong else 'same':9}{name}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
