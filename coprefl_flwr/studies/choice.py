"""The choice of a starting model: which runs to compute next, and which start they favour.

The procedure is a function of the scores so far, so that an interrupted choice continues in the
same way. A score is the mean of the measure over the tasks of a draw; a draw is one partition with
its tasks (`data-seed`). All candidates that are compared have the same draws.

Draws that choose do not test: the first draws select two finalists, and the other draws compare
them. So the error of the comparison and its interval are those of a paired t test, although the
best of many candidates was taken. There is one look before the last draw, which ends a comparison
that is already clear, or that the remaining draws would hardly decide. The constants were set by
simulations, and on stored results of examples/startbench (see tests/studies/test_choice.py).
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.files import read_json, write_atomically
from coprefl_flwr.report.statistics import Summary, paired

Cell = tuple[str, int]
"""A candidate and a draw, counted from 0."""
Scores = Mapping[Cell, float]
"""{cell: score}. A higher score is better. It is nan if the training of the start failed."""

FIRST, SECOND, LOOK = 2, 1, 5
"""Draws with all candidates; further draws with the best of them; draws of the finalists before the
look."""
KEPT = 0.3
"""Share of the candidates that remain after the first draws, at least two candidates."""
LEVEL, EARLY, HOPELESS = 0.05, 0.01, 0.5
"""Level of the test; p-values below and above which the look ends the comparison."""
DRAWS, FEWEST = 12, 5
"""The largest number of draws by default, and the smallest that can be set."""

NOT_COMPARED = Summary(math.nan, math.nan, 0)


@dataclass(frozen=True)
class Dropped:
    """A candidate that left the choice: after how many draws, and whether its training failed."""

    candidate: str
    draws: int
    failed: bool


@dataclass(frozen=True)
class Choice:
    """The state of a choice.

    Attributes
    ----------
    cells : the cells to compute next, in order of draws; empty if the choice is made
    finalists : the better and the other finalist; one if all others failed
    names : the finalists, and the reference if it was run on the draws that compare them
    compared : the draws that compared the finalists
    difference : of the finalists, the better one minus the other, over these draws
    found : whether the test finds this difference
    dropped : the candidates that left, in this order
    """

    cells: tuple[Cell, ...]
    finalists: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    compared: range = range(0)
    difference: Summary = NOT_COMPARED
    found: bool = False
    dropped: tuple[Dropped, ...] = ()

    @property
    def is_made(self) -> bool:
        """Whether no further runs are needed."""
        return not self.cells


class _MissingError(Exception):
    """Cells without a score."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = tuple(cells)


def choose(
    candidates: Sequence[str], scores: Scores, draws: int = DRAWS, reference: str = ""
) -> Choice:
    """Return the state of a choice: the cells to compute next, or the finalists' difference.

    `draws` is the largest number of draws. `reference` is a candidate that is also run on the draws
    that compare the finalists, so that a report can compare them with it.
    """
    dropped: list[Dropped] = []
    try:
        alive, done = list(candidates), 0
        for more, most in ((FIRST, _kept(len(candidates))), (SECOND, 2)):
            done += more
            alive, left = _best(scores, alive, done, most)
            dropped += left
            names = tuple(dict.fromkeys([*alive, *({reference} & {*candidates})]))
            if len(alive) < 2:
                return Choice((), tuple(alive), names, dropped=tuple(dropped))
        for end in (done + LOOK, draws):
            of = range(done, min(end, draws))
            values = _of(scores, names, of)[:2]
            difference, p = paired(*values)
            if end < draws and (p < EARLY or p > HOPELESS):
                break
    except _MissingError as missing:
        return Choice(missing.cells, dropped=tuple(dropped))
    failed = np.isnan(values).any(axis=1)
    if failed.any():
        dropped += [Dropped(alive[n], of.stop, failed=True) for n in np.flatnonzero(failed)]
        alive = [alive[n] for n in np.flatnonzero(~failed)]
        return Choice((), tuple(alive), names, of, dropped=tuple(dropped))
    if difference.mean < 0:
        difference, alive = difference._replace(mean=-difference.mean), alive[::-1]
    found = p < (LEVEL if end >= draws else EARLY)
    return Choice((), tuple(alive), names, of, difference, found, tuple(dropped))


