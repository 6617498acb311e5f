"""Verdicts on the claims of a paper: paired differences over seeds, and two families of t tests.

For each claim, a seed gives one difference: of the means over its tasks, which share a pre-trained
model, or of the logarithms of these means. For the K claims of a paper, two things are tested:

- that there is a difference, by two-sided paired t tests;
- that the difference is within the claim's margin, by two one-sided t tests; the larger p counts
  (Schuirmann, A comparison of the two one-sided tests procedure, 1987).

In each of the two families the chance of a false verdict is 5 % for all K claims together: the
smallest p is compared with 5 % / K, the next with 5 % / (K - 1), and so on until the first p that
is not below its limit (Holm, A simple sequentially rejective multiple test procedure, 1979). A
claim that is not measured yet counts in K.

The t tests assume normal differences. With 20 seeds and ten claims, the chance stays at 5 % if both
rows are as skewed as an exponential distribution, because their difference is then symmetric, and
if the differences have a skewness of 0.5. It rises to 10 % at a skewness of 1, and to about 20 % at
a skewness of 2 (tests/examples/test_verdicts.py).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from coprefl_flwr.report.statistics import Summary, summarise

ERROR = 0.05  # the chance of a false verdict in a family
POWER = 0.8
MIN_SEEDS = 3  # fewer have no interval
MOST_SEEDS = 1000  # more are not counted
HOLDS, OTHERWISE, NOTHING = "holds", "the other way round", "no difference that matters"
LESS, OPEN = ", by less than matters", "open"


def holm(p_values: Any) -> Any:
    """Return which tests along the last axis are significant after Holm; nan is not significant."""
    p_values = np.nan_to_num(p_values, nan=1.0)
    order, tests = np.argsort(p_values, axis=-1), p_values.shape[-1]
    below = np.take_along_axis(p_values, order, -1) * np.arange(tests, 0, -1) <= ERROR
    found = np.empty_like(below)
    np.put_along_axis(found, order, np.logical_and.accumulate(below, axis=-1), -1)
    return found


def decide(mean: Any, std: Any, seeds: Any, margin: Any) -> Any:
    """Return the verdicts on the claims along the last axis.

    `mean` and `std` describe the differences, which are above 0 if the claim is right; nan means
    not measured.
    """
    size, error = np.abs(mean), np.asarray(std) / np.sqrt(seeds)
    differs = holm(2 * stats.t.sf(size / error, seeds - 1))
    small = holm(stats.t.sf((margin - size) / error, seeds - 1))
    side = np.where(np.asarray(mean) > 0, HOLDS, OTHERWISE)
    known = [differs & small, differs, small]
    return np.select(known, [np.char.add(side, LESS), side, np.full(side.shape, NOTHING)], OPEN)


def interval(found: Summary, confidence: float = 0.95) -> tuple[float, float]:
    """Return the t interval of a mean; nan for too few values, or for equal values."""
    if found.n < MIN_SEEDS or not found.std > 0:
        return math.nan, math.nan
    half = float(stats.t.isf((1 - confidence) / 2, found.n - 1)) * found.std / math.sqrt(found.n)
    return found.mean - half, found.mean + half


def power(seeds: Any, std: float, difference: float, level: float) -> Any:
    """Return the chance that a two-sided paired t test at a level finds a difference."""
    shift, freedom = difference * np.sqrt(seeds) / std, np.asarray(seeds) - 1
    return stats.nct.sf(stats.t.isf(level / 2, freedom), freedom, shift)


def needed_seeds(std: float, margin: float, tests: int) -> int:
    """Return the number of seeds that find a difference of the margin with a power of 80 %.

    The level is that of Holm's first step; if other claims are significant, fewer seeds suffice.
    """
    seeds = np.arange(MIN_SEEDS, MOST_SEEDS + 1)
    enough = np.flatnonzero(power(seeds, std, margin, ERROR / tests) >= POWER)
    return int(seeds[enough[0]]) if len(enough) else MOST_SEEDS


class Verdict(NamedTuple):
    """The result of a claim. Differences are above 0 if the claim is right, nan if not measured."""

    word: str
    mean: float
    low: float  # the 95 % interval of this claim alone
    high: float
    seeds: int
    needs: int = 0  # number of seeds that an open claim would need

    @property
    def decided(self) -> bool:
        """Whether the claim has a verdict."""
        return self.word.startswith((HOLDS, OTHERWISE, NOTHING))


def judge(
    differences: Sequence[Sequence[float]], margins: Sequence[float], wanted: Sequence[int]
) -> list[Verdict]:
    """Return the verdicts on a paper's claims, from one difference per seed.

    `wanted` is the planned number of seeds of each claim. A claim with fewer has no verdict.
    """
    found = [summarise(one) for one in differences]
    mean, std, seeds = (np.array(part, float) for part in zip(*found, strict=True))
    whole = (seeds >= np.maximum(wanted, MIN_SEEDS)) & (std > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        words = decide(np.where(whole, mean, np.nan), std, seeds, np.array(margins))
    verdicts = []
    for one, word, margin, number, done in zip(found, words, margins, wanted, whole, strict=True):
        needs = needed_seeds(one.std, margin, len(found)) if done and word == OPEN else 0
        if one.n < number:
            word = f"{one.n} of {number} seeds so far" if one.n else "not measured yet"
        verdicts.append(Verdict(str(word), one.mean, *interval(one), one.n, needs))
    return verdicts
