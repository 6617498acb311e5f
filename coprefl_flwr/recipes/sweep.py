"""A recipe's runs: which there are, how searched values are chosen, and making them.

Values are chosen on validation runs: the same pre-training with a seed of its own, and tasks whose
classes no reported task has. The reported runs then use what was chosen, for all seeds.
"""

import functools
import itertools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coprefl_flwr import client_app, plugins, seeds
from coprefl_flwr.data import Datasets, DataSettings
from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.federation.machine import one_thread
from coprefl_flwr.federation.progress import Progress, quiet_flower
from coprefl_flwr.grids import LocalGrid, RayGrid
from coprefl_flwr.options import Value
from coprefl_flwr.recipes.halving import best, shortened
from coprefl_flwr.recipes.protocols import with_step_size
from coprefl_flwr.recipes.recipe import (
    ALL,
    HALVING,
    OPTUNA,
    VALIDATION,
    Candidate,
    Entrant,
    Recipe,
)
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.sampling import asked
from coprefl_flwr.recipes.trackers import followed
from coprefl_flwr.report.columns import STEP_SIZE
from coprefl_flwr.report.frames import frame, task_metrics
from coprefl_flwr.studies.method import START
from coprefl_flwr.studies.store import Store
from coprefl_flwr.studies.study import Track
from coprefl_flwr.studies.study import run as make_stages

logger = logging.getLogger("flwr.coprefl")


@dataclass(frozen=True)
class Contest:
    """A row of one table: the candidates among which its runs are chosen."""

    recipe: Recipe
    combination: Mapping[str, Value]  # the settings of the table
    entrant: Entrant

    @property
    def searched(self) -> bool:
        """Whether one of several values is chosen; with `select: all` each is a row."""
        return self.recipe.select != ALL and len(self.entrant.candidates()) > 1

    @property
    def validated(self) -> bool:
        """Whether runs on tasks of their own choose."""
        return self.searched and self.recipe.select == VALIDATION

    @property
    def halved(self) -> bool:
        """Whether only the values that lead after a quarter of the rounds are run to the end."""
        return self.searched and self.recipe.search_by == HALVING

    @property
    def sampled(self) -> bool:
        """Whether Optuna says which values are run, each after the scores of those before."""
        return self.searched and self.recipe.search_by == OPTUNA

    def shown(self, store: Store) -> Sequence[Candidate | None]:
        """Return the candidates that the table shows: the chosen one, None for none yet, or all."""
        return [choose(store, self)] if self.searched else self.entrant.candidates()

    def reported(self, candidate: Candidate) -> list[Run]:
        """Return the runs of a candidate that the table reports, one per seed."""
        return [self._run(self.combination, candidate, seed) for seed in self.recipe.seeds]

    def deciding(self, candidate: Candidate) -> list[Run]:
        """Return the runs that decide whether the table shows a candidate; they are made first.

        Validation runs have a seed and tasks of their own, on classes that no reported task has.
        Where nothing is chosen, or by the reported results, they are the reported runs.
        """
        if not self.validated:
            return self.reported(candidate)
        config = dict(self.combination)
        classes = ",".join(map(str, self._validated_on))
        config |= {"downstream-classes": f"list:{classes}", "tasks": self.recipe.validation_tasks}
        if not config.get("task-dataset"):
            config["pretraining-classes"] = ""  # All others, which is as many as elsewhere.
        return [self._run(config, candidate, self.recipe.validation_seed)]

    @functools.cached_property
    def _validated_on(self) -> tuple[int, ...]:
        return validation_classes(self.recipe, self.combination)

    def trials(self, candidate: Candidate) -> list[Run]:
        """Return the short runs that decide whether a candidate goes on; none without halving."""
        return [shortened(run) for run in self.deciding(candidate)] if self.halved else []

    def left(self, store: Store) -> list[Candidate]:
        """Return the candidates that go on: with halving the best quarter, in their order.

        With Optuna those that it asks for, as far as is known by now, in the order of their trials.
        """
        if self.sampled:
            return list(self.asked(store))
        candidates = self.entrant.candidates()
        if not self.halved:
            return candidates
        return best(candidates, [mean_score(store, self.trials(one)) for one in candidates])

    def asked(self, store: Store) -> Iterator[Candidate]:
        """Yield the candidates that Optuna asks for; of one not in the store it learns a failure.

        Each is to be run, if it is, before the next one is taken.
        """
        trials, seed = self.recipe.search_trials, self.recipe.validation_seed
        return asked(self.entrant, trials, seed, lambda one: mean_score(store, self.deciding(one)))

    def judged(self, store: Store) -> dict[Candidate, list[Run]]:
        """Return the runs to the end that judge each candidate, as far as is known by now.

        With halving, one that is dropped has none. Nor has one that alone is left, as it is chosen:
        it has the runs that are reported. With Optuna, there are those alone that it asks for.
        """
        candidates, left = self.entrant.candidates(), self.left(store)
        if self.sampled:
            candidates = left
        if self.halved and self.validated and len(left) == 1:
            left = []
        return {one: self.deciding(one) if one in left else [] for one in candidates}

    def _run(self, config: Mapping[str, Value], candidate: Candidate, seed: int) -> Run:
        """Return a candidate's run, of other rounds where the protocol wants equal step sizes."""
        run = Run.of(config, candidate.start, seed)
        reference = self.recipe.reference_start
        if self.recipe.equal != STEP_SIZE or reference is None:
            return run
        return with_step_size(run, Run.of(config, reference, seed))


