"""The runs that a row of a table needs, and the choice of its searched values.

Values are chosen on validation runs: the same pre-training with a separate seed, and tasks whose
classes no reported task has. The reported runs of all seeds then use the chosen value. There are
two searches. "all" runs every value for all rounds. "halving" runs every value for a quarter of
the rounds, and then the best quarter of the values for all rounds. A search reads all scores from
the store, so an interrupted search continues. The key of a run does not depend on the search.
A score is a mean of the study's measure (see `report.columns`), or the last test result.
"""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from coprefl_flwr import seeds
from coprefl_flwr.data import Datasets, DataSettings
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.options import Value
from coprefl_flwr.recipes.recipe import ALL, HALVING, VALIDATION, Recipe, RecipeRow, Trial
from coprefl_flwr.recipes.runs import PART, Run, StudyRun, with_step_size
from coprefl_flwr.report.columns import ACCURACY, STEP_SIZE, TESTS, ColumnSpec, Headings
from coprefl_flwr.report.frames import frame, measure_of, task_metrics, tested_by
from coprefl_flwr.studies.results import problems
from coprefl_flwr.studies.store import Store

AnyRun = TypeVar("AnyRun", bound=StudyRun)


class SearchedRow(ABC, Generic[AnyRun]):
    """A method, and the trials among which its runs are chosen."""

    row: RecipeRow
    of_choice: bool
    """Whether the row is a candidate of `coprefl choose`: its validation runs are drawn like those
    of every other draw, and a run that diverged has no score."""
    headings: Headings
    """The titles and better directions of the user's metrics, by column."""

    @property
    def label(self) -> str:
        """The row's name."""
        return self.row.label

    @property
    def searched(self) -> bool:
        """Whether one of several values is chosen."""
        return len(self.trials()) > 1

    @property
    def validated(self) -> bool:
        """Whether the value is chosen on validation tasks."""
        return self.searched

    @property
    def halves(self) -> bool:
        """Whether the values are searched by halving."""
        return self.searched

    def trials(self) -> list[Trial]:
        """Return the row with each combination of the values that are searched."""
        return self.row.trials()

    def shown(self, store: Store) -> Sequence[Trial | None]:
        """Return the trials that the table shows: all trials, or the chosen trial or None."""
        return [choose(store, self)] if self.searched else self.trials()

    @abstractmethod
    def reported(self, trial: Trial) -> list[AnyRun]:
        """Return the runs of a trial that are reported, one per seed or pair of seeds."""

    @abstractmethod
    def selection_runs(self, trial: Trial) -> list[AnyRun]:
        """Return the runs whose scores decide whether a trial is chosen."""

    def batches(self, store: Store) -> Iterator[list[AnyRun]]:
        """Yield batches of runs. Each batch depends on the results of the earlier batches."""
        if short := [run for trial in self.trials() for run in self.short_runs(trial)]:
            yield short
        finalists = self.finalists(store)
        if not self.is_decided(finalists):
            yield [run for trial in finalists for run in self.selection_runs(trial)]
        if self.searched and (chosen := choose(store, self)):
            yield self.reported(chosen)

    def short_runs(self, trial: Trial) -> list[AnyRun]:
        """Return the runs that decide whether a trial is run to the end, if there are any.

        With halving these are the selection runs with a quarter of the rounds of the pre-training
        and of its tasks, or of a personalised method. A short run is a separate run: a value that
        is then run to the end starts from round 1.
        """
        return [run.shortened() for run in self.selection_runs(trial)] if self.halves else []

    def finalists(self, store: Store) -> list[Trial]:
        """Return the trials that are run to the end; the scores in the store decide which.

        With halving these are the best quarter, in the recipe's order.
        """
        trials = self.trials()
        if not self.halves:
            return trials
        return best(trials, [self.quality(store, self.short_runs(trial)) for trial in trials])

    def quality(self, store: Store, runs: Sequence[StudyRun]) -> float:
        """Return the mean score of runs; the negative score if lower is better."""
        if self.of_choice and any(problems(run.study, store) for run in runs):
            return math.nan
        value, column = mean_score(store, runs, self.headings)
        return column.quality(value)

    def is_decided(self, finalists: Sequence[Trial]) -> bool:
        """Return whether one trial is left after halving, which is chosen without more runs."""
        return self.halves and self.validated and len(finalists) == 1

    def runs_by_trial(self, store: Store) -> dict[Trial, list[AnyRun]]:
        """Return the selection runs of each trial, by the scores that the store has so far.

        The list is empty for a trial that halving dropped, or chose as the only trial left.
        """
        finalists = self.finalists(store)
        decided = self.is_decided(finalists)
        return {
            trial: self.selection_runs(trial) if trial in finalists and not decided else []
            for trial in self.trials()
        }


