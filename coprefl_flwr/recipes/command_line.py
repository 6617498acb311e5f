"""`coprefl`: run a recipe, report what it came to, and show what is there.

    coprefl run RECIPE [--out DIR] [--models DIR] [--scale small] [--set KEY=VALUE] [--workers N]
    coprefl report DIR
    coprefl list [DIR]
    coprefl show RUN

DIR keeps the recipe as it was run and its report; the results themselves lie in MODELS, by the hash
of their settings, for every recipe that needs them.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.files import write_atomically
from coprefl_flwr.recipes.collect import collect
from coprefl_flwr.recipes.personal_runs import ABOUT
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.recipe import Recipe
from coprefl_flwr.recipes.scale import FULL, SMALL
from coprefl_flwr.recipes.store import Store
from coprefl_flwr.recipes.sweep import Failures, InProcess, Make, check_runs, run_recipe
from coprefl_flwr.recipes.trackers import Tracker, tensorboard
from coprefl_flwr.recipes.workers import OnRay
from coprefl_flwr.report import text_tables, write_report
from coprefl_flwr.studies.personalised import RESULT
from coprefl_flwr.studies.progress import quiet_flower
from coprefl_flwr.studies.runs import read_lines
from coprefl_flwr.studies.settings import unknown

logger = logging.getLogger("flwr.coprefl")

RECIPE, FAILED, PLACE = "recipe.yaml", "failed.json", "models.txt"
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        status: int = given.run(given)
    except (SettingsError, RunFailedError) as error:
        print(f"coprefl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ncoprefl: stopped; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="coprefl", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a recipe, and report")
    run.add_argument("recipe", type=Path, help="a YAML file, such as those in examples/recipes")
    run.add_argument("--out", type=Path, help="its folder (default: outputs/RECIPE)")
    run.add_argument("--models", type=Path, help="where results lie (default: models beside --out)")
    run.add_argument("--scale", choices=(FULL, SMALL), default=FULL, help="small: minutes on a CPU")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    run.add_argument("--workers", type=int, default=0, help="runs at once, on Ray (default: none)")
    run.add_argument("--tensorboard", type=Path, metavar="DIR", help="write metrics there too")
    run.set_defaults(run=_run)
    report = commands.add_parser("report", help="write tables, figures and a page from results")
    report.add_argument("out", type=Path, help="a recipe's folder")
    report.set_defaults(run=_report)
    listed = commands.add_parser("list", help="what there is")
    listed.add_argument("outputs", type=Path, nargs="?", default=Path("outputs"))
    listed.set_defaults(run=_list)
    show = commands.add_parser("show", help="one starting model and its tasks")
    show.add_argument("name", help="its name in `coprefl list`, or the beginning of it")
    show.add_argument("--models", type=Path, default=Path("outputs/models"))
    show.set_defaults(run=_show)
    return parser


def _run(given: argparse.Namespace) -> int:
    recipe = read_recipe(given.recipe, given.changes, given.scale)
    suffix = "" if given.scale == FULL else f"-{given.scale}"
    out = given.out or Path("outputs") / f"{given.recipe.stem}{suffix}"
    models = given.models or out.parent / "models"
    if given.workers < 0:
        raise SettingsError(f"--workers {given.workers}: must be at least 0")
    _check_folder(out, recipe)
    _check_place("--models", models)
    tracker = tensorboard(given.tensorboard.resolve()) if given.tensorboard else None
    runs = check_runs(recipe)
    write_atomically(out / RECIPE, recipe.to_yaml().encode())
    write_atomically(out / PLACE, f"{os.path.relpath(models.resolve(), out.resolve())}\n".encode())
    logger.info("%s: at most %s runs, into %s", recipe.title, len(runs), models)
    store = Store(models.resolve())
    with quiet_flower():
        failed = run_recipe(recipe, store, _maker(store, given.workers, tracker))
    write_atomically(out / FAILED, json.dumps(failed, indent=1, sort_keys=True).encode())
    _write(recipe, store, failed, out)
    for key, problem in failed.items():
        print(f"coprefl: {key} failed: {problem}", file=sys.stderr)
    return 1 if failed else 0


def _maker(store: Store, workers: int, tracker: Tracker | None) -> Make:
    return OnRay(store, workers, tracker) if workers else InProcess(store, tracker)


def _check_place(option: str, folder: Path) -> None:
    """Raise a SettingsError if no such folder can be made."""
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise SettingsError(f"{option}: {place} is a file, not a folder")


def _check_folder(out: Path, recipe: Recipe) -> None:
    """Raise a SettingsError if the folder is of another recipe."""
    _check_place("--out", out)
    kept = out / RECIPE
    if not kept.exists():
        return
    before = read_recipe(kept)
    if (before.title, before.notes) != (recipe.title, recipe.notes):
        scale = " at another scale" if before.title == recipe.title else ""
        raise SettingsError(
            f"{out} holds the results of '{before.title}'{scale}; give another folder with --out"
        )


def _report(given: argparse.Namespace) -> int:
    if not (given.out / RECIPE).exists():
        known = [str(path.parent) for path in given.out.parent.glob(f"*/{RECIPE}")]
        raise SettingsError(unknown("recipe's folder", str(given.out), known))
    recipe = read_recipe(given.out / RECIPE)
    place = given.out / PLACE
    store = Store(given.out / place.read_text().strip() if place.exists() else given.out / "models")
    if not store.root.is_dir():
        raise SettingsError(f"{given.out}: its results are not at {store.root}")
    kept = given.out / FAILED
    failed: Failures = json.loads(kept.read_text()) if kept.exists() else {}
    _write(recipe, store, failed, given.out)
    return 0


def _write(recipe: Recipe, store: Store, failed: Failures, out: Path) -> None:
    report = collect(recipe, store, failed)
    page = write_report(report, out / "report")
    for comparison in report.comparisons:
        print(text_tables(comparison))
    print(f"tables and figures: {page}")


def _list(given: argparse.Namespace) -> int:
    if not given.outputs.is_dir():
        raise SettingsError(f"there is no folder {given.outputs}")
    for path in sorted(given.outputs.glob(f"*/{RECIPE}")):
        recipe = read_recipe(path)
        state = "reported" if (path.parent / "report" / "index.html").exists() else "under way"
        print(f"{path.parent}  {recipe.title}  ({state})")
    for model in sorted(given.outputs.glob("models/*/model.json")):
        tasks = len(list(model.parent.glob("tasks/*.json")))
        start = json.loads(model.read_text())["start"]
        print(f"  {model.parent.name}  {start}  {tasks} tasks")
    for result in sorted(given.outputs.glob(f"models/*/{RESULT}")):
        print(f"  {result.parent.name}  {_about(result)['settings']['method']}  personalised")
    return 0


def _about(result: Path) -> dict[str, Any]:
    """Return how a personalised result was made."""
    found: dict[str, Any] = json.loads((result.parent / ABOUT).read_text())
    return found


def _show(given: argparse.Namespace) -> int:
    kept = [*given.models.glob("*/model.json"), *given.models.glob(f"*/{RESULT}")]
    names = sorted(path.parent.name for path in kept)
    found = [name for name in names if name.startswith(given.name)]
    if not found:
        raise SettingsError(unknown("run", given.name, names))
    if len(found) > 1:
        raise SettingsError(f"'{given.name}' begins {len(found)} runs; give more of the name")
    folder = given.models / found[0]
    print(f"{folder}")
    if (folder / RESULT).exists():
        _show_personal(folder / RESULT)
    else:
        _show_start(folder)
    return 0


def _show_start(folder: Path) -> None:
    """Print how a starting model was made, and what its tasks came to."""
    about = json.loads((folder / "model.json").read_text())
    for phase in about["phases"] or [{"method": "random"}]:
        own = [f"{k} = {v}" for k, v in phase.items() if k != "method" and v != ""]
        print(f"  {phase['method']}" + (f": {', '.join(own)}" if own else ""))
    print(f"  {about['model']}, {about['num-classes']} classes, seed {about['settings']['seed']}")
    rounds = read_lines(folder / "rounds.jsonl")
    if rounds:
        last = {k: v for k, v in rounds[-1].items() if isinstance(v, int | float) and k != "round"}
        print(f"  after round {rounds[-1]['round']}:")
        for key, value in last.items():
            print(f"    {key} = {value:.6g}")
    for file in sorted(folder.glob("tasks/*.json")):
        rows = json.loads(file.read_text())["rows"]
        accuracies = [100 * row["correct"] / row["n"] for row in rows]
        mean = sum(accuracies) / len(accuracies)
        print(f"  task {file.stem.partition('-')[0]}: {mean:.1f} % over {len(rows)} clients")


def _show_personal(result: Path) -> None:
    """Print how a personalised result was made, and each client's accuracy."""
    about, found = _about(result), json.loads(result.read_text())
    settings = about.pop("settings")
    own = [f"{k} = {v}" for k, v in about.items() if k not in ("method", "versions") and v != ""]
    print(f"  {about['method']}: {', '.join(own)}")
    print(f"  backbones {settings['backbones']}, seed {settings['seed']}")
    for row, domain in zip(found["rows"], found["domains"], strict=True):
        print(f"  client {row['client']}, {domain}: {100 * row['correct'] / row['n']:.1f} %")


if __name__ == "__main__":
    sys.exit(main())
