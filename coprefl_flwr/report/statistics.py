"""Means over units, and whether two rows of a table differ by more than chance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation (ddof=1; nan for one value) of the n values there are."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class Paired:
    """Row less reference over the n units that both have, and the p-value of a paired t-test."""

    difference: Summary
    p: float


def summarise(values: Sequence[float]) -> Summary:
    """Summarise what is not nan; an infinite value makes the mean infinite and leaves no std."""
    found = np.array([value for value in values if not math.isnan(value)], dtype=np.float64)
    if not found.size:
        return Summary(math.nan, math.nan, 0)
    mean = float(np.mean(found))
    spread = found.size > 1 and bool(np.isfinite(found).all())
    return Summary(mean, float(np.std(found, ddof=1)) if spread else math.nan, found.size)


def paired(values: Sequence[float], reference: Sequence[float]) -> Paired:
    """Test two-sidedly whether the mean difference over common units is 0.

    The p-value is nan with fewer than two common units, and where all differences are the same to
    rounding: the test has no spread to measure the mean with.
    """
    pairs = np.array([values, reference], dtype=np.float64)
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    differences = pairs[0] - pairs[1]
    summary = summarise(differences.tolist())
    if summary.n < 2 or summary.std <= 1e-12 * float(np.max(np.abs(pairs))):
        return Paired(summary, math.nan)
    return Paired(summary, float(stats.ttest_rel(*pairs).pvalue))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return Holm's step-down adjustment of p-values; those that are nan are no tests.

    The i-th smallest of m is multiplied by m - i + 1, and none is less than the one before it
    (Holm, A simple sequentially rejective multiple test procedure, 1979).
    """
    tested = sorted((p, name) for name, p in p_values.items() if not math.isnan(p))
    adjusted = dict.fromkeys(p_values, math.nan)
    largest = 0.0
    for position, (p, name) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - position) * p))
        adjusted[name] = largest
    return adjusted
