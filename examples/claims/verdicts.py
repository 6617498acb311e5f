"""Whether a paper's claims hold: paired differences over seeds, and two families of t tests.

A seed gives a claim one difference, of the means over its tasks, which share a pre-trained model;
or of the logarithms of these means. Of the K claims of a paper two things are tested:

- that there is a difference, by two-sided paired t tests;
- that the difference is within the claim's margin, by two one-sided t tests, of which the larger p
  counts (Schuirmann, A comparison of the two one-sided tests procedure, 1987).

In each of the two families the chance of a false verdict is 5 % for all K claims together: the
smallest p is compared with 5 % / K, the next with 5 % / (K - 1), and so on until the first that is
not below (Holm, A simple sequentially rejective multiple test procedure, 1979). A claim that was
not measured yet counts in K.

The t tests suppose normal differences. With 20 seeds and ten claims the 5 % are kept where both
rows are as skewed as an exponential, which leaves their difference symmetric, and where differences
have a skewness of 0.5. Of papers whose differences have mean 0 and a skewness of 1 up to 10 % have
a false verdict, and about 20 % at a skewness of 2 (tests/examples/test_verdicts.py).
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
    """Return which of the tests along the last axis hold together; nan is a test that does not."""
    p_values = np.nan_to_num(p_values, nan=1.0)
    order, tests = np.argsort(p_values, axis=-1), p_values.shape[-1]
    below = np.take_along_axis(p_values, order, -1) * np.arange(tests, 0, -1) <= ERROR
    found = np.empty_like(below)
    np.put_along_axis(found, order, np.logical_and.accumulate(below, axis=-1), -1)
    return found


def decide(mean: Any, std: Any, seeds: Any, margin: Any) -> Any:
    """Return the verdicts on the claims along the last axis.

    `mean` and `std` are those of differences, above 0 as claimed; nan is not measured.
    """
    size, error = np.abs(mean), np.asarray(std) / np.sqrt(seeds)
    differs = holm(2 * stats.t.sf(size / error, seeds - 1))
    small = holm(stats.t.sf((margin - size) / error, seeds - 1))
    side = np.where(np.asarray(mean) > 0, HOLDS, OTHERWISE)
    known = [differs & small, differs, small]
    return np.select(known, [np.char.add(side, LESS), side, np.full(side.shape, NOTHING)], OPEN)


def interval(found: Summary, confidence: float = 0.95) -> tuple[float, float]:
    """Return the t interval of a mean; nan for too few values, or such as do not differ."""
    if found.n < MIN_SEEDS or not found.std > 0:
        return math.nan, math.nan
    half = float(stats.t.isf((1 - confidence) / 2, found.n - 1)) * found.std / math.sqrt(found.n)
    return found.mean - half, found.mean + half


def power(seeds: Any, std: float, difference: float, level: float) -> Any:
    """Return the chance that a two-sided paired t test at a level finds a difference."""
    shift, freedom = difference * np.sqrt(seeds) / std, np.asarray(seeds) - 1
    return stats.nct.sf(stats.t.isf(level / 2, freedom), freedom, shift)


def needed_seeds(std: float, margin: float, tests: int) -> int:
    """Return how many seeds find a difference of the margin with a power of 80 %.

    At the level of Holm's first step among so many tests: where others hold, fewer do.
    """
    seeds = np.arange(MIN_SEEDS, MOST_SEEDS + 1)
    enough = np.flatnonzero(power(seeds, std, margin, ERROR / tests) >= POWER)
    return int(seeds[enough[0]]) if len(enough) else MOST_SEEDS


class Verdict(NamedTuple):
    """What is known of a claim: differences above 0 as claimed, nan where there are none."""

    word: str
    mean: float
    low: float  # the 95 % interval, of this claim alone
    high: float
    seeds: int
    needs: int = 0  # seeds of an open one

    @property
    def decided(self) -> bool:
        """Whether it is neither open nor to be measured."""
        return self.word.startswith((HOLDS, OTHERWISE, NOTHING))


def judge(
    differences: Sequence[Sequence[float]], margins: Sequence[float], wanted: Sequence[int]
) -> list[Verdict]:
    """Return the verdicts on a paper's claims, from a difference a seed, above 0 as claimed.

    `wanted` is how many seeds each was to have: a claim has no verdict before it has them all.
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
