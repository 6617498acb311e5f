"""Means over units, and whether two rows of a table differ by more than chance."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats


class Summary(NamedTuple):
    """Mean and sample standard deviation (ddof=1; nan for one value) of the n values there are."""

    mean: float
    std: float
    n: int


def summarise(values: Sequence[float]) -> Summary:
    """Summarise what is not nan; an infinite value makes the mean infinite and leaves no std."""
    found = np.array([value for value in values if not math.isnan(value)], dtype=np.float64)
    if not found.size:
        return Summary(math.nan, math.nan, 0)
    mean = float(np.mean(found))
    spread = found.size > 1 and bool(np.isfinite(found).all())
    return Summary(mean, float(np.std(found, ddof=1)) if spread else math.nan, found.size)


def paired(values: Sequence[float], reference: Sequence[float]) -> tuple[Summary, float]:
    """Return values less reference over the units that both have, and p of a paired t-test.

    The p-value, of the two-sided test whether the mean difference is 0, is nan with fewer than two
    common units, and where all differences are the same to rounding: there is no spread.
    """
    pairs = np.array([values, reference], dtype=np.float64)
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    difference = summarise((pairs[0] - pairs[1]).tolist())
    if difference.n < 2 or difference.std <= 1e-12 * float(np.max(np.abs(pairs))):
        return difference, math.nan
    return difference, float(stats.ttest_rel(*pairs).pvalue)


def holm(p_values: "pd.Series[float]") -> "pd.Series[float]":
    """Return Holm's step-down adjustment of p-values; those that are nan are no tests.

    The i-th smallest of m is multiplied by m - i + 1, and none is less than the one before it
    (Holm, A simple sequentially rejective multiple test procedure, 1979).
    """
    tested = p_values.dropna().sort_values()
    adjusted = (tested * np.arange(len(tested), 0, -1)).clip(upper=1).cummax()
    return adjusted.reindex(p_values.index)
