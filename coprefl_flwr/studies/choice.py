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

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.statistics import Summary, paired


class Cell(NamedTuple):
    """A candidate on a draw, counted from 0; with the tasks of a screen instead of whole tasks."""

    candidate: str
    draw: int
    screen: str = ""


Scores = Mapping[Cell, float]
"""{cell: score}. A higher score is better. It is nan if the training of the start failed."""

SCREENS: Mapping[str, Mapping[str, Any]] = {
    "ridge": {"head": "ridge", "task-rounds": 0},
    "ncm": {"head": "ncm", "task-rounds": 0},
    "one round": {"task-rounds": 1},
}
"""Settings of cheap tasks, by name: two computed last layers, and one round of training."""

FIRST, SECOND, LOOK = 2, 1, 5
"""Draws with all candidates; further draws with the best of them; draws of the finalists before the
look."""
SCREENED, KEPT = 0.8, 0.3
"""Shares of the candidates that remain after the screens and the first draws, at least two."""
LEVEL, EARLY, HOPELESS = 0.05, 0.01, 0.5
"""Level of the test; p-values below and above which the look ends the comparison."""
DRAWS, FEWEST = 12, 5
"""The largest number of draws by default, and the smallest that can be set."""

NOT_COMPARED = Summary(math.nan, math.nan, 0)


@dataclass(frozen=True)
class Dropped:
    """A candidate that left: after how many draws (0: the screens), and whether it failed."""

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
    names : the finalists, and the reference, without those that failed
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


class _MissingError(Exception):
    """Cells without a score."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = tuple(cells)


def choose(
    candidates: Sequence[str],
    scores: Scores,
    draws: int = DRAWS,
    reference: str = "",
    screens: Sequence[str] = (),
) -> Choice:
    """Return the state of a choice: the cells to compute next, or the finalists' difference.

    `draws` is the largest number of draws. `reference` is a candidate that is also run on the draws
    that compare the finalists, so that a report can compare them with it. `screens` are run on the
    first draw, before whole tasks.
    """
    dropped: list[Dropped] = []
    alive, done = list(candidates), 0

    def keep(qualities: Any, most: int) -> None:
        """Keep the best candidates that are alive; those whose quality is nan have failed."""
        nonlocal alive
        order = sorted(range(len(alive)), key=lambda n: (np.isnan(qualities[n]), -qualities[n]))
        kept = [n for n in order[:most] if not np.isnan(qualities[n])]
        left = (n for n in order if n not in kept)
        dropped.extend(Dropped(alive[n], done, bool(np.isnan(qualities[n]))) for n in left)
        alive = [alive[n] for n in kept]

    try:
        if screens:
            keep(_screened(_of(scores, alive, [0], screens)), kept(len(candidates), SCREENED))
        for more, most in ((FIRST, kept(len(candidates))), (SECOND, 2)):
            done += more
            if alive:
                keep(_of(scores, alive, range(done)).mean(axis=1), most)
        if len(alive) < 2:
            return Choice((), tuple(alive), tuple(alive), dropped=tuple(dropped))
        lost = [left.candidate for left in dropped if left.failed]
        names = tuple(dict.fromkeys([*alive, *({reference} & {*candidates} - {*lost})]))
        for end in (done + LOOK, draws):
            of = range(done, min(end, draws))
            values = _of(scores, names, of)
            difference, p = paired(*values[:2])
            if end < draws and not EARLY <= p <= HOPELESS:  # It is nan if a finalist failed.
                break
    except _MissingError as missing:
        return Choice(missing.cells, dropped=tuple(dropped))
    lost = [name for name, own in zip(names, values, strict=True) if np.isnan(own).any()]
    names = tuple(name for name in names if name not in lost)
    if {*alive} & {*lost}:
        dropped += [Dropped(name, of.stop, failed=True) for name in alive if name in lost]
        alive = [name for name in alive if name not in lost]
        return Choice((), tuple(alive), names, of, dropped=tuple(dropped))
    if difference.mean < 0:
        difference, alive = difference._replace(mean=-difference.mean), alive[::-1]
    found = p < (LEVEL if end >= draws else EARLY)
    return Choice((), tuple(alive), names, of, difference, found, tuple(dropped))


def kept(candidates: int, share: float | None = None) -> int:
    """Return the number of candidates that remain; `share` is `KEPT` by default."""
    return max(2, math.ceil((KEPT if share is None else share) * candidates))


def _of(
    scores: Scores, candidates: Sequence[str], draws: Iterable[int], screens: Sequence[str] = ("",)
) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Return scores (candidates, draws and screens); raise _MissingError if some are missing."""
    cells = [[Cell(name, n, screen) for n in draws for screen in screens] for name in candidates]
    by_draw = [cell for column in zip(*cells, strict=True) for cell in column]
    if missing := [cell for cell in by_draw if cell not in scores]:
        raise _MissingError(missing)
    return np.array([[scores[cell] for cell in row] for row in cells], dtype=np.float64)


def _screened(scores: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> Any:
    """Return the quality of each candidate in the screens: minus its mean rank."""
    ranks = rankdata(-np.nan_to_num(scores, nan=-np.inf), axis=0).mean(axis=1)
    return np.where(np.isnan(scores).all(axis=1), np.nan, -ranks)


# ---- the budget ----------------------------------------------------------------------------------

UNITS = {"minute": 60, "hour": 3600, "round": 1}


def read_budget(budget: str) -> tuple[float, bool]:
    """Return a budget, "30 minutes", "2 hours" or "5000 rounds", in seconds or rounds.

    The second value says whether it is a time.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *(minute|hour|round)s?", budget.strip())
    if not match or not float(match[1]):
        allowed = '"30 minutes", "2 hours" or "5000 rounds"'
        raise SettingsError(f"budget = {budget!r}: write {allowed}", "budget")
    return float(match[1]) * UNITS[match[2]], match[2] != "round"


def draws_within(cells: float, candidates: int, screens: bool) -> int:
    """Return the number of draws for which a number of cells is enough.

    The finalists and the reference are run on all draws. Raises a SettingsError if the cells are
    not enough for the fewest draws.
    """
    rest = kept(candidates, SCREENED) if screens else candidates
    select = candidates + (FIRST - 1) * rest + SECOND * kept(candidates)
    draws = FIRST + SECOND + math.floor((cells - select) / 3)
    if draws < FEWEST:
        times = (select + 3 * (FEWEST - FIRST - SECOND)) / cells
        raise SettingsError(f"budget: {FEWEST} draws need {times:.1f} times as much", "budget")
    return draws
