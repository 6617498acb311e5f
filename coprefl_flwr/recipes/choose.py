"""`coprefl choose`: choose one of a recipe's methods, with as few of its runs as are needed.

Draw number n of the choice is the run with the recipe's first seed plus n, so that `coprefl run`
and `coprefl choose` share results. A value that a row searches is chosen before: on one validation
draw with the recipe's `validation-seed`, or with `select: test` on the first draw.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import replace_files
from coprefl_flwr.models.weights import ABOUT, WEIGHTS
from coprefl_flwr.recipes import notes
from coprefl_flwr.recipes.collect import collect
from coprefl_flwr.recipes.execute import Make, run_rows
from coprefl_flwr.recipes.recipe import ALL, Recipe, RecipeRow
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import TableRow, table_rows
from coprefl_flwr.studies.choice import FIRST, Cell, carry_out, seconds_of
from coprefl_flwr.studies.chosen import METRICS, Chosen, chosen_of
from coprefl_flwr.studies.settings import STARTS
from coprefl_flwr.studies.store import Store

logger = logging.getLogger("flwr.coprefl")

CHOICE, START = "choice.json", "start"
"""In the folder of a choice: the file with its number of draws, and the folder of the start."""


def check_choice(recipe: Recipe) -> list[Run]:
    """Check and return the runs of the first draw, and those that choose searched values.

    Raises a SettingsError if the recipe compares no starts with tasks, or has several tables.
    """
    rows = _rows(recipe)
    with recipe.placing():
        if recipe.study != STARTS or recipe.settings.get("tasks") == (0,):
            raise SettingsError("choose: needs starting models and their tasks", "study", "tasks")
        if recipe.compared:
            raise SettingsError(f"choose: {recipe.compared[0]}: one value is allowed", "settings")
        if sum(len(row.trials()) if recipe.select == ALL else 1 for row in rows) < 2:
            raise SettingsError("choose: needs two methods or more", "methods")
        if recipe.choose.budget:
            seconds_of(recipe.choose.budget)
    runs = list[Run]()
    for row in rows:
        with recipe.placing(row.row):
            for trial in row.trials():
                runs += [*row.short_runs(trial), *row.selection_runs(trial), *row.reported(trial)]
            for run in runs:
                run.study.check()
    return runs


def choose_recipe(recipe: Recipe, store: Store, make: Make, out: Path) -> Chosen:
    """Run what the choice needs; write the starting model below `out`, and return the answer."""
    rows = _rows(recipe)
    failed = run_rows([row for row in rows if row.searched], store, make)
    problems, candidates = dict[str, str](), dict[str, RecipeRow]()
    for row in rows:
        for trial in row.shown(store):
            if trial is None:
                logger.warning("%s is left out: no value has a score", row.label)
                continue
            ending = f":{trial.chosen}" * bool(recipe.select == ALL and trial.chosen)
            fixed = RecipeRow(f"{row.label}{ending}", trial.method, {}, row.row.role)
            candidates[fixed.label] = fixed

    def of(names: Sequence[str], draws: Sequence[int]) -> Recipe:
        """Return the recipe with these candidates and draws."""
        seeds = tuple(_first(recipe) + draw for draw in draws)
        rows = tuple(candidates[name] for name in dict.fromkeys(names))
        reference = recipe.reference if recipe.reference in names else names[-1]
        metrics = tuple(dict.fromkeys([*METRICS, *recipe.metrics]))
        changes = {"seeds": seeds, "rows": rows, "reference": reference, "metrics": metrics}
        return recipe.model_copy(update=changes)

    def compute(cells: Sequence[Cell]) -> tuple[Mapping[Cell, float], float]:
        of_cells = {cell: table_rows(of(cell[:1], cell[1:]))[0] for cell in cells}
        runs = {cell: row.reported(row.trials()[0]) for cell, row in of_cells.items()}
        every = [run for of_cell in runs.values() for run in of_cell]
        stages = [stage for run in every for stage in run.study.stages]
        left = sum(stage.rounds for stage in stages if not store.has(stage))
        began = time.monotonic()
        failed.update(make(every))
        seconds = time.monotonic() - began
        scores = {cell: row.quality(store, runs[cell]) for cell, row in of_cells.items()}
        for cell in cells:
            lines = [failed.get(run.identity, "") for run in runs[cell]]
            if problem := next(filter(None, lines + notes.problems(store, runs[cell])), ""):
                problems[cell[0]], scores[cell] = problem, math.nan
        return scores, seconds * sum(stage.rounds for stage in stages) / left if left else 0.0

    names, limits = list(candidates), recipe.choose
    file, budget = out / CHOICE, limits.budget or ""
    choice = carry_out(names, compute, file, limits.draws, budget, recipe.reference)
    parts = of(choice.names, choice.compared or range(FIRST)), of(names, range(FIRST))
    reports = [collect(part, store, failed) for part in parts]
    compared = replace(reports[0], command="coprefl choose FOLDER/recipe.yaml")
    chosen = chosen_of(choice, compared, reports[1], problems)
    (row,) = table_rows(of([chosen.name], [0]))
    folder = store.folder(row.reported(row.trials()[0])[0].main)
    files = {name: (folder / name).read_bytes() for name in (WEIGHTS, ABOUT)}
    replace_files(out / START, files, "--out")
    return chosen


def _first(recipe: Recipe) -> int:
    """Return the seed of the first draw."""
    return next(iter(recipe.pairs[0].values()))


def _rows(recipe: Recipe) -> list[TableRow]:
    """Return the rows of the candidates, with the first draw as the only reported one.

    The validation draw is drawn like every other draw.
    """
    rows = table_rows(recipe.model_copy(update={"seeds": (_first(recipe),)}))
    return [replace(row, draws_classes=False) for row in rows]
