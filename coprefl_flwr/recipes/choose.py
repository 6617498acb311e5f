"""Choose one of several starting models, with as few runs as are needed.

`studies.choice` decides which runs are needed next; `Candidates` makes them, from a recipe (here)
or from Python objects (`coprefl_flwr.choosing`). Values that are searched are chosen before, by
halving on validation draws.
"""

import contextlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.files import read_json, write_atomically
from coprefl_flwr.recipes import notes
from coprefl_flwr.recipes.collect import collect
from coprefl_flwr.recipes.execute import Failures, Make, run_rows
from coprefl_flwr.recipes.recipe import ALL, HALVING, Recipe, RecipeRow
from coprefl_flwr.recipes.runs import Run, StudyRun
from coprefl_flwr.recipes.search import TableRow, check_runs, table_rows
from coprefl_flwr.report import Report
from coprefl_flwr.studies import choice
from coprefl_flwr.studies.card import save_start
from coprefl_flwr.studies.choice import FIRST, SCREENS, Cell
from coprefl_flwr.studies.chosen import METRICS, Chosen, chosen_of
from coprefl_flwr.studies.settings import STARTS
from coprefl_flwr.studies.store import Store

CHOICE, START = "choice.json", "start"
"""In the folder of a choice: the file with its number of rounds, and the folder of the start."""


@dataclass
class Candidates(ABC):
    """The candidates of a choice, and the runs that were made so far.

    `rows`, of the type SearchedRow, have the candidates and their searched values. `file` stores
    the number of rounds that a budget in minutes became. `draws`, `budget` and `reference` are as
    in a recipe.
    """

    rows: Sequence[Any]
    store: Store
    make: Make
    file: Path
    draws: int
    budget: str
    reference: str
    candidates: dict[str, Any] = field(default_factory=dict, init=False)
    scores: dict[Cell, float] = field(default_factory=dict, init=False)
    problems: dict[str, str] = field(default_factory=dict, init=False)
    failed: Failures = field(default_factory=dict, init=False)
    made: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict), init=False)
    seconds: float = field(default=0.0, init=False)
    measured: int = field(default=0, init=False)  # Rounds that took these seconds.

    @abstractmethod
    def run(self, cell: Cell) -> StudyRun:
        """Return the run of a cell."""

    @abstractmethod
    def report(self, names: Sequence[str], draws: Sequence[int]) -> Report:
        """Return the report of some candidates on these draws."""

    def chosen(self) -> Chosen:
        """Make the runs that the choice needs, and return its answer.

        Raises a SettingsError if the rounds of the budget are not enough for the fewest draws, and
        a RunFailedError if the training of all candidates failed.
        """
        rounds, is_time = choice.read_budget(self.budget) if self.budget else (math.inf, True)
        if not is_time:
            self._draws_within(rounds, len(self.rows), screens=True)
        self.failed |= run_rows([row for row in self.rows if row.searched], self.store, self.make)
        lost, values = list[choice.Dropped](), dict[str, str]()
        for row in self.rows:
            for trial in row.shown(self.store):
                if trial is None:
                    self.problems[row.label] = "no value of its search has a score"
                    lost.append(choice.Dropped(row.label, 0, failed=True))
                    continue
                ending = f":{trial.chosen}" * bool(not row.searched and trial.chosen)
                values |= {row.label: trial.chosen} if row.searched else {}
                fixed = RecipeRow(f"{row.label}{ending}", trial.method, {}, row.row.role)
                self.candidates[fixed.label] = replace(row, row=fixed)
        made = self._choice(list(self.candidates)) if self.candidates else choice.Choice(())
        if not made.finalists:
            raise RunFailedError("the training of every candidate failed")
        made = replace(made, dropped=(*lost, *made.dropped))
        compared = self.report(made.names, made.compared or range(FIRST))
        first = [[Cell(name, draw) for draw in range(FIRST)] for name in self.candidates]
        whole = [cells[0].candidate for cells in first if {*cells} <= self.scores.keys()]
        spent = {name: sum(stages.values()) for name, stages in self.made.items()}
        selected = self.report(whole, range(FIRST))
        return chosen_of(made, compared, selected, self.problems, spent, values)

    def _choice(self, names: Sequence[str]) -> choice.Choice:
        """Make runs until the choice among these candidates is made."""
        screens, draws = self._screens(names), self.draws
        rounds, is_time = choice.read_budget(self.budget) if self.budget else (math.inf, False)
        stored = read_json(self.file) if self.file.exists() else {}
        if stored.get("budget") == self.budget:
            rounds, is_time = stored["rounds"], False
        while True:
            if not is_time and self.budget:
                draws = min(draws, self._draws_within(rounds, len(names), bool(screens)))
            made = choice.choose(names, self.scores, draws, self.reference, screens)
            if not made.cells:
                return made
            first = made.cells[0].draw
            if is_time and first and self.measured:
                # The clock decides once: a choice that continues takes the same decisions.
                rounds, is_time = rounds * self.measured / self.seconds, False
                content = {"budget": self.budget, "rounds": rounds}
                write_atomically(self.file, json.dumps(content).encode())
            else:
                self._make([c for c in made.cells if not is_time or c.draw == first])

    def _draws_within(self, rounds: float, candidates: int, screens: bool) -> int:
        """Return the number of draws for which a number of rounds is enough."""
        runs = [row.reported(row.trials()[0])[0] for row in self.rows]
        each = float(np.mean([run.rounds for run in runs]))
        return choice.draws_within(rounds / each, candidates, screens)

    def _screens(self, names: Sequence[str]) -> list[str]:
        """Return the screens that the tasks allow; none if they would drop no candidate."""
        task = self.run(Cell(names[0], 0)).client_stages[0]
        if task.rounds < 2 or choice.kept(len(names), choice.SCREENED) >= len(names):
            return []
        allowed = []
        for screen in SCREENS:
            with contextlib.suppress(SettingsError):  # Targets that are no classes, for example.
                self.run(Cell(names[0], 0, screen)).study.check()
                allowed.append(screen)
        return allowed

    def _make(self, cells: Sequence[Cell]) -> None:
        """Make the runs of cells, and store their scores and problems."""
        runs = {cell: self.run(cell) for cell in cells}
        stages = [stage for run in runs.values() for stage in run.study.stages]
        left = {stage.key: stage.rounds for stage in stages if not self.store.has(stage)}
        began = time.monotonic()
        self.failed |= self.make(list(runs.values()))
        self.seconds += time.monotonic() - began
        self.measured += sum(left.values())
        for cell, run in runs.items():
            row = self.candidates[cell.candidate]
            self.scores[cell] = row.quality(self.store, [run])
            lines = [self.failed.get(run.identity, ""), *notes.problems(self.store, [run])]
            if problem := next(filter(None, lines), ""):
                self.problems[cell.candidate] = problem
            self.made[cell.candidate] |= {stage.key: stage.rounds for stage in run.study.stages}


