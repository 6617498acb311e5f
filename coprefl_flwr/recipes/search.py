"""Which runs a row of a table needs, and how one of its searched values is chosen.

Values are chosen on validation runs: the same pre-training with its own seed, and tasks whose
classes no reported task has. The reported runs then use what was chosen, for all seeds. There are
three searches: every value is run to the end; halving tries every value for a quarter of the
rounds, and the best quarter of the values continues; Optuna's TPE sampler names one value after the
other. Which values a search has tried is found from the scores in the store each time, so a search
that was interrupted continues, and a run has the same key whichever search asked for it.
"""

import functools
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from coprefl_flwr import plugins, seeds
from coprefl_flwr.data import Datasets, DataSettings
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.named import Named
from coprefl_flwr.options import Value
from coprefl_flwr.recipes.recipe import (
    ALL,
    EVERY,
    HALVING,
    OPTUNA,
    VALIDATION,
    Recipe,
    RecipeRow,
    Trial,
)
from coprefl_flwr.recipes.runs import Run, with_step_size
from coprefl_flwr.report.columns import STEP_SIZE
from coprefl_flwr.report.frames import frame, task_metrics
from coprefl_flwr.studies.method import START, Methods
from coprefl_flwr.studies.store import Store

One = TypeVar("One")

PART = 4
"""With halving, one of this many rounds is run first, and one of this many values continues."""

AT_RANDOM = 4
"""The first one of this many of Optuna's trials is drawn at random."""

AGAIN = 100
"""So often in a row Optuna may name what was tried, before the first of the others is tried."""


