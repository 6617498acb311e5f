"""The functions of the `coprefl` commands; `coprefl_flwr.cli` reads the command line."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from coprefl_flwr import files
from coprefl_flwr.errors import SettingsError, logger, say
from coprefl_flwr.plugins import without_code
from coprefl_flwr.recipes.choose import START, check_choice, choose_recipe
from coprefl_flwr.recipes.collect import collect
from coprefl_flwr.recipes.execute import executor, run_rows
from coprefl_flwr.recipes.listing import FAILED, PLACE, RECIPE, RUNS, listing, store_of
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.plan import hours, plan_of, plan_text
from coprefl_flwr.recipes.recipe import FULL, Recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.schema import recipe_schema
from coprefl_flwr.recipes.search import check_runs, table_rows
from coprefl_flwr.recipes.trackers import tracker_of
from coprefl_flwr.report import Report, text_tables, write_report
from coprefl_flwr.report.formats import terminal_width
from coprefl_flwr.report.outcome import Outcome, report_of
from coprefl_flwr.report.page import FOLDER as REPORT
from coprefl_flwr.studies.running import Followed
from coprefl_flwr.studies.store import Store, is_done
from coprefl_flwr.testing import check_methods
from coprefl_flwr.testing.app import exchanges_of_app

TEMPLATE = Path(__file__).with_name("new.yaml")

COLUMNS = "columns.json"


def new(options: argparse.Namespace) -> None:
    """Write a first recipe, with every key explained, to NAME.yaml."""
    name: Path = options.name
    path = name if name.suffix in (".yaml", ".yml") else name.with_name(f"{name.name}.yaml")
    with path.open("x", encoding="utf-8") as file:
        file.write(TEMPLATE.read_text(encoding="utf-8"))
    say(f"wrote {path}; run it with `coprefl run {path}`")


def run(options: argparse.Namespace) -> int:
    """Run a recipe, and write its report; return 1 if runs failed."""
    recipe, out, store, tracker = _read(options, "")
    runs, in_use = check_runs(recipe), _IN_USE.format(out)
    with executor(store, options.workers, tracker) as make, files.alone(out / files.LOCK, in_use):
        _begin(out, store, recipe, runs)
        failed = run_rows(table_rows(recipe), store, make)
        files.write_atomically(out / FAILED, json.dumps(failed, indent=1, sort_keys=True).encode())
        _report(collect(recipe, store, failed), out)
    if len(recipe.pairs) == 1 and not failed:
        say("next: add --set 'seeds=[0, 1, 2]' to test the differences over three seeds")
    for identity, problem in failed.items():
        say(f"coprefl: {identity.partition('/')[0]} failed: {problem}", file=sys.stderr)
    return 1 if failed else 0


def choose(options: argparse.Namespace) -> None:
    """Choose one of a recipe's methods, and write the answer and the starting model."""
    recipe, out, store, tracker = _read(options, "-choice")
    runs, in_use = check_choice(recipe), _IN_USE.format(out)
    with executor(store, options.workers, tracker) as make, files.alone(out / files.LOCK, in_use):
        _begin(out, store, recipe, runs)
        chosen = choose_recipe(recipe, store, make, out)
        page = chosen.report(out / REPORT)
    say(f"{chosen}\n\nstart: {out / START}\nreport: {page.resolve().as_uri()}")


_IN_USE = "--out {}: another `coprefl` writes there: choose another"


def _read(options: argparse.Namespace, ending: str) -> tuple[Recipe, Path, Store, Followed]:
    """Return the recipe of a command, the folder of its report, its store, and the tracker.

    The folder's name ends with `ending`, unless the user named the folder.
    """
    recipe = read_recipe(options.recipe, options.changes, options.scale, options.protocol)
    marks = [recipe.protocol, "" if options.scale == FULL else options.scale]
    suffix = "".join(f"-{mark}" for mark in marks if mark) + ending
    out = options.out or Path("outputs") / f"{options.recipe.stem}{suffix}"
    models = options.models or out.parent / "models"
    files.check_own(out, "--out")
    files.check_own(out / REPORT, "--out")
    return recipe, out, Store(models.resolve()), tracker_of(options.tracker, out.resolve())


