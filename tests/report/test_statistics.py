"""Statistics computed by hand: of the clients in a task, of tasks, and of pairs."""

import math

import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.report.statistics import (
    best,
    holm,
    paired,
    summarise,
    summarise_task,
    variance_beyond_sampling,
    worst,
)


def test_summary_by_hand() -> None:
    """2, 4, 9: mean 5, squared deviations 9 + 1 + 16 = 26, sample variance 13."""
    summary = summarise([2.0, math.nan, 4.0, 9.0])
    assert (summary.mean, summary.std, summary.n) == (5, pytest.approx(math.sqrt(13)), 3)


def test_summary_of_too_few_or_infinite_values() -> None:
    single, none, never = summarise([3.0]), summarise([math.nan]), summarise([1.0, math.inf])
    assert (single.mean, single.n) == (3, 1)
    assert math.isnan(single.std)
    assert math.isnan(none.mean)
    assert none.n == 0
    assert (never.mean, never.n) == (math.inf, 2)
    assert math.isnan(never.std)


def test_paired_test_by_hand() -> None:
    """By hand: differences 1, 2, 3: mean 2, std 1, t = 2 / (1 / √3) = 2 √3, 2 degrees of freedom.

    With 2 degrees of freedom p has a closed form: p = 1 - t / √(t² + 2), t² = 12.
    """
    difference, p = paired([11.0, 22.0, 33.0, math.nan, 5.0], [10.0, 20.0, 30.0, 7.0, math.nan])
    assert difference == (2, 1, 3)
    assert p == pytest.approx(1 - math.sqrt(12 / 14))
    assert paired([10.0, 20.0, 30.0], [11.0, 22.0, 33.0])[1] == pytest.approx(p)


@pytest.mark.parametrize(
    ("values", "reference"),
    [
        ([5.0], [4.0]),
        ([5.0, math.nan], [4.0, 3.0]),
        ([5.0, 6.0], [5.0, 6.0]),
        ([70.1, 60.1, 50.1], [70.0, 60.0, 50.0]),  # each differs by 0.1, except for rounding
        ([math.inf, 1.0], [2.0, 1.0]),
    ],
)
def test_paired_test_needs_two_different_differences(
    values: list[float], reference: list[float]
) -> None:
    assert math.isnan(paired(values, reference)[1])


def test_holm_by_hand() -> None:
    """Three tests: 0.01 · 3, 0.02 · 2, then 0.03 · 1, which is raised to the value before it."""
    adjusted = holm(pd.Series({"c": 0.03, "reference": math.nan, "a": 0.01, "b": 0.02}))
    assert [adjusted[name] for name in "abc"] == pytest.approx([0.03, 0.04, 0.04])
    assert math.isnan(adjusted["reference"])
    assert holm(pd.Series({"a": 0.6, "b": 0.7})).to_dict() == {"a": 1, "b": 1}


def test_variance_beyond_sampling_by_hand() -> None:
    """50 % of 5 samples and 100 % of 3 samples, by hand.

    The variance is 25² = 625; its part from sampling is (50 · 50 / 4 + 0) / 2 · 1 / 2 = 156.25.
    """
    assert variance_beyond_sampling([50, 100], [5, 3]) == pytest.approx(625 - 156.25)
    assert variance_beyond_sampling([50], [5]) == 0  # A single client has no variance.
    assert math.isnan(variance_beyond_sampling([50, 100], [5, 1]))


@pytest.mark.parametrize("spread", [0.0, 0.12])
def test_variance_beyond_sampling_estimates_the_variance_of_the_probabilities(
    spread: float,
) -> None:
    """10,000 draws of the test sets of 8 clients with 15 to 85 samples: the mean is correct.

    The plain variance is too large: sampling adds 25 %² or more to it.
    """
    rng = np.random.default_rng(7)
    n = np.arange(15, 95, 10)
    p = 0.6 + spread * np.linspace(-1, 1, 8)[[3, 0, 7, 5, 1, 6, 2, 4]]
    draws = 100 * rng.binomial(n, p, size=(10_000, 8)) / n
    estimates = np.array([variance_beyond_sampling(draw, n) for draw in draws])
    error = estimates.std() / 100
    assert estimates.mean() == pytest.approx(np.var(100 * p), abs=3 * error)
    assert np.var(draws, axis=1).mean() > np.var(100 * p) + 25
    assert error < 1


def test_task_metrics_of_ten_clients_by_hand() -> None:
    """By hand, for 10 clients: 50, 55, ..., 95, shuffled.

    mean = (50 + 95) / 2 = 72.5; variance = 5² (10² - 1) / 12 = 206.25.
    Worst 1, 2, 3, 4 of 10: 50; (50 + 55) / 2 = 52.5; 165 / 3 = 55; 230 / 4 = 57.5. Best 1: 95.
    """
    assert summarise_task([70, 50, 95, 60, 85, 55, 90, 65, 80, 75]) == {
        "accuracy": 72.5,
        "variance": 206.25,
        "worst-10%": 50.0,
        "worst-20%": 52.5,
        "worst-30%": 55.0,
        "worst-40%": 57.5,
        "best-10%": 95.0,
    }


@pytest.mark.parametrize(
    ("share", "clients", "counted"),
    [(0.3, 10, 3), (0.1 + 0.2, 10, 3), (0.07, 100, 7), (0.29, 100, 29), (0.3, 11, 4), (1, 9, 9)],
)
def test_share_of_clients_is_rounded_up_from_its_decimal_value(
    share: float, clients: int, counted: int
) -> None:
    """The lowest c of 0, 1, 2, ... have the mean (c - 1) / 2; in floats 0.07 * 100 exceeds 7."""
    values = np.arange(clients)
    assert worst(values, share) == (counted - 1) / 2
    assert best(values, share) == clients - 1 - (counted - 1) / 2


def test_worst_clients_of_a_loss_are_those_with_the_highest() -> None:
    """By hand, for 10 losses 1, ..., 10, shuffled: worst 10; 19 / 2; 27 / 3; 34 / 4; best 1."""
    found = summarise_task([7, 1, 10, 3, 9, 5, 2, 8, 4, 6], "lower")
    assert found == {
        "accuracy": 5.5,
        "variance": 8.25,
        "worst-10%": 10.0,
        "worst-20%": 9.5,
        "worst-30%": 9.0,
        "worst-40%": 8.5,
        "best-10%": 1.0,
    }