@dataclass(frozen=True)
class TableRow:
    """A row of one table, and the trials among which its runs are chosen."""

    recipe: Recipe
    combination: Mapping[str, Value]  # the settings of the table
    row: RecipeRow

    @property
    def searched(self) -> bool:
        """Whether one of several values is chosen; with `select: all` each is a row."""
        return self.recipe.select != ALL and self.row.number > 1

    @property
    def validated(self) -> bool:
        """Whether runs on tasks of their own choose."""
        return self.searched and self.recipe.select == VALIDATION

    @property
    def search_by(self) -> str:
        """How the values are searched; where none are, each is run to the end."""
        return self.recipe.search_by if self.searched else EVERY

    @property
    def label(self) -> str:
        """The row's name."""
        return self.row.label

    def trials(self) -> list[Trial]:
        """Return the row with each combination of the values that are searched."""
        return self.row.trials()

    def shown(self, store: Store) -> Sequence[Trial | None]:
        """Return the trials that the table shows: the chosen one, None for none yet, or all."""
        return [choose(store, self)] if self.searched else self.trials()

    def reported(self, trial: Trial) -> list[Run]:
        """Return the runs of a trial that the table reports, one per seed."""
        return [self._run(self.combination, trial, seed) for seed in self.recipe.seeds]

    def selection_runs(self, trial: Trial) -> list[Run]:
        """Return the runs that decide whether the table shows a trial; they are made first.

        Validation runs have their own seed and tasks, on classes that no reported task has.
        Where nothing is chosen, or by the reported results, they are the reported runs.
        """
        if not self.validated:
            return self.reported(trial)
        config = dict(self.combination)
        classes = ",".join(map(str, self.validation_classes))
        config |= {"downstream-classes": f"list:{classes}", "tasks": self.recipe.validation_tasks}
        if not config.get("task-dataset"):
            config["pretraining-classes"] = ""  # All others, which is as many as elsewhere.
        return [self._run(config, trial, self.recipe.validation_seed)]

    @functools.cached_property
    def validation_classes(self) -> tuple[int, ...]:
        """Draw as many classes as the reported tasks have, none of which any of these has.

        Raises a SettingsError if fewer than a task needs are left.
        """
        runs = [Run.of(self.combination, START, seed).settings for seed in self.recipe.seeds]
        datasets = [Datasets(settings.part(DataSettings), settings.seed) for settings in runs]
        splits = [dataset.classes for dataset in datasets]
        used = {number for _, downstream in splits for number in downstream}
        if runs[0].task_dataset:
            free = set(range(len(datasets[0].loaded[1].classes))) - used
            room = len(free)
        else:
            free = {number for pretraining, _ in splits for number in pretraining} - used
            room = len(free) // 2  # As many again are left to pre-train on.
        wanted = min(len(splits[0][1]), room)
        if wanted < runs[0].task_classes:
            needs = f"select: validation needs {runs[0].task_classes} classes that no reported task"
            spared = f"has and that can be spared, and there are {room}; set select: test"
            raise SettingsError(f"{needs} {spared}", "select", "task-classes")
        rng = seeds.generator(self.recipe.validation_seed, "validation-classes")
        return tuple(sorted(rng.choice(sorted(free), wanted, replace=False).tolist()))

    def batches(self, store: Store) -> Iterator[list[Run]]:
        """Yield the runs to make, each batch chosen by the results of those before."""
        if self.search_by == OPTUNA:
            yield from map(self.selection_runs, self._named(store))
        else:
            if short := [run for trial in self.trials() for run in self.short_runs(trial)]:
                yield short
            finalists = self.finalists(store)
            if not self.is_decided(finalists):
                yield [run for trial in finalists for run in self.selection_runs(trial)]
        if self.searched and (chosen := choose(store, self)):
            yield self.reported(chosen)

    def short_runs(self, trial: Trial) -> list[Run]:
        """Return the runs that decide whether a trial is run to the end, if there are any.

        With halving these are the selection runs with a quarter of the rounds of the pre-training
        and of its tasks, or of a personalised method. Each is its own run: what continues begins
        again.
        """
        halving = self.search_by == HALVING
        return [shortened(run) for run in self.selection_runs(trial)] if halving else []

    def finalists(self, store: Store) -> list[Trial]:
        """Return the trials that are run to the end, as far as the store says which.

        These are the best quarter with halving, in their order, and those that Optuna names.
        """
        trials = self.trials()
        if self.search_by == HALVING:
            return best(trials, [mean_score(store, self.short_runs(trial)) for trial in trials])
        return list(self._named(store)) if self.search_by == OPTUNA else trials

    def expected(self, store: Store) -> list[Trial]:
        """Return the trials that will be run to the end, or as many where it is not known which."""
        if self.search_by != HALVING:
            return self.finalists(store)
        trials = self.trials()
        done = [store.done(run.study.stages) for trial in trials for run in self.short_runs(trial)]
        return (all(done) and self.finalists(store)) or trials[: max(1, len(trials) // PART)]

    def is_decided(self, finalists: Sequence[Trial]) -> bool:
        """Tell whether a trial is chosen without its selection runs: the only one that is left."""
        return self.search_by == HALVING and self.validated and len(finalists) == 1

    def runs_by_trial(self, store: Store) -> dict[Trial, list[Run]]:
        """Return the selection runs of each trial of the search, as far as is known by now.

        Empty for a trial that halving dropped, or that it chose as the only one left.
        """
        finalists = self.finalists(store)
        decided = self.is_decided(finalists)
        return {
            trial: self.selection_runs(trial) if trial in finalists and not decided else []
            for trial in (finalists if self.search_by == OPTUNA else self.trials())
        }

    def _named(self, store: Store) -> Iterator[Trial]:
        """Yield the trials that Optuna names, each after the scores of those before."""

        def scored(trial: Trial) -> float:
            return mean_score(store, self.selection_runs(trial))

        recipe = self.recipe
        return optuna_trials(self.row, recipe.search_trials, recipe.validation_seed, scored)

    def _run(self, config: Mapping[str, Value], trial: Trial, seed: int) -> Run:
        """Return a trial's run, of other rounds where the protocol wants equal step sizes."""
        run, reference = Run.of(config, trial.method, seed), self.recipe.reference_method
        if self.recipe.equal != STEP_SIZE or reference is None:
            return run
        return with_step_size(run, Run.of(config, reference, seed))


def table_rows(recipe: Recipe) -> list[TableRow]:
    """Return the rows of all tables, table by table."""
    rows = itertools.product(recipe.combinations(), recipe.rows)
    return [TableRow(recipe, combination, row) for combination, row in rows]


@plugins.unchanged()
def check_runs(recipe: Recipe) -> list[Run]:
    """Return every run that the recipe may need, all of them checked.

    Raises a SettingsError for the first that cannot be run as set, with the line of what is wrong.
    """
    runs: dict[tuple[str, ...], Run] = {}
    for row in table_rows(recipe):
        with recipe.placing(row.row):
            for trial in row.trials():
                first = row.short_runs(trial) + row.selection_runs(trial)
                for run in first + row.reported(trial):
                    if runs.setdefault(run.keys, run) is run:
                        run.study.check()
    return list(runs.values())


def score(store: Store, run: Run) -> float:
    """Return what a run is judged by: mean accuracy over its tasks, or the last test's."""
    if not store.done(run.study.stages):
        return math.nan
    rows = [row for stage in run.client_stages for row in store.result(stage)["rows"]]
    if rows:
        return float(np.mean(task_metrics(frame(rows))["accuracy"]))
    rounds = store.result(run.main)["rounds"]
    tested = [row["server-accuracy"] for row in rounds if "server-accuracy" in row]
    return float(tested[-1]) if tested else math.nan


def mean_score(store: Store, runs: Sequence[Run]) -> float:
    """Return the mean score of runs; nan if one of them was not run to the end, or of none."""
    return float(np.mean([score(store, run) for run in runs])) if runs else math.nan


@plugins.unchanged()
def choose(store: Store, row: TableRow) -> Trial | None:
    """Return the trial with the highest mean score; None if none was run to the end."""
    finalists = row.finalists(store)
    if row.is_decided(finalists):
        return finalists[0]
    scores = [mean_score(store, row.selection_runs(trial)) for trial in finalists]
    return None if np.isnan(scores).all() else finalists[int(np.nanargmax(scores))]


# ---- the searches --------------------------------------------------------------------------------


def quarter(rounds: int) -> int:
    """Return the rounds of a short run, rounded up."""
    return math.ceil(rounds / PART)


def shortened(run: Run) -> Run:
    """Return a run with a quarter of the rounds, also of those that a method sets for itself."""

    def cut_own(phase: Named) -> Named:
        own = dict(phase.options).get("rounds")
        return phase.having({"rounds": quarter(own)}) if isinstance(own, int) else phase

    own = Methods(method.changed(cut_own) for method in run.settings.method)
    rounds, of_tasks = run.settings.rounds, run.settings.task_rounds
    cut = replace(run.settings, method=own, rounds=quarter(rounds), task_rounds=quarter(of_tasks))
    return replace(run, settings=cut)


def best(trials: Sequence[One], scores: Sequence[float]) -> list[One]:
    """Return the best quarter, rounded down and at least one, in their order.

    Of equals the first are taken; one without a score, nan, is never among them.
    """
    scored = [at for at, value in enumerate(scores) if not math.isnan(value)]
    first = sorted(scored, key=lambda at: -scores[at])[: max(1, len(trials) // PART)]
    return [trials[at] for at in sorted(first)]


def optuna_trials(
    row: RecipeRow, number: int, seed: int, score: Callable[[Trial], float]
) -> Iterator[Trial]:
    """Yield the trials that Optuna names, at most `number`, each once.

    `score` gives what a trial came to, nan if it failed, before the next one is named.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution, IntDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=-(-number // AT_RANDOM))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    # The sampler takes near positions to be alike: numbers are ordered by size, words not at all.
    ordered: dict[str, list[Value]] = {}
    space: dict[str, Any] = {}
    for key, values in row.options.items():
        ordered[key], space[key] = list(values), CategoricalDistribution(range(len(values)))
        if all(type(value) in (int, float) for value in values):
            ordered[key], space[key] = sorted(values), IntDistribution(0, len(values) - 1)
    combinations = itertools.product(*row.options.values())
    untried = dict(zip(combinations, row.trials(), strict=True))
    scores: dict[tuple[Value, ...], float] = {}
    again = 0
    while untried and len(scores) < number:
        proposal = study.ask(space)
        values = tuple(ordered[key][at] for key, at in proposal.params.items())
        if trial := untried.pop(values, None):
            again = 0
            yield trial
            scores[values] = score(trial)
        elif (again := again + 1) == AGAIN:
            first = zip(ordered, next(iter(untried)), strict=True)
            study.enqueue_trial({key: ordered[key].index(value) for key, value in first})
        failed = math.isnan(scores[values])
        state = optuna.trial.TrialState.FAIL if failed else None
        study.tell(proposal, None if failed else scores[values], state=state)


def check_installed(search_by: str) -> None:
    """Raise a SettingsError if Optuna is to search, and is not installed."""
    if search_by == OPTUNA and importlib.util.find_spec("optuna") is None:
        problem = "search-by: optuna needs the package: pip install 'coprefl-flwr[optuna]'"
        raise SettingsError(problem, "search-by")


def optuna_version() -> str:
    """Return the version of Optuna, on which the values that are tried depend."""
    import optuna

    return str(optuna.__version__)