def _begin(out: Path, store: Store, recipe: Recipe, runs: Sequence[Run]) -> None:
    """Write the files of a recipe's folder before its runs; remove files of killed processes."""
    # First: `--models` may be a folder inside, which a killed process leaves.
    files.own(out, "--out")
    store.root.mkdir(parents=True, exist_ok=True)
    for folder in (out, out / REPORT):
        files.remove_unfinished(folder, below=folder != out)
    files.write_atomically(out / RECIPE, recipe.to_yaml().encode())
    files.write_atomically(out / PLACE, f"{os.path.relpath(store.root, out.resolve())}\n".encode())
    (out / FAILED).unlink(missing_ok=True)  # Written again when all runs have ended.
    files.write_atomically(out / RUNS, json.dumps([run.keys for run in runs]).encode())
    if recipe.own_metrics:
        files.write_atomically(out / COLUMNS, json.dumps(recipe.own_metrics, indent=1).encode())
    done = [all(is_done(store.root / key) for key in run.keys) for run in runs]
    finished = f"{sum(done)} of {len(done)} runs are finished"
    logger.info("%s: %s; results go to %s", recipe.title, finished, store.root)


def plan(options: argparse.Namespace) -> None:
    """Print the runs, rounds, step sizes and bytes of a recipe, and measure its rounds."""
    recipe = read_recipe(options.recipe, options.changes, options.scale, options.protocol)
    plan = plan_of(recipe)
    say(plan_text(recipe, plan))
    for line in hours(plan):
        say(line)


def report(options: argparse.Namespace) -> None:
    """Write the report of a folder of results, or print a comparison of several studies."""
    out, *others = options.out
    if others or not (out / RECIPE).exists():
        of_studies = _tested(report_of(list(map(Outcome.read, options.out))), options)
        if others:
            say(text_tables(of_studies.comparisons[0], terminal_width()))
        else:
            _report(of_studies, out)
        return
    if (out / START).exists():
        raise SettingsError(f"{out}: `coprefl choose` wrote it: the same command writes it again")
    with without_code("coprefl report"):
        own = files.read_json(out / COLUMNS) if (out / COLUMNS).exists() else {}
        recipe, store = read_recipe(out / RECIPE, stored=own), store_of(out)
        if not store.root.is_dir():
            raise SettingsError(f"{out}: the folder of its results, {store.root}, is missing")
        _check_unchanged(out, recipe)
        lost = files.read_json(out / FAILED) if (out / FAILED).exists() else {}
        _report(_tested(collect(recipe, store, lost), options), out)


def _check_unchanged(out: Path, recipe: Recipe) -> None:
    """Raise a SettingsError if the results of a folder's runs have other keys by now."""
    before = {key for keys in files.read_json(out / RUNS) for key in keys}
    reported = [run for row in table_rows(recipe) for run in row.reported(row.trials()[0])]
    if {key for run in reported for key in run.keys} - before:
        problem = "its code or data changed after the run: its report stays as it is"
        raise SettingsError(f"{out}: {problem}; run `coprefl run {out / RECIPE} --out {out}`")


def _tested(report: Report, options: argparse.Namespace) -> Report:
    """Return the report with the reference row that the user named, if any."""
    if options.reference is None:
        return report
    return replace(report, comparisons=[c.against(options.reference) for c in report.comparisons])


def _report(report: Report, out: Path) -> None:
    page = write_report(report, out / REPORT)
    for line in report.warnings:
        logger.warning("%s", line)
    for comparison in report.comparisons:
        say(text_tables(comparison, terminal_width()))
    say(f"\nreport: {page.resolve().as_uri()}")


def check_method(options: argparse.Namespace) -> int:
    """Check methods, and print the results of the checks."""
    return check_methods(options.places, not options.no_flower)


def schema(_: argparse.Namespace) -> None:
    """Print the JSON Schema of a recipe."""
    say(recipe_schema().rstrip())


def list_all(options: argparse.Namespace) -> None:
    """Print the recipes, studies and runs in a folder."""
    say(listing(options.outputs))


COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    **{"new": new, "run": run, "choose": choose, "plan": plan, "report": report},
    **{"list": list_all, "check-method": check_method, "schema": schema},
    "check-app": lambda options: exchanges_of_app(
        options.folder, options.nodes, options.node_config
    ),
}
"""The function of each command, by the command's name; it returns an exit status, or None for 0."""