def _kept(candidates: int) -> int:
    """Return the number of candidates that remain after the first draws."""
    return max(2, math.ceil(KEPT * candidates))


def _of(
    scores: Scores, candidates: Sequence[str], draws: range
) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Return the scores (candidates, draws); raise _MissingError if there are missing ones."""
    cells = [(candidate, draw) for draw in draws for candidate in candidates]
    if missing := [cell for cell in cells if cell not in scores]:
        raise _MissingError(missing)
    rows = [[scores[candidate, draw] for draw in draws] for candidate in candidates]
    return np.array(rows, dtype=np.float64)


def _best(
    scores: Scores, candidates: Sequence[str], draws: int, most: int
) -> tuple[list[str], list[Dropped]]:
    """Return the best candidates over the first draws, and those that leave."""
    means = _of(scores, candidates, range(draws)).mean(axis=1)
    order = sorted(range(len(candidates)), key=lambda n: (np.isnan(means[n]), -means[n]))
    kept = [n for n in order[:most] if not np.isnan(means[n])]
    left = [Dropped(candidates[n], draws, bool(np.isnan(means[n]))) for n in order if n not in kept]
    return [candidates[n] for n in kept], left


# ---- the runs of a choice, and its budget --------------------------------------------------------


Compute = Callable[[Sequence[Cell]], tuple[Scores, float]]
"""A function that runs cells. It returns their scores, and the seconds that all of them take; 0 if
their results were stored before, so that nothing was measured."""


def seconds_of(budget: str) -> float:
    """Return the seconds of a budget such as "30 minutes"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *(minute|hour)s?", budget.strip())
    if not match:
        raise SettingsError(f'budget = {budget!r}: write "30 minutes" or "2 hours"', "budget")
    return float(match[1]) * {"minute": 60, "hour": 3600}[match[2]]


def draws_within(seconds: float, cell: float, candidates: int) -> int:
    """Return the number of draws within a number of seconds, of which each cell needs `cell`.

    The finalists and the reference are run on all draws. Raises a SettingsError if the seconds are
    not enough for the fewest draws.
    """
    select = FIRST * candidates + SECOND * _kept(candidates)
    draws = FIRST + SECOND + math.floor((seconds / cell - select) / 3)
    if draws < FEWEST:
        needed = (select + 3 * (FEWEST - FIRST - SECOND)) * cell / 60
        raise SettingsError(f"budget: {FEWEST} draws need about {needed:.0f} minutes", "budget")
    return draws


def carry_out(
    candidates: Sequence[str], compute: Compute, file: Path, draws: int, budget: str, reference: str
) -> Choice:
    """Run cells until the choice is made.

    `budget` is a time or "". It becomes a number of draws after the first draw that was not stored
    before. This number is written to `file`, so that a continued choice takes the same decisions.

    Raises a RunFailedError if all candidates failed.
    """
    asked = {"budget": budget, "candidates": list(candidates)}
    stored = read_json(file) if budget and file.exists() else {}
    known = not budget or asked.items() <= stored.items()
    draws, scores = min(draws, stored.get("draws", draws) if known else draws), dict[Cell, float]()
    while not (choice := choose(candidates, scores, draws, reference)).is_made:
        first = choice.cells[0][1]
        cells = [cell for cell in choice.cells if known or cell[1] == first]
        new, seconds = compute(cells)
        scores |= new
        if not known and seconds:
            within = draws_within(seconds_of(budget), seconds / len(cells), len(candidates))
            draws, known = min(draws, within), True
            write_atomically(file, json.dumps({**asked, "draws": within}).encode())
    if not choice.finalists:
        raise RunFailedError("the training of every candidate failed")
    return choice
