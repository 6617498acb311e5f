"""Check by its losses whether a training diverged, and by its tasks whether a start learnt.

- **diverged**: the loss of the last round of the last phase is not finite, or far above the loss of
  the first round of this phase;
- **did not learn**: the tasks of a start are not better than those of the untrained one.

Both hold for every loss, as they compare a training with itself or with random weights. Where the
other number is missing, nothing is said.
"""

import math
from collections.abc import Sequence

import pandas as pd

from coprefl_flwr.report.columns import ACCURACY, ColumnSpec

DIVERGED, NOT_LEARNT = "diverged", "did not learn"
NOT_FINITE = f"{DIVERGED}: loss not finite"
"""The problem of a training whose last loss is not finite."""

Problem = str
"""A phrase that describes a problem of a start, or of a model that was trained from the start."""

CHAINED = "chained"
"""Column of rows of rounds: whether the model passes from client to client in the round."""

UNTRAINED = "random"
"""Name of the start with random weights."""

FAR = 10.0
"""Multiple of the loss of the first round above which a loss has diverged.

In a chain, a client's loss is that of a model which another client has just trained. It can be some
times that of the first round although the model learns.
"""


def problem_of(losses: Sequence[float | None]) -> Problem | None:
    """Return the problem of a training whose rounds have these losses, or None.

    None in the sequence is a loss that is not finite.
    """
    first, last = (losses[0], losses[-1]) if losses else (0.0, 0.0)
    if last is None or not math.isfinite(last):
        return NOT_FINITE
    if first is None or last <= first + (FAR - 1) * abs(first):
        return None
    return f"{DIVERGED}: loss {_shown(last)} (first round: {_shown(first)})"


def not_learnt(by_task: pd.DataFrame, measure: ColumnSpec = ACCURACY) -> dict[str, Problem]:
    """Return {start: problem} of the starts whose tasks are not better than `UNTRAINED`'s.

    `by_task` has the measure of each task, in a row, and start, in a column.
    """
    problems = {}
    for start in map(str, by_task if UNTRAINED in by_task else ()):
        both = by_task[[start, UNTRAINED]].dropna()
        mean, least = both.mean()
        if start != UNTRAINED and measure.quality(mean) <= measure.quality(least):
            places, unit = measure.places([least]), measure.unit
            numbers = f"{mean:.{places}f}{unit} ({UNTRAINED}: {least:.{places}f}{unit})"
            problems[start] = f"{NOT_LEARNT}: {numbers}"
    return problems


def _shown(loss: float) -> str:
    return f"{loss:.3f}" if abs(loss) < 1000 else f"{loss:.3g}"