# ---- the candidates of a recipe ------------------------------------------------------------------


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
            choice.read_budget(recipe.choose.budget)
        first, validation = _first(recipe), rows[0].recipe.validation_seed
        last = first + recipe.choose.draws - 1
        if any(row.searched for row in rows) and any(first <= seed <= last for seed in validation):
            problem = f"validation-seed = {', '.join(map(str, validation))}: the draws have the"
            raise SettingsError(f"{problem} seeds {first} to {last}", "validation-seed", "seeds")
    return check_runs(recipe, rows)


def choose_recipe(recipe: Recipe, store: Store, make: Make, out: Path) -> Chosen:
    """Run what the choice needs; write the starting model below `out`, and return the answer."""
    limits = recipe.choose.draws, recipe.choose.budget or "", recipe.reference
    candidates = _OfRecipe(_rows(recipe), store, make, out / CHOICE, *limits, recipe)
    chosen = candidates.chosen()
    save_start(store.folder(candidates.run(Cell(chosen.name, 0)).main), out / START)
    return chosen


@dataclass
class _OfRecipe(Candidates):
    """The methods of a recipe.

    Draw number n is the run with the recipe's first seed plus n, so that `coprefl run` and
    `coprefl choose` share results.
    """

    recipe: Recipe

    def run(self, cell: Cell) -> Run:
        """Return the run of a cell."""
        recipe = self._with([cell.candidate], [cell.draw])
        (row,) = table_rows(recipe)
        row = replace(row, combination={**row.combination, **SCREENS.get(cell.screen, {})})
        return row.reported(row.trials()[0])[0]

    def report(self, names: Sequence[str], draws: Sequence[int]) -> Report:
        """Return the report of some candidates on these draws."""
        report = collect(self._with(names, draws), self.store, self.failed)
        return replace(report, command="coprefl choose FOLDER/recipe.yaml")

    def _with(self, names: Sequence[str], draws: Sequence[int]) -> Recipe:
        """Return the recipe with these candidates and draws."""
        rows = tuple(self.candidates[name].row for name in names)
        reference = self.reference if self.reference in names else names[-1]
        metrics = tuple(dict.fromkeys([*METRICS, *self.recipe.metrics]))
        seeds = tuple(_first(self.recipe) + draw for draw in draws)
        changes = {"seeds": seeds, "rows": rows, "reference": reference, "metrics": metrics}
        return self.recipe.model_copy(update=changes)


def _first(recipe: Recipe) -> int:
    """Return the seed of the first draw."""
    return next(iter(recipe.pairs[0].values()))


def _rows(recipe: Recipe) -> list[TableRow]:
    """Return the rows of the candidates, with the first draw as the only reported one.

    There are two validation draws, unless the recipe names more.
    """
    validation = recipe.validation_seed
    if len(validation) == 1:
        validation = validation[0], validation[0] + 1
    changes = {"seeds": (_first(recipe),), "search_by": HALVING, "validation_seed": validation}
    return [replace(row, of_choice=True) for row in table_rows(recipe.model_copy(update=changes))]