@dataclass(frozen=True)
class TableRow(SearchedRow[Run]):
    """A row of one table of a recipe."""

    recipe: Recipe
    combination: Mapping[str, Value]  # the settings of the table
    row: RecipeRow
    of_choice: bool = False

    @property
    def headings(self) -> Headings:  # type: ignore[override]
        """The titles and better directions of the user's metrics, by column."""
        return self.recipe.headings

    @property
    def searched(self) -> bool:
        """Whether one of several values is chosen. With `select: all` each value is a row."""
        return self.recipe.select != ALL and len(self.trials()) > 1

    @property
    def validated(self) -> bool:
        """Whether the value is chosen on validation tasks."""
        return self.searched and self.recipe.select == VALIDATION

    @property
    def halves(self) -> bool:
        """Whether the values are searched by halving."""
        return self.searched and self.recipe.search_by == HALVING

    def reported(self, trial: Trial) -> list[Run]:
        """Return the runs of a trial that the table reports, one per seed or pair of seeds."""
        pairs = self.recipe.pairs
        return [self._run({**self.combination, **pair}, trial, pair["seed"]) for pair in pairs]

    def selection_runs(self, trial: Trial) -> list[Run]:
        """Return the runs whose scores decide whether a trial is chosen; they are executed first.

        Validation runs have separate seeds, and tasks on classes that no reported task has. If
        there is no choice, or if the reported results decide, these are the reported runs.
        """
        if not self.validated:
            return self.reported(trial)
        config = {**self.combination, "tasks": self.recipe.validation_tasks}
        if not self.of_choice:
            classes = ",".join(map(str, self.validation_classes))
            config["downstream-classes"] = f"list:{classes}"
            if not config.get("task-dataset"):
                config["pretraining-classes"] = ""  # All classes that the tasks do not have.
        return [self._run(config, trial, seed) for seed in self.recipe.validation_seed]

    @functools.cached_property
    def validation_classes(self) -> tuple[int, ...]:
        """The validation tasks' classes: as many as the reported tasks have.

        The classes are drawn at random among the classes that no reported task has. Raises a
        SettingsError if fewer classes are left than a task needs.
        """
        runs = [run.settings for run in self.reported(self.trials()[0])]
        datasets = [Datasets(settings.part(DataSettings), settings.draw) for settings in runs]
        splits = [dataset.classes for dataset in datasets]
        used = {number for _, downstream in splits for number in downstream}
        if runs[0].task_dataset:
            free = set(range(len(datasets[0].loaded[1].classes))) - used
            room = len(free)
        else:
            free = {number for pretraining, _ in splits for number in pretraining} - used
            room = len(free) // 2  # The other half is left for the pre-training.
        wanted = min(len(splits[0][1]), room)
        if wanted < runs[0].task_classes:
            needs = f"select: validation needs {runs[0].task_classes} classes of no reported task"
            raise SettingsError(f"{needs}: set select: test", "select", "task-classes")
        rng = seeds.generator(self.recipe.validation_seed[0], "validation-classes")
        return tuple(sorted(rng.choice(sorted(free), wanted, replace=False).tolist()))

    def _run(self, config: Mapping[str, Value], trial: Trial, seed: int) -> Run:
        """Return a trial's run, with changed rounds if the protocol wants equal step sizes."""
        run, reference = Run.of(config, trial.method, seed), self.recipe.reference_method
        run = replace(run, label=":".join(filter(None, (self.label, trial.chosen))))
        if self.recipe.equal != STEP_SIZE or reference is None:
            return run
        return with_step_size(run, Run.of(config, reference, seed))


def table_rows(recipe: Recipe) -> list[TableRow]:
    """Return the rows of all tables, table by table."""
    rows = itertools.product(recipe.combinations(), recipe.rows)
    return [TableRow(recipe, combination, row) for combination, row in rows]


def check_runs(recipe: Recipe, rows: Sequence[TableRow] = ()) -> list[Run]:
    """Check and return every run that these rows may need, by default all rows of the recipe.

    Raises a SettingsError for the first run with wrong settings; it names the line of the recipe.
    """
    runs: dict[tuple[str, ...], Run] = {}
    for row in rows or table_rows(recipe):
        with recipe.placing(row.row):
            for trial in row.trials():
                first = row.short_runs(trial) + row.selection_runs(trial)
                for run in first + row.reported(trial):
                    if runs.setdefault(run.keys, run) is run:
                        run.study.check()
    return list(runs.values())


def score(store: Store, run: StudyRun, headings: Headings) -> tuple[float, ColumnSpec]:
    """Return the score of a run, and its column: the mean of the measure over tasks.

    Without tasks it is the last test accuracy, or the last test loss.
    """
    if not store.done(run.study.stages):
        return math.nan, ACCURACY
    rows = [row for stage in run.client_stages for row in store.result(stage)["rows"]]
    if rows:
        measure = measure_of(frame(rows), headings)
        return float(np.mean(task_metrics(frame(rows), headings)[measure.metric])), measure
    rounds = store.result(run.main)["rounds"]
    test = tested_by(frame(rounds))
    last = next((row[test] for row in reversed(rounds) if test in row), None)
    return math.nan if last is None else float(last), TESTS[test]


def mean_score(
    store: Store, runs: Sequence[StudyRun], headings: Headings
) -> tuple[float, ColumnSpec]:
    """Return the mean score of runs; nan if a run is not finished, or if there are no runs."""
    scores = [score(store, run, headings) for run in runs] or [(math.nan, ACCURACY)]
    return float(np.mean([value for value, _ in scores])), scores[0][1]


def choose(store: Store, row: SearchedRow[Any]) -> Trial | None:
    """Return the trial with the best mean score; None if no trial was run to the end."""
    finalists = row.finalists(store)
    if row.is_decided(finalists):
        return finalists[0]
    scores = [row.quality(store, row.selection_runs(trial)) for trial in finalists]
    return None if np.isnan(scores).all() else finalists[int(np.nanargmax(scores))]


# ---- halving -------------------------------------------------------------------------------------


def best(trials: Sequence[Trial], scores: Sequence[float]) -> list[Trial]:
    """Return the best quarter of the trials in their order: rounded down, and at least one.

    Among equal scores the first trials are taken. Trials with the score nan are never taken.
    """
    scored = [at for at, value in enumerate(scores) if not math.isnan(value)]
    first = sorted(scored, key=lambda at: -scores[at])[: max(1, len(trials) // PART)]
    return [trials[at] for at in sorted(first)]
