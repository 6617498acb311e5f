"""What the runs of a recipe take in all, before they are made: row by row, and together.

Counted are stages, as the store keeps them: what two rows need is the first one's, and what is in
the store already is not to be made again. Which searched value will be reported is not known before
it is chosen: the mean of values that can be stands for it.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coprefl_flwr.recipes.calibration import Pace
from coprefl_flwr.recipes.halving import PART
from coprefl_flwr.recipes.recipe import Candidate, Recipe
from coprefl_flwr.recipes.runs import ModelStore, Run
from coprefl_flwr.recipes.sweep import Contest, contests
from coprefl_flwr.studies.efforts import Effort, Engine, effort, engine_of, features
from coprefl_flwr.studies.kept import is_done
from coprefl_flwr.studies.personalised import PersonalStage
from coprefl_flwr.studies.stage import Stage

MOST = 8
"""Values of a row, of those that may be chosen, of which the mean is taken."""

Work = dict[Engine, Effort]
"""What is to be computed with each network."""

Needs = dict[str, Callable[[], tuple[Engine, Effort]]]
"""By key what has to be made, and what that takes."""


@dataclass
class Row:
    """What a row of the recipe's tables takes, in all tables together.

    `deciding` and `reported` are runs, those that are in the store left out.
    """

    label: str
    deciding: float = 0.0
    reported: float = 0.0
    work: Work = field(default_factory=dict)

    @property
    def total(self) -> Effort:
        """What is computed with all networks."""
        return sum(self.work.values(), Effort())

    def seconds(self, paces: dict[Engine, Pace]) -> float:
        """Return how long it takes on one core."""
        return math.fsum(paces[engine].seconds(one) for engine, one in self.work.items())

    def bytes(self, paces: dict[Engine, Pace]) -> float:
        """Return what it leaves on disk."""
        return math.fsum(paces[engine].bytes(one) for engine, one in self.work.items())


@dataclass
class Plan:
    """What a recipe takes; `done` of its stages are in the store and are not counted."""

    rows: list[Row]
    done: int = 0
    mean: bool = False  # whether the mean of searched values stands for what will be chosen

    @property
    def together(self) -> Row:
        """All rows in one."""
        whole = Row("together")
        for row in self.rows:
            whole.deciding += row.deciding
            whole.reported += row.reported
            _add(whole.work, row.work)
        return whole

    @property
    def unknown(self) -> list[str]:
        """The rows of which a method does not say what it computes."""
        return [row.label for row in self.rows if math.isnan(row.total.gradients)]


def plan_of(recipe: Recipe, store: ModelStore) -> Plan:
    """Return what a recipe takes that is not in the store yet; no data need be at hand.

    Raises a SettingsError for a run that cannot be as set, or a dataset whose size is not known.
    """
    counted = _Counter(store)
    rows = {one.label: Row(one.label) for one in recipe.entrants}
    for contest in contests(recipe, outlined=True):
        with recipe.placing(contest.entrant):
            counted.contest(contest, rows[contest.entrant.label])
    return Plan(list(rows.values()), len(counted.done), counted.mean)


class _Counter:
    """Counts each stage once, for the row that needs it first.

    `counted` is how much of a stage is counted: a part where it is not certain that it is made.
    """

    def __init__(self, store: ModelStore) -> None:
        self.store = store
        self.counted: dict[str, float] = {}
        self.done: set[str] = set()
        self.mean = False

    def contest(self, contest: Contest, row: Row) -> None:
        """Add what one row of one table takes."""
        candidates = contest.entrant.candidates()
        if not contest.searched:
            runs = [run for one in candidates for run in contest.reported(one)]
            row.reported += self.add(row, runs)
            return
        trials = [run for one in candidates for run in contest.trials(one)]
        row.deciding += self.add(row, trials)
        left, number = candidates, max(1, len(candidates) // PART)
        if all(map(self.store.done, trials)):  # Or there are none.
            left = contest.left(self.store) or candidates
            number = len(left)
        if not contest.validated:  # What decides is what is reported.
            row.reported += self.share(row, [contest.reported(one) for one in left], number)
            return
        if number > 1 or not contest.halved:
            row.deciding += self.share(row, [contest.deciding(one) for one in left], number)
        known = self.chosen(contest, left)
        row.reported += self.share(row, [contest.reported(one) for one in known], 1)

    def chosen(self, contest: Contest, left: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that can be chosen yet."""
        judged = contest.judged(self.store).values()
        if all(self.store.done(run) for runs in judged for run in runs):
            return [one for one in contest.shown(self.store) if one] or list(left)
        return list(left)

    def share(self, row: Row, groups: Sequence[Sequence[Run]], number: int) -> float:
        """Add what so many of the groups of runs take in the mean; return how many runs that is.

        A stage that all of them have is made in any case. Which are chosen is not known, but those
        of another table are taken to be the same.
        """
        if number == len(groups):
            return self.add(row, [run for runs in groups for run in runs])
        some = groups[:: math.ceil(len(groups) / MOST)]
        needs = [[self.needs(run) for run in runs] for runs in some]
        factor = number / len(some)
        often = Counter(key for group in needs for key in set[str]().union(*group))
        parts = {key: min(1.0, factor * times) for key, times in often.items()}
        found = sum([self.count(row, one, parts) for group in needs for one in group])
        self.mean = self.mean or bool(found)
        return found * factor

    def add(self, row: Row, runs: Iterable[Run]) -> float:
        """Add what runs take; return how many there is something to do for."""
        return sum([self.count(row, self.needs(run), {}) for run in runs])

    def count(self, row: Row, needs: Needs, parts: Mapping[str, float]) -> bool:
        """Add what a run needs, the whole or these parts, and tell whether there was anything."""
        new = False
        for key, work in needs.items():
            part, before = parts.get(key, 1.0), self.counted.get(key, 0.0)
            if part > before:
                new, self.counted[key] = True, part
                engine, one = work()
                _add(row.work, {engine: one * (part - before)})
        return new

    def needs(self, run: Run) -> Needs:
        """Return what a run needs that is not in the store: stages, and features to train on."""
        found: Needs = {}
        for stage in run.study.stages:
            if is_done(self.store.root / stage.key):
                self.done.add(stage.key)
                continue
            found[stage.key] = functools.partial(_work_of, stage)
            if not isinstance(stage, PersonalStage):
                continue
            of = stage.features()
            if not self.store.shared(of).exists():
                found[f"features/{of}"] = functools.partial(features, stage)
        return found


def _work_of(stage: Stage) -> tuple[Engine, Effort]:
    return engine_of(stage), effort(stage)


def _add(work: Work, more: Work) -> None:
    for engine, one in more.items():
        work[engine] = work.get(engine, Effort()) + one
