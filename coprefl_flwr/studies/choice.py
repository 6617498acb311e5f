"""The choice of a starting model: which runs to compute next, and which start they favour.

The procedure is a function of the scores so far, so that an interrupted choice continues in the
same way. A score is the mean of the measure over the tasks of a draw; a draw is one partition with
its tasks (`data-seed`). All candidates that are compared have the same draws.

Draws that choose do not test: the first draws select two finalists, and the other draws compare
them. So the error of the comparison and its interval are those of a paired t test, although the
best of many candidates was taken. There is one look before the last draw, which ends a comparison
that is already clear, or that the remaining draws would hardly decide. The constants were set on
four of the five settings of examples/startbench, and tested on the fifth.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coprefl_flwr.options import Checked, option
from coprefl_flwr.report.statistics import Summary, paired

Cell = tuple[str, int]
"""A candidate and a draw, counted from 0."""
Scores = Mapping[Cell, float]
"""{cell: score}; nan for a start that failed: its training diverged or it did not learn."""

FIRST, SECOND, LOOK = 2, 1, 5
"""Draws with all candidates; further draws with the best of them; draws of the finalists before the
look."""
KEPT = 0.3
"""Share of the candidates that remain after the first draws, at least two candidates."""
LEVEL, EARLY, HOPELESS = 0.05, 0.01, 0.6
"""Level of the test; p-values below and above which the look ends the comparison."""


@dataclass(frozen=True)
class Rules(Checked):
    """What the user says about a choice.

    Parameters
    ----------
    draws : int
        The budget: the largest number of draws.
    margin : float
        The smallest difference, in units of the measure, that matters to the user.
    better : str
        "higher" or "lower".
    """

    draws: int = option(12, "largest number of draws of a choice", minimum=5)
    margin: float = option(1.0, "smallest difference of two starts that matters", above=0)
    better: str = option("higher", "the better side of the measure", choices=("higher", "lower"))


@dataclass(frozen=True)
class Dropped:
    """A candidate that left the choice: after how many draws, why, and how far behind the leader.

    `behind` is the mean difference over the draws that selected, which overstates it; nan if the
    start failed.
    """

    candidate: str
    draws: int
    reason: str
    behind: float


@dataclass(frozen=True)
class Choice:
    """The state of a choice.

    Attributes
    ----------
    cells : the cells to compute next, in order of draws; empty if the choice is made
    finalists : the leader of the selection and the second
    difference : of the finalists, the better one minus the other, over the draws that compared them
    found : whether the test finds this difference
    dropped : the candidates that left before the comparison
    """

    cells: tuple[Cell, ...]
    finalists: tuple[str, ...] = ()
    difference: Summary = Summary(math.nan, math.nan, 0)
    p: float = math.nan
    found: bool = False
    dropped: tuple[Dropped, ...] = field(default=())

    @property
    def is_made(self) -> bool:
        """Whether no further runs are needed."""
        return not self.cells


class _Missing(Exception):
    """Cells without a score."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = tuple(cells)


def choose(candidates: Sequence[str], scores: Scores, rules: Rules, reference: str = "") -> Choice:
    """Return the state of a choice: the cells to compute next, or the finalists' difference.

    `reference` is a candidate that is also run on the draws that compare the finalists, so that a
    report can compare them with it.
    """
    selection = _Selection(scores, rules)
    dropped: list[Dropped] = []
    try:
        alive, draws = list(candidates), 0
        kept = max(2, math.ceil(KEPT * len(candidates)))
        for more, most in ((FIRST, kept), (SECOND, 2)):
            draws += more
            alive, left = selection.best(alive, draws, most)
            dropped += left
        finalists, compared = tuple(alive), [*alive]
        if reference in candidates and reference not in compared:
            compared.append(reference)
        if len(finalists) < 2:
            return Choice((), finalists, dropped=tuple(dropped))
        for end in (draws + LOOK, rules.draws):
            values = selection.of(compared, range(draws, min(end, rules.draws)))
            difference, p = paired(*values[:2])
            if end < rules.draws and (p < EARLY or p > HOPELESS):
                break
    except _Missing as missing:
        return Choice(missing.cells, dropped=tuple(dropped))
    if difference.mean < 0:
        difference = difference._replace(mean=-difference.mean)
        finalists = finalists[::-1]
    found = p < (LEVEL if end >= rules.draws else EARLY)
    return Choice((), finalists, difference, p, found, tuple(dropped))


@dataclass(frozen=True)
class _Selection:
    """The scores of candidates, of which higher ones are better."""

    scores: Scores
    rules: Rules

    def of(
        self, candidates: Sequence[str], draws: range
    ) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
        """Return the scores (candidates, draws); raise _Missing if there are missing ones."""
        cells = [(candidate, draw) for draw in draws for candidate in candidates]
        if missing := [cell for cell in cells if cell not in self.scores]:
            raise _Missing(missing)
        sign = -1 if self.rules.better == "lower" else 1
        rows = [[sign * self.scores[candidate, draw] for draw in draws] for candidate in candidates]
        return np.array(rows, dtype=np.float64)

    def best(
        self, candidates: Sequence[str], draws: int, most: int
    ) -> tuple[list[str], Iterator[Dropped]]:
        """Return the best candidates over the first draws, and those that leave."""
        means = self.of(candidates, range(draws)).mean(axis=1)
        order = sorted(range(len(candidates)), key=lambda n: (np.isnan(means[n]), -means[n]))
        kept = [n for n in order[:most] if not np.isnan(means[n])]
        leader = means[order[0]]
        left = (
            Dropped(
                candidates[n],
                draws,
                "failed" if np.isnan(means[n]) else "behind",
                float(leader - means[n]),
            )
            for n in order
            if n not in kept
        )
        return [candidates[n] for n in kept], left
