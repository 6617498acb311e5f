"""Verdicts on claims: computed by hand, and compared with scipy's tests."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from coprefl_flwr.report.statistics import holm as adjusted
from tests.common.claims import verdicts

HOLDS, OTHERWISE, NOTHING = verdicts.HOLDS, verdicts.OTHERWISE, verdicts.NOTHING
LESS, OPEN = verdicts.LESS, verdicts.OPEN
holm, judge, needed_seeds = verdicts.holm, verdicts.judge, verdicts.needed_seeds


def test_holm_by_hand():
    """0.011 * 4 and 0.016 * 3 are at most 0.05; 0.03 * 2 is not, and so 0.04 fails too."""
    assert holm(np.array([0.03, 0.011, 0.04, 0.016])).tolist() == [False, True, False, True]
    assert holm(np.array([0.04])).tolist() == [True]
    # A claim that was not measured counts in the number of tests.
    assert holm(np.array([0.04, math.nan])).tolist() == [False, False]
    for p_values in np.random.default_rng(0).random((200, 6)) ** 4:
        assert holm(p_values).tolist() == (adjusted(pd.Series(p_values)) <= 0.05).tolist()


def test_verdicts_are_those_of_scipy():
    """Thirty papers of five claims; Holm's method is a loop over each family of p-values."""
    rng, seen = np.random.default_rng(1), set()
    for _ in range(30):
        paper = rng.normal(
            rng.choice([-1.2, -0.2, 0.0, 0.4, 1.5], (5, 1)), rng.choice([0.3, 1.2], (5, 1)), (5, 12)
        )
        differs = [stats.ttest_1samp(one, 0).pvalue for one in paper]
        small = [
            max(
                stats.ttest_1samp(one, -1, alternative="greater").pvalue,
                stats.ttest_1samp(one, 1, alternative="less").pvalue,
            )
            for one in paper
        ]
        held = []
        for family in (differs, small):
            found, left = set(), 5
            for at in sorted(range(5), key=family.__getitem__):
                if family[at] > 0.05 / left:
                    break
                found.add(at)
                left -= 1
            held.append(found)
        for at, verdict in enumerate(judge(paper.tolist(), [1.0] * 5, [12] * 5)):
            side = HOLDS if paper[at].mean() > 0 else OTHERWISE
            word = side * (at in held[0]) + LESS * (at in held[0] & held[1])
            assert verdict.word == (word or (NOTHING if at in held[1] else OPEN))
            low, high = stats.ttest_1samp(paper[at], 0).confidence_interval(0.95)
            assert verdict[2:4] == pytest.approx((low, high))
            assert verdict.decided == (verdict.word != OPEN)
            seen.add(verdict.word)
    assert seen >= {HOLDS, OTHERWISE, HOLDS + LESS, NOTHING, OPEN}


def test_needed_seeds_are_those_of_a_power_table():
    """A paired t test at 5 % and 80 %: effects of 0.5 and 1 take 34 and 10 pairs (G*Power)."""
    assert needed_seeds(2.0, 1.0, 1) == 34
    assert needed_seeds(1.0, 1.0, 1) == 10
    assert needed_seeds(2.0, 1.0, 10) > 34
    assert needed_seeds(1e6, 1.0, 1) == verdicts.MOST_SEEDS
    (found,) = judge([[-1.0, 1.0, 3.0]], [1.0], [3])
    assert (found.word, found.needs) == (OPEN, 34)


def test_claim_has_no_verdict_before_all_its_seeds():
    """A claim with equal differences has none either; all claims count in the family of tests."""
    clear, part, none, alike = [2.0, 3.0, 2.5, 2.7], [2.0, 3.0, 2.5], [], [1.0] * 4
    found = judge([clear, part, none, alike], [1.0] * 4, [4] * 4)
    words = [HOLDS, "3 of 4 seeds so far", "not measured yet", OPEN]
    assert [one.word for one in found] == words
    assert [one.decided for one in found] == [True, False, False, False]
    assert found[1].low < found[1].high
    assert math.isnan(found[2].low)
