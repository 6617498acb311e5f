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
from typing import NamedTuple

import numpy as np
import pandas as pd

from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.files import read_json, write_atomically
from coprefl_flwr.report import frames
from coprefl_flwr.report.columns import NO_HEADINGS, ColumnSpec, Headings, of_measure
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
    """A candidate that left the choice: after how many draws, and why ("behind" or "failed")."""

    candidate: str
    draws: int
    reason: str


@dataclass(frozen=True)
class Choice:
    """The state of a choice.

    Attributes
    ----------
    cells : the cells to compute next, in order of draws; empty if the choice is made
    finalists : the better and the other finalist; one if all others failed
    compared : the draws that compared the finalists
    difference : of the finalists, the better one minus the other, over these draws
    found : whether the test finds this difference
    dropped : the candidates that left, in this order
    """

    cells: tuple[Cell, ...]
    finalists: tuple[str, ...] = ()
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
        for more, most in ((FIRST, _kept(candidates)), (SECOND, 2)):
            done += more
            alive, left = _best(scores, alive, done, most)
            dropped += left
        if len(alive) < 2:
            return Choice((), tuple(alive), dropped=tuple(dropped))
        compared = list(dict.fromkeys([*alive, *({reference} & {*candidates})]))
        for end in (done + LOOK, draws):
            of = range(done, min(end, draws))
            values = _of(scores, compared, of)[:2]
            difference, p = paired(*values)
            if end < draws and (p < EARLY or p > HOPELESS):
                break
    except _MissingError as missing:
        return Choice(missing.cells, dropped=tuple(dropped))
    failed = np.isnan(values).any(axis=1)
    if failed.any():
        dropped += [Dropped(alive[n], of.stop, "failed") for n in np.flatnonzero(failed)]
        alive = [alive[n] for n in np.flatnonzero(~failed)]
        return Choice((), tuple(alive), of, dropped=tuple(dropped))
    if difference.mean < 0:
        difference, alive = difference._replace(mean=-difference.mean), alive[::-1]
    found = p < (LEVEL if end >= draws else EARLY)
    return Choice((), tuple(alive), of, difference, found, tuple(dropped))


def _kept(candidates: Sequence[str]) -> int:
    """Return the number of candidates that remain after the first draws."""
    return max(2, math.ceil(KEPT * len(candidates)))


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
    reasons = {n: "failed" if np.isnan(means[n]) else "behind" for n in order if n not in kept}
    left = [Dropped(candidates[n], draws, reason) for n, reason in reasons.items()]
    return [candidates[n] for n in kept], left


# ---- the results of cells, and the budget --------------------------------------------------------


class Result(NamedTuple):
    """The result of a start in the tasks of a draw.

    `value` and `worst` are means over tasks: of the measure over clients, and over the worst tenth
    of the clients. `megabytes` and `gradients` (millions) are those of the pre-training. `rounds`
    counts those of pre-training and tasks. `problem` is why the start failed, or "".
    """

    value: float = math.nan
    worst: float = math.nan
    megabytes: float = math.nan
    gradients: float = math.nan
    rounds: int = 0
    problem: str = ""


Results = Mapping[Cell, Result]
Compute = Callable[[Sequence[Cell]], tuple[Results, float | None]]
"""A function that runs cells. It returns their results, and the seconds that all of them take; None
if they were stored already, so that nothing was measured."""


def result_of(
    rows: pd.DataFrame, rounds: pd.DataFrame, gradients: float, headings: Headings = NO_HEADINGS
) -> Result:
    """Return the result of a start from the rows of its tasks' clients, and of all its rounds."""
    metrics = of_measure(["accuracy", "worst-10%"], frames.measure_of(rows, headings).metric)
    value, worst = frames.task_metrics(rows, headings)[metrics].mean(skipna=False)
    sent = frames.pretraining_summary(rounds)["megabytes"].sum()
    of_rounds = rounds["phase"].isin([*frames.PHASES[:2]]).sum()
    return Result(float(value), float(worst), float(sent), gradients / 1e6, int(of_rounds))


def read_budget(text: str) -> tuple[float, str]:
    """Return the amount and the unit of a budget: "seconds" or "rounds"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *(minute|hour|round)s?", text.strip())
    if not match or not float(match[1]):
        allowed = '"30 minutes", "2 hours" or "5000 rounds"'
        raise SettingsError(f"budget = {text!r}: write it as {allowed}", "budget")
    seconds = {"minute": 60, "hour": 3600}.get(match[2])
    return float(match[1]) * (seconds or 1), "seconds" if seconds else "rounds"


def draws_within(budget: float, cell: float, candidates: Sequence[str], draws: int) -> int:
    """Return the largest number of draws within a budget, at most `draws`.

    `cell` is the cost of a cell, in the unit of the budget. The finalists and the reference are
    run on all draws. Raises a SettingsError if the budget is not enough for the fewest draws.
    """
    select = FIRST * len(candidates) + SECOND * _kept(candidates)
    within = FIRST + SECOND + math.floor((budget / cell - select) / 3)
    if within < FEWEST:
        needed = (select + 3 * (FEWEST - FIRST - SECOND)) * cell / budget
        raise SettingsError(f"budget: {needed:.1f} times as much is needed, for {FEWEST} draws")
    return min(within, draws)


def carry_out(
    candidates: Sequence[str],
    compute: Compute,
    measure: Callable[[], ColumnSpec],
    file: Path,
    draws: int = DRAWS,
    budget: str = "",
    reference: str = "",
) -> tuple[Choice, dict[Cell, Result]]:
    """Run cells until the choice is made; return the choice and the results of the cells.

    The number of draws within `budget` is fixed after the first draw that was not stored before. It
    is written to `file`, so that a continued choice takes the same decisions. `measure` returns the
    column of the results' values, which is known after the first results.

    Raises a RunFailedError if all candidates failed.
    """
    asked = {"budget": budget, "candidates": list(candidates), "at-most": draws}
    stored = read_json(file) if budget and file.exists() else {}
    within = stored["draws"] if asked.items() <= stored.items() else None if budget else draws
    results: dict[Cell, Result] = {}
    while True:
        qualities = {
            cell: math.nan if result.problem else measure().quality(result.value)
            for cell, result in results.items()
        }
        choice = choose(candidates, qualities, within or draws, reference)
        if choice.is_made:
            break
        cells = [cell for cell in choice.cells if within or cell[1] == choice.cells[0][1]]
        of_cells, seconds = compute(cells)
        results |= of_cells
        if within is None:
            amount, unit = read_budget(budget)
            rounds = sum(result.rounds for result in of_cells.values())
            cost = seconds if unit == "seconds" else rounds
            if cost:
                within = draws_within(amount, cost / len(cells), candidates, draws)
                write_atomically(file, json.dumps({**asked, "draws": within}).encode())
    if not choice.finalists:
        problems = {cell: result.problem for cell, result in results.items() if result.problem}
        (name, draw), problem = next(iter(problems.items()))
        raise RunFailedError(f"all candidates failed; {name} in draw {draw}: {problem}")
    return choice, results
