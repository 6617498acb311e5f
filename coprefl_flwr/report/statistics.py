"""The metrics of a task's clients, means over units, and tests of the difference of two rows.

The metrics describe how good and how even the results of one task's clients are, as in CoPreFL's
evaluation (AAAI text, Section 4.1, and its appendix). A client has one value: its accuracy in
percent, its loss, or a metric of the user's. All clients have equal weight, whatever their number
of samples. The variance is the population variance over clients (ddof=0).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy  # Imports scipy.stats at its first use, which takes half a second.


def worst(values: npt.ArrayLike, share: float, better: str = "higher") -> float:
    """Return the mean of the worst ceil(share * |G|) values ("Lowest k %").

    These are the lowest values if `better` is "higher", and the highest if it is "lower".
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = _count(share, ordered.size)
    return float(np.mean(ordered[-count:] if better == "lower" else ordered[:count]))


def best(values: npt.ArrayLike, share: float, better: str = "higher") -> float:
    """Return the mean of the best ceil(share * |G|) values."""
    return worst(values, share, "higher" if better == "lower" else "lower")


METRICS: dict[str, Callable[..., float]] = {
    "accuracy": lambda values, **_: float(np.mean(values)),
    "variance": lambda values, **_: float(np.var(values)),
    **{f"worst-{percent}%": partial(worst, share=percent / 100) for percent in (10, 20, 30, 40)},
    "best-10%": partial(best, share=0.1),
}
"""The reported metrics of a task by name; "accuracy" is the mean."""


def summarise_task(of_clients: npt.ArrayLike, better: str | None = "higher") -> dict[str, float]:
    """Return every metric of `METRICS` for the clients of one task, in that order.

    `better` says whether higher or lower values are better.
    """
    values = np.asarray(of_clients, dtype=np.float64)
    return {name: statistic(values, better=better) for name, statistic in METRICS.items()}


BEYOND = "variance-beyond"  # a metric of a task that needs the clients' numbers of test samples


def variance_beyond_sampling(accuracies: npt.ArrayLike, samples: npt.ArrayLike) -> float:
    """Return the variance of the clients' accuracies without the part due to sampling, in %².

    Client j has n_j test samples and a_j = 100 X_j / n_j %, where X_j is binomial(n_j, p_j), so
    that Var a_j = s_j = 100² p_j (1 - p_j) / n_j. The expected population variance of G accuracies
    is that of the 100 p_j, plus the mean of s_j, minus Var mean(a) = sum s_j / G²: sampling adds
    (G - 1) / G times the mean of s_j. E[a_j (100 - a_j)] = (n_j - 1) s_j, so a_j (100 - a_j) /
    (n_j - 1) is an unbiased estimate of s_j, and the result is an unbiased estimate of the variance
    of the 100 p_j. It can be below 0, and it is nan if a client has only one sample.
    """
    a, n = np.asarray(accuracies, dtype=np.float64), np.asarray(samples, dtype=np.float64)
    if (n < 2).any():
        return math.nan
    sampling = float(np.mean(a * (100 - a) / (n - 1)))
    return float(np.var(a)) - (a.size - 1) / a.size * sampling


def _count(share: float, clients: int) -> int:
    """Return ceil(share * clients), at least 1, without the rounding error of a decimal share."""
    # 0.07 * 100 is 7.000000000000001 in floating point, and its ceiling 8.
    return max(1, math.ceil(round(share * clients, 9)))


class Summary(NamedTuple):
    """Mean and sample standard deviation (ddof=1; nan for one value) of n non-nan values."""

    mean: float
    std: float
    n: int


def summarise(values: npt.ArrayLike) -> Summary:
    """Summarise the values that are not nan. With an infinite value, std is nan."""
    numbers = np.asarray(values, dtype=np.float64)
    known = numbers[~np.isnan(numbers)]
    if not known.size:
        return Summary(math.nan, math.nan, 0)
    mean = float(np.mean(known))
    spread = known.size > 1 and bool(np.isfinite(known).all())
    return Summary(mean, float(np.std(known, ddof=1)) if spread else math.nan, known.size)


def paired(values: npt.ArrayLike, reference: npt.ArrayLike) -> tuple[Summary, float]:
    """Return the difference values - reference over common units, and p of a paired t-test.

    The test is two-sided; its hypothesis is that the mean difference is 0. The p-value is nan if
    there are fewer than two common units, or if all differences are equal up to rounding.
    """
    pairs = np.array([values, reference], dtype=np.float64)
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    difference = summarise((pairs[0] - pairs[1]).tolist())
    if difference.n < 2 or difference.std <= 1e-12 * float(np.max(np.abs(pairs))):
        return difference, math.nan
    return difference, float(scipy.stats.ttest_rel(*pairs).pvalue)


def holm(p_values: "pd.Series[float]") -> "pd.Series[float]":
    """Return p-values with Holm's step-down adjustment; nan means that there is no test.

    The i-th smallest of m p-values is multiplied by m - i + 1, and is at least the previous one
    (Holm, A simple sequentially rejective multiple test procedure, 1979).
    """
    tested = p_values.dropna().sort_values()
    adjusted = (tested * np.arange(len(tested), 0, -1)).clip(upper=1).cummax()
    return adjusted.reindex(p_values.index)
