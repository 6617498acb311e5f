"""`coprefl choose`: choose one of a recipe's methods, with as few of its runs as are needed.

Draw number n of the choice is the run with the recipe's first seed plus n, so that `coprefl run`
and `coprefl choose` share results. A value that a row searches is chosen before, on one validation
draw with the recipe's `validation-seed`, which is never reported.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import replace_files
from coprefl_flwr.models.weights import ABOUT, WEIGHTS
from coprefl_flwr.recipes import notes
from coprefl_flwr.recipes.execute import Failures, Make, run_rows
from coprefl_flwr.recipes.recipe import ALL, TEST, VALIDATION, Recipe, Trial
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import TableRow, table_rows
from coprefl_flwr.report.columns import ACCURACY
from coprefl_flwr.report.frames import frame, measure_of
from coprefl_flwr.studies.choice import Cell, Result, carry_out, read_budget, result_of
from coprefl_flwr.studies.chosen import Chosen
from coprefl_flwr.studies.costs import cost
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.results import frames_of
from coprefl_flwr.studies.settings import STARTS
from coprefl_flwr.studies.store import Store

logger = logging.getLogger("flwr.coprefl")

CHOICE, START = "choice.json", "start"
"""In the folder of a choice: the file with its number of draws, and the folder of the start."""


def check_choice(recipe: Recipe) -> list[Run]:
    """Check and return the runs of the first draw, and those that choose searched values.

    Raises a SettingsError if the recipe compares no starts with tasks, or has several tables.
    """
    choose, rows = recipe.choose, _rows(recipe)
    searched = any(row.searched for row in rows)
    with recipe.placing():
        if recipe.study != STARTS or recipe.settings.get("tasks") == (0,):
            raise SettingsError("choose: needs starting models and their tasks", "study", "tasks")
        if recipe.compared:
            several = ", ".join(recipe.compared)
            raise SettingsError(f"choose: {several}: one value is allowed", *recipe.compared)
        if sum(len(row.trials()) if recipe.select == ALL else 1 for row in rows) < 2:
            raise SettingsError("choose: needs two methods or more", "methods")
        if recipe.select == TEST and searched:
            raise SettingsError(f"choose: select: {TEST}: set {VALIDATION} or {ALL}", "select")
        if searched and 0 <= recipe.validation_seed - _first(recipe) < choose.draws:
            problem = f"validation-seed = {recipe.validation_seed} is a draw of the choice"
            raise SettingsError(f"{problem}: change it", "validation-seed", "seeds")
        if choose.budget:
            read_budget(choose.budget)
    runs = list[Run]()
    for row in rows:
        with recipe.placing(row.row):
            for trial in row.trials():
                of_trial = [*row.short_runs(trial), *row.selection_runs(trial), _run(row, trial)]
                for run in of_trial:
                    run.study.check()
                runs += of_trial
    return runs


def choose_recipe(recipe: Recipe, store: Store, make: Make, out: Path) -> Chosen:
    """Run what the choice needs; write the starting model below `out`, and return the answer."""
    rows = _rows(recipe)
    failed = run_rows([row for row in rows if row.searched], store, make)
    candidates = dict[str, tuple[TableRow, Trial]]()
    for row in rows:
        for trial in row.shown(store):
            if trial is None:
                logger.warning("%s is left out: no value has a score", row.label)
                continue
            ending = f":{trial.chosen}" * bool(recipe.select == ALL and trial.chosen)
            candidates[f"{row.label}{ending}"] = row, trial
    measures = [ACCURACY]

    def compute(cells: Sequence[Cell]) -> tuple[Mapping[Cell, Result], float | None]:
        runs = {(name, draw): _run(*candidates[name], draw) for name, draw in cells}
        stages = [stage for run in runs.values() for stage in run.study.stages]
        left = sum(stage.rounds for stage in stages if not store.has(stage))
        began = time.monotonic()
        failed.update(make(list(runs.values())))
        seconds = time.monotonic() - began
        results = {cell: _result(run, store, failed, recipe) for cell, run in runs.items()}
        rows = [row for stage in stages for row in store.result(stage)["rows"]]
        measures[:] = [measure_of(frame(rows), recipe.headings)] if rows else measures
        return results, seconds * sum(stage.rounds for stage in stages) / left if left else None

    draws, budget = recipe.choose.draws, recipe.choose.budget or ""
    choice, results = carry_out(
        list(candidates),
        compute,
        lambda: measures[0],
        out / CHOICE,
        draws,
        budget,
        recipe.reference,
    )
    runs = {draw: _run(*candidates[name], draw) for name, draw in results}
    of_draws = _with_seeds(recipe, sorted(run.settings.draw for run in runs.values()))
    about = {
        "title": recipe.title,
        "source": recipe.source,
        "command": "coprefl choose FOLDER/recipe.yaml",
        "settings": notes.set_here(recipe),
        "defaults": notes.left_alone(recipe),
        "provenance": notes.provenance(of_draws, store, list(runs.values())),
    }
    chosen = Chosen(choice, results, measures[0], recipe.reference, recipe.margin, page=about)
    folder = store.folder(_run(*candidates[chosen.name]).main)
    files = {name: (folder / name).read_bytes() for name in (WEIGHTS, ABOUT)}
    replace_files(out / START, files, "--out")
    return chosen


def _first(recipe: Recipe) -> int:
    """Return the seed of the first draw."""
    return next(iter(recipe.pairs[0].values()))


def _with_seeds(recipe: Recipe, seeds: Sequence[int]) -> Recipe:
    return recipe.model_copy(update={"seeds": tuple(seeds)})


def _rows(recipe: Recipe) -> list[TableRow]:
    """Return the rows of the candidates, with the first draw as the only reported one.

    The validation draw is drawn like every other draw.
    """
    rows = table_rows(_with_seeds(recipe, [_first(recipe)]))
    return [replace(row, draws_classes=False) for row in rows]


def _run(row: TableRow, trial: Trial, draw: int = 0) -> Run:
    """Return the run of a candidate on a draw, counted from 0."""
    of_draw = _with_seeds(row.recipe, [_first(row.recipe) + draw])
    return replace(row, recipe=of_draw).reported(trial)[0]


def _result(run: Run, store: Store, failed: Failures, recipe: Recipe) -> Result:
    """Return the result of a run; its problem if it failed or its training diverged."""
    problems = [failed.get(run.identity, ""), *notes.problems(store, [run])]
    if problem := next(filter(None, problems), ""):
        return Result(problem=problem)
    rows, rounds = frames_of([(run.label, stage) for stage in run.study.stages], store)
    gradients = cost(run.main).gradients if isinstance(run.main, Pretraining) else 0.0
    return result_of(rows, rounds, gradients, recipe.headings)