def validation_classes(recipe: Recipe, config: Mapping[str, Value]) -> tuple[int, ...]:
    """Draw as many classes as the reported tasks have, none of which any of these has.

    Raises a SettingsError if fewer than a task needs are left.
    """
    runs = [Run.of(dict(config), START, seed).settings for seed in recipe.seeds]
    datasets = [Datasets(one.part(DataSettings), one.seed) for one in runs]
    splits = [one.classes for one in datasets]
    taken = {number for _, downstream in splits for number in downstream}
    if runs[0].task_dataset:
        free = set(range(len(datasets[0].loaded[1].classes))) - taken
        room = len(free)
    else:
        free = {number for pretraining, _ in splits for number in pretraining} - taken
        room = len(free) // 2  # As many again are left to pre-train on.
    wanted = min(len(splits[0][1]), room)
    if wanted < runs[0].task_classes:
        raise SettingsError(
            f"select: validation needs {runs[0].task_classes} classes that no reported task has "
            f"and that can be spared, and there are {room}; set select: test",
            "select",
            "task-classes",
        )
    rng = seeds.generator(recipe.validation_seed, "validation-classes")
    return tuple(sorted(int(number) for number in rng.choice(sorted(free), wanted, replace=False)))


def contests(recipe: Recipe) -> list[Contest]:
    """Return the rows of all tables, table by table."""
    rows = itertools.product(recipe.combinations(), recipe.entrants)
    return [Contest(recipe, combination, entrant) for combination, entrant in rows]


@plugins.unchanged()
def check_runs(recipe: Recipe) -> list[Run]:
    """Return every run that the recipe may need, all of them checked.

    Raises a SettingsError for the first that cannot be run as set, with the line of what is wrong.
    """
    found: dict[tuple[str, ...], Run] = {}
    for contest in contests(recipe):
        with recipe.placing(contest.entrant):
            for candidate in contest.entrant.candidates():
                runs = contest.trials(candidate) + contest.deciding(candidate)
                for run in runs + contest.reported(candidate):
                    if found.setdefault(run.keys, run) is run:
                        run.study.check()
    return list(found.values())


def score(store: Store, run: Run) -> float:
    """Return what a run is judged by: mean accuracy over its tasks, or the last test's."""
    if not store.done(run.study.stages):
        return math.nan
    rows = [row for stage in run.measured for row in store.result(stage)["rows"]]
    if rows:
        return float(np.mean(task_metrics(frame(rows))["accuracy"]))
    rounds = store.result(run.main)["rounds"]
    tested = [row["server-accuracy"] for row in rounds if "server-accuracy" in row]
    return float(tested[-1]) if tested else math.nan


def mean_score(store: Store, runs: Sequence[Run]) -> float:
    """Return the mean score of runs; nan if one of them was not run to the end, or of none."""
    return float(np.mean([score(store, run) for run in runs])) if runs else math.nan


