"""`coprefl plan`: what a recipe takes, before it is run."""

import argparse
import logging
import math
import textwrap
import time
from pathlib import Path

from coprefl_flwr.errors import one_line, say
from coprefl_flwr.recipes.calibration import Pace, paces
from coprefl_flwr.recipes.plan import Plan, Row, plan_of
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.recipe import Recipe
from coprefl_flwr.recipes.runs import ModelStore
from coprefl_flwr.recipes.scale import FULL, SMALL
from coprefl_flwr.recipes.workers import wanted_workers
from coprefl_flwr.report.forms import plain
from coprefl_flwr.report.table import NONE, Column, Number, Table
from coprefl_flwr.studies.efforts import Engine
from coprefl_flwr.studies.study import machine

logger = logging.getLogger("flwr.coprefl")

WIDTH = 80
Paces = dict[Engine, Pace]

_COUNTED = (
    "Runs: those that choose values + those that are reported. Steps: of SGD or Adam. Gradients, "
    "and outputs without one (evaluations, losses, features), are counted by samples. Clients are "
    "taken to hold equally much."
)
_MEAN = " Which searched values will go on is not known: the mean of all stands for them."


def add_plan(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command, with the options of `coprefl run` that change what is run."""
    plan = commands.add_parser("plan", help="say what a recipe takes, before it is run")
    plan.add_argument("recipe", type=Path, help="a YAML file, such as those in examples/recipes")
    plan.add_argument("--out", type=Path, help="as in run")
    plan.add_argument(
        "--models", type=Path, help="where results lie (default: models beside --out)"
    )
    plan.add_argument("--scale", choices=(FULL, SMALL), default=FULL, help="as in run")
    plan.add_argument("--protocol", default="", metavar="NAME", help="as in run")
    plan.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="changes", help="as in run"
    )
    plan.add_argument(
        "--workers", type=int, default=1, metavar="N", help="cores that share it (default: 1)"
    )
    plan.set_defaults(run=_plan)


def _plan(given: argparse.Namespace) -> int:
    workers, _ = wanted_workers(given.workers)
    recipe = read_recipe(given.recipe, given.changes, given.scale, given.protocol)
    out = given.out or Path("outputs") / given.recipe.stem
    store = ModelStore((given.models or out.parent / "models").resolve())
    say(told(recipe, plan_of(recipe, store), workers))
    return 0


def told(recipe: Recipe, plan: Plan, workers: int = 1) -> str:
    """Return a plan as text, after measuring how fast this machine is."""
    whole, began = plan.together, time.monotonic()
    known = paces(list(whole.work)) if whole.work else {}
    took = time.monotonic() - began
    head = ", ".join(filter(None, [recipe.title, recipe.source, recipe.protocol]))
    notes = [_COUNTED + _MEAN * plan.mean]
    if plan.done:
        notes.append(f"{plan.done:,} stages are in the store already, and are not counted.")
    if plan.unknown:
        names = ", ".join(plan.unknown)
        why = "a method does not say how many gradients it computes"
        notes.append(f"Not known because of {names}: {why}.")
    if known:
        notes.append(_in_all(whole, known, workers, took))
    parts = [_table(plan, known), *map(_wrapped, notes), *(_pace(*one) for one in known.items())]
    return "\n".join([_wrapped(head), "", *parts])


def totals(recipe: Recipe, store: ModelStore) -> str:
    """Return what a recipe takes that is about to be run, in one line."""
    try:
        return in_one_line(plan_of(recipe, store))
    except Exception as error:  # It was checked: no sum of sizes keeps it from being run.
        logger.debug("the plan", exc_info=True)
        return f"what it takes is not known ({one_line(error)})"


def in_one_line(plan: Plan) -> str:
    """Return the totals of a plan: "3 + 12 runs to make, 1.2 G gradients, 340 M evaluations"."""
    whole = plan.together
    gradients, forwards = whole.total.gradients, whole.total.forwards
    known = "an unknown number of" if math.isnan(gradients) else _many(gradients)
    work = f"{known} gradients, {_many(forwards)} evaluations"
    done = f", {plan.done:,} stages done before" if plan.done else ""
    return f"{_runs(whole)} runs to make, {work}{done}"


def figures(row: Row, known: Paces) -> dict[str, str]:
    """Return what a row takes as people are told it, by the title of a column."""
    work = row.total
    return {
        "Runs": _runs(row),
        "Steps": _many(work.steps),
        "Gradients": _many(work.gradients),
        "Outputs": _many(work.forwards),
        "Disk": f"{_many(row.bytes(known))}B",
        "Core h": _hours(row.seconds(known) / 3600),
    }


def _table(plan: Plan, known: Paces) -> str:
    rows = [*plan.rows, *([plan.together] if len(plan.rows) > 1 else [])]
    shown = [figures(row, known) for row in rows]
    cells = [Column(title, {"here": [Number(one[title]) for one in shown]}) for title in shown[0]]
    table = Table(["Method"], [[row.label] for row in rows], cells, marks=False)
    return plain(table, WIDTH) + "\n"


def _in_all(whole: Row, known: Paces, workers: int, took: float) -> str:
    """Return the sentence on the time that all of it takes."""
    hours = whole.seconds(known) / 3600
    wall = f", {_duration(hours / workers)} with {workers} workers on as many cores"
    return (
        f"In all {_duration(hours)} on one core{wall * (workers > 1)}, by what this machine "
        f"({machine()}) does in {took:.0f} s of measuring; a busy one takes longer."
    )


def _pace(engine: Engine, pace: Pace) -> str:
    """Return the line on how fast a network is."""
    trained = f"{_milliseconds(pace.gradient)} a gradient, " if engine.batch else ""
    more = f", {_milliseconds(pace.answer)} a client's answer besides" if engine.batch else ""
    text = f"{engine.name}: {trained}{_milliseconds(pace.forward)} an output{more}"
    return textwrap.fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ")


# ---- numbers in words ----------------------------------------------------------------------------


def _runs(row: Row) -> str:
    deciding, reported = f"{row.deciding:.0f}", f"{row.reported:.0f}"
    return f"{deciding} + {reported}" if row.deciding else reported


def _many(number: float) -> str:
    """Return a number in three digits: "1.23 M"."""
    if not number or math.isnan(number):
        return NONE if number else "0"
    number = float(f"{number:.3g}")  # First, as 999,700 is 1 M.
    power = min(max(int(math.log10(max(number, 1)) // 3), 0), 5)
    return f"{number / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}".strip()


def _hours(hours: float) -> str:
    if math.isnan(hours):
        return NONE
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


def _duration(hours: float) -> str:
    """Return a time in the unit that fits."""
    if math.isnan(hours):
        return "an unknown time"
    minutes = hours * 60
    if minutes < 100:
        return f"{minutes:.0f} minutes" if minutes >= 2 else f"{60 * minutes:.0f} seconds"
    return f"{_hours(hours)} hours"


def _milliseconds(seconds: float) -> str:
    found = 1000 * seconds
    return f"{found:,.0f} ms" if found >= 10 else f"{found:.2g} ms"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH)
