import math

import pandas as pd
import pytest

from coprefl_flwr.report.statistics import holm, paired, summarise


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
