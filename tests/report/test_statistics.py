import math

import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.report.statistics import (
    holm,
    paired,
    seed_means,
    summarise,
    variance_beyond_sampling,
)


def test_summary_by_hand() -> None:
    """2, 4, 9: mean 5, deviations 9 + 1 + 16 = 26, sample variance 13."""
    found = summarise([2.0, math.nan, 4.0, 9.0])
    assert (found.mean, found.std, found.n) == (5, pytest.approx(math.sqrt(13)), 3)


def test_summary_of_little() -> None:
    one, none, never = summarise([3.0]), summarise([math.nan]), summarise([1.0, math.inf])
    assert (one.mean, one.n) == (3, 1)
    assert math.isnan(one.std)
    assert math.isnan(none.mean)
    assert none.n == 0
    assert (never.mean, never.n) == (math.inf, 2)
    assert math.isnan(never.std)


def test_paired_test_by_hand() -> None:
    """Oracle. Differences 1, 2, 3: mean 2, std 1, t = 2 / (1 / √3) = 2 √3 with 2 degrees.

    With 2 degrees of freedom the distribution is closed: p = 1 - t / √(t² + 2), t² = 12.
    """
    difference, p = paired([11.0, 22.0, 33.0, math.nan, 5.0], [10.0, 20.0, 30.0, 7.0, math.nan])
    assert difference == (2, 1, 3)
    assert p == pytest.approx(1 - math.sqrt(12 / 14))


def test_sides_do_not_matter() -> None:
    values, others = [70.0, 71.5, 69.0], [71.0, 70.0, 65.0]
    assert paired(values, others)[1] == pytest.approx(paired(others, values)[1])


@pytest.mark.parametrize(
    ("values", "reference"),
    [
        ([5.0], [4.0]),
        ([5.0, math.nan], [4.0, 3.0]),
        ([5.0, 6.0], [5.0, 6.0]),
        ([70.1, 60.1, 50.1], [70.0, 60.0, 50.0]),  # 0.1 each, but for rounding
        ([math.inf, 1.0], [2.0, 1.0]),
    ],
)
def test_no_test_without_spread(values: list[float], reference: list[float]) -> None:
    assert math.isnan(paired(values, reference)[1])


def test_holm_by_hand() -> None:
    """Three tests: 0.01 · 3, 0.02 · 2, then 0.03 · 1, which may not be below the one before."""
    found = holm(pd.Series({"c": 0.03, "reference": math.nan, "a": 0.01, "b": 0.02}))
    assert [found[name] for name in "abc"] == pytest.approx([0.03, 0.04, 0.04])
    assert math.isnan(found["reference"])


def test_holm_ends_at_one() -> None:
    assert holm(pd.Series({"a": 0.6, "b": 0.7})).to_dict() == {"a": 1, "b": 1}


def test_seed_means_by_hand() -> None:
    values = [1.0, 3.0, math.nan, 8.0, math.nan]
    found = seed_means(values, ["a", "a", "b", "b", "c"])
    assert (found["a"], found["b"]) == (2, 8)
    assert math.isnan(found["c"])


def test_variance_beyond_sampling_by_hand() -> None:
    """50 % of 5 and 100 % of 3: variance 25² = 625; sampling (50 · 50 / 4 + 0) / 2 · 1 / 2."""
    assert variance_beyond_sampling([50, 100], [5, 3]) == pytest.approx(625 - 156.25)
    assert variance_beyond_sampling([50], [5]) == 0  # Of one client there is none, by any count.
    assert math.isnan(variance_beyond_sampling([50, 100], [5, 1]))


@pytest.mark.parametrize("spread", [0.0, 0.12])
def test_variance_beyond_sampling_is_that_of_the_probabilities(spread: float) -> None:
    """10,000 draws of test sets of 8 clients, of 15 to 85 samples: right on average.

    The plain variance is not: it has 25 %² or more of sampling in it.
    """
    rng = np.random.default_rng(7)
    n = np.arange(15, 95, 10)
    p = 0.6 + spread * np.linspace(-1, 1, 8)[[3, 0, 7, 5, 1, 6, 2, 4]]
    draws = 100 * rng.binomial(n, p, size=(10_000, 8)) / n
    found = np.array([variance_beyond_sampling(one, n) for one in draws])
    error = found.std() / 100
    assert found.mean() == pytest.approx(np.var(100 * p), abs=3 * error)
    assert np.var(draws, axis=1).mean() > np.var(100 * p) + 25
    assert error < 1