@plugins.unchanged()
def choose(store: Store, contest: Contest) -> Candidate | None:
    """Return the candidate with the highest mean score; None if none was run to the end."""
    left = contest.left(store)
    if contest.halved and contest.validated and len(left) == 1:
        return left[0]
    scores = [mean_score(store, contest.deciding(one)) for one in left]
    return None if np.isnan(scores).all() else left[int(np.nanargmax(scores))]


Failures = dict[str, str]
"""{key of a run: why it failed}."""

Make = Callable[[Sequence[Run]], Failures]
"""Makes runs, in this process or on workers."""


def run_recipe(recipe: Recipe, store: Store, make: Make) -> Failures:
    """Make every run of a recipe, first those that decide, then those that were chosen.

    Returns the runs that failed; the others are in the store.
    """
    rows = contests(recipe)
    trials = [run for row in rows for one in row.entrant.candidates() for run in row.trials(one)]
    failed = make(_unlike(trials)) if trials else {}
    failed |= _run_sampled([row for row in rows if row.sampled], store, make)
    first = [run for row in rows for runs in row.judged(store).values() for run in runs]
    failed |= make([run for run in _unlike(first) if run.key not in failed])
    searched = [(row, one) for row in rows if row.searched for one in row.shown(store) if one]
    second = _unlike(run for row, one in searched for run in row.reported(one))
    return failed | make([run for run in second if run.key not in failed])


def _run_sampled(rows: Sequence[Contest], store: Store, make: Make) -> Failures:
    """Make what Optuna asks for: the first trial of every row, then the second, and so on."""
    failed: Failures = {}
    searches = [(row, row.asked(store)) for row in rows]
    while new := [(row, one) for row, search in searches if (one := next(search, None))]:
        failed |= make(_unlike(run for row, one in new for run in row.deciding(one)))
    return failed


def _unlike(runs: Iterable[Run]) -> list[Run]:
    return list({run.keys: run for run in runs}.values())


# ---- making them ---------------------------------------------------------------------------------


@dataclass
class InProcess:
    """Makes runs one after the other in this process, in one thread."""

    store: Store
    tracker: Track | None = None
    progress: Progress = field(default_factory=Progress)

    def __call__(self, runs: Sequence[Run]) -> Failures:
        """Make the runs; what is there is not made again."""
        one_thread()
        self.progress.add([part for run in runs for part in parts(run)])
        failed: Failures = {}
        for run in runs:
            problem = attempt(run, self.store, self.progress, self.tracker)
            if problem:
                logger.warning("%s failed: %s", run.name, problem)
                failed[run.key] = problem
        return failed


def parts(run: Run) -> list[tuple[str, int]]:
    """Return the kind and the rounds of each of a run's stages."""
    return [(stage.kind, stage.rounds) for stage in run.study.stages]


def attempt(
    run: Run,
    store: Store,
    progress: Progress,
    tracker: Track | None = None,
    *,
    keys: Collection[str] | None = None,
    hosts: Sequence[Any] = (),
) -> str:
    """Make a run's stages, without Flower's own account of it; return why it failed, or "".

    `keys` name the stages, if not all. This process is one node; each of `hosts`, which are
    processes of `RayGrid`, is another.
    """
    try:
        with quiet_flower():
            study = run.study
            study.check()
            # Its clients keep their files in the store, as those of `flwr run` in its output-dir.
            config = dict(study.config) | {"output-dir": str(store.base.resolve())}
            make_stages(
                study,
                _grid(config, hosts),
                store,
                progress,
                run_name=run.key,
                only=keys,
                followed=lambda stage: followed(stage, tracker),
            )
    except Exception as error:  # The others go on, whatever it was.
        logger.debug("%s", run.key, exc_info=True)
        return one_line(error)
    return ""


def _grid(config: Mapping[str, Value], hosts: Sequence[Any]) -> LocalGrid:
    if not hosts:
        return LocalGrid(client_app.app, 1, config)
    return RayGrid(client_app.app, 1 + len(hosts), config, hosts=[None, *hosts])
