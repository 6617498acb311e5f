"""Whether claims hold: intervals of paired differences over seeds, corrected over all of a page.

A claim compares two rows by one metric. Each pre-training seed gives one difference (of the means
over its tasks, which share a pre-trained model). Holm's step-down shares 5 % among the K claims
that can be tested: the r-th smallest of their p-values is judged at 5 % / (K - r + 1), until the
first that is not below, and all others are judged at that one's level. A claim's corrected interval
is the t interval of its mean difference at its level (Holm, A simple sequentially rejective
multiple test procedure, 1979). Where there is no difference at all, some claim of a page is falsely
said to differ on 5 % of pages. The intervals are not simultaneous: all but those of the first
step are narrower than Bonferroni's. Verdicts by a margin, such as that two rows are equal, are read
off the intervals, and are no tests in Holm's order: the 5 % do not cover them.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from coprefl_flwr.report.columns import column
from coprefl_flwr.report.statistics import Summary, paired

ERROR = 0.05  # the chance of a false verdict on a page, where nothing differs
MIN_SEEDS = 3  # fewer give no verdict
MARGIN = 0.5  # percent points: what is smaller is no difference to anybody
_MOST_SEEDS = 1000  # more are not counted

Says = Literal["better", "worse", "equal"]
SAYS: tuple[Says, ...] = ("better", "worse", "equal")
HOLDS, FAILS, OPEN = "holds", "does not hold", "open"


def usual_margin(metric: str) -> float | None:
    """Return half a point for a metric in percent; None for others, of which nobody can say."""
    heading = column(metric)
    return MARGIN if heading.tested and heading.title.endswith("%") else None


@dataclass(frozen=True)
class Question:
    """What a claim says of two rows, and their values: one a seed, the same seeds in both."""

    metric: str
    says: Says  # of the first row, against the second
    margin: float | None  # within which a difference is none, in the metric's unit; None: never
    of: Sequence[float]
    against: Sequence[float]

    def decide(self, low: float, high: float) -> str:
        """Return the verdict where the difference, first row less second, lies between two."""
        margin = self.margin or 0.0
        near = -margin <= low and high <= margin
        if self.says == "equal":
            far = low > margin or high < -margin
            return HOLDS if near else FAILS if far else OPEN
        if (self.says == "better") != (column(self.metric).better == "higher"):
            low, high = -high, -low  # Now what is claimed lies above 0.
        return HOLDS if low > 0 else FAILS if high < 0 or near else OPEN


class Verdict(NamedTuple):
    """What is known of a claim; differences in the metric's unit, nan where there are none."""

    word: str  # HOLDS, FAILS or OPEN
    mean: float  # of the seeds' differences, first row less second
    low: float  # the corrected interval
    high: float
    seeds: int
    needs: str = ""  # what an open one would need


def judge(questions: Sequence[Question]) -> list[Verdict]:
    """Return the verdicts on all claims of a page."""
    found = [_difference(one) for one in questions]
    tested = {at: p for at, (_, p) in enumerate(found) if not math.isnan(p)}
    levels = dict(zip(tested, holm_levels(list(tested.values())), strict=True))
    return [
        _judged(question, difference, levels[at]) if at in levels else _untested(question)
        for at, (question, (difference, _)) in enumerate(zip(questions, found, strict=True))
    ]


def _difference(question: Question) -> tuple[Summary, float]:
    """Return first row less second over seeds, and p; nan where there is nothing to test."""
    difference, p = paired(question.of, question.against)
    every = difference.n == len(question.of)
    return difference, p if every and difference.n >= MIN_SEEDS else math.nan


def holm_levels(p_values: Sequence[float]) -> list[float]:
    """Return the level at which Holm's step-down judges each p-value."""
    levels, level, stopped = [math.nan] * len(p_values), ERROR, False
    for rank, at in enumerate(np.argsort(p_values, kind="stable")):
        if not stopped:
            level = ERROR / (len(p_values) - rank)
            stopped = p_values[at] >= level
        levels[at] = level
    return levels


def half_width(std: float, n: int, level: float) -> float:
    """Return half the t interval, of confidence 1 - level, of a mean of n values with this std."""
    return float(stdtrit(n - 1, 1 - level / 2)) * std / math.sqrt(n)


def _judged(question: Question, found: Summary, level: float) -> Verdict:
    half = half_width(found.std, found.n, level)
    low, high = found.mean - half, found.mean + half
    word = question.decide(low, high)
    needs = _needs(question, found, level) if word == OPEN else ""
    return Verdict(word, found.mean, low, high, found.n, needs)


def _needs(question: Question, found: Summary, level: float) -> str:
    """Say how many seeds would decide it at this level, should mean and spread stay."""

    def decided(n: int) -> bool:  # As the interval narrows, what is decided stays so.
        half = half_width(found.std, n, level)
        return question.decide(found.mean - half, found.mean + half) != OPEN

    counts = range(found.n + 1, _MOST_SEEDS + 1)
    at = bisect.bisect_left(counts, True, key=decided)
    seeds = f"about {counts[at]}" if at < len(counts) else f"more than {_MOST_SEEDS}"
    return f"{seeds} seeds, if mean and spread stay"


def _untested(question: Question) -> Verdict:
    """Return the verdict on what has too few seeds, or no spread to test by."""
    n, mean = len(question.of), paired(question.of, question.against)[0].mean
    never = int((~np.isfinite([question.of, question.against])).any(axis=0).sum())
    if never:
        needs = f"a value that every seed reaches: {never} of {n} never did"
        return Verdict(OPEN, math.nan, math.nan, math.nan, n, needs)
    if n < MIN_SEEDS:
        return Verdict(OPEN, mean, math.nan, math.nan, n, f"at least {MIN_SEEDS} seeds")
    if column(question.metric).tested:
        return Verdict(OPEN, mean, math.nan, math.nan, n, "seeds that differ: these do not")
    # A count, such as what a client sends, is the same whatever the seed: nothing was sampled.
    return Verdict(question.decide(mean, mean), mean, mean, mean, n)
