"""Verdicts on claims: computed by hand, compared with scipy's tests, and on simulated papers."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from coprefl_flwr.report.statistics import holm as adjusted
from tests.common.claims import verdicts

HOLDS, OTHERWISE, NOTHING = verdicts.HOLDS, verdicts.OTHERWISE, verdicts.NOTHING
LESS, OPEN = verdicts.LESS, verdicts.OPEN
holm, judge, needed_seeds, power = (
    verdicts.holm, verdicts.judge, verdicts.needed_seeds, verdicts.power,
)  # fmt: skip


def test_holm_by_hand():
    """0.011 * 4 and 0.016 * 3 are at most 0.05; 0.03 * 2 is not, and so 0.04 fails too."""
    assert holm(np.array([0.03, 0.011, 0.04, 0.016])).tolist() == [False, True, False, True]
    assert holm(np.array([0.04])).tolist() == [True]
    # A claim that was not measured counts in the number of tests.
    assert holm(np.array([0.04, math.nan])).tolist() == [False, False]


def test_holm_is_the_adjustment_of_reports():
    for p_values in np.random.default_rng(0).random((200, 6)) ** 4:
        assert holm(p_values).tolist() == (adjusted(pd.Series(p_values)) <= 0.05).tolist()


def test_words_are_those_of_scipys_tests():
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


def test_needed_seeds_are_those_of_the_textbooks():
    """A paired t test at 5 % and 80 %: effects of 0.5 and 1 take 34 and 10 pairs (G*Power)."""
    assert needed_seeds(2.0, 1.0, 1) == 34
    assert needed_seeds(1.0, 1.0, 1) == 10
    assert needed_seeds(2.0, 1.0, 10) > 34
    assert needed_seeds(1e6, 1.0, 1) == verdicts.MOST_SEEDS
    (found,) = judge([[-1.0, 1.0, 3.0]], [1.0], [3])
    assert (found.word, found.needs) == (OPEN, 34)


def test_a_claim_has_no_verdict_before_it_has_all_seeds():
    """A claim with equal differences has none either; all claims count in the family of tests."""
    clear, part, none, alike = [2.0, 3.0, 2.5, 2.7], [2.0, 3.0, 2.5], [], [1.0] * 4
    found = judge([clear, part, none, alike], [1.0] * 4, [4] * 4)
    words = [HOLDS, "3 of 4 seeds so far", "not measured yet", OPEN]
    assert [one.word for one in found] == words
    assert [one.decided for one in found] == [True, False, False, False]
    assert found[1].low < found[1].high
    assert math.isnan(found[2].low)


# ---- simulated papers ----------------------------------------------------------------------------

PAPERS, CLAIMS, SEEDS = 1000, 10, 20
TOLERATED = 0.05 + 2 * math.sqrt(0.05 * 0.95 / PAPERS)  # two standard errors: 6.4 %


def normal(rng, shape):
    return rng.standard_normal(shape)


def of_skewed_rows(rng, shape):
    """Draw differences of two rows with an exponential distribution, of skewness 2."""
    return rng.exponential(size=shape) - rng.exponential(size=shape)


def skewed(skewness):
    """Return a function that draws differences with a gamma distribution."""

    def draw(rng, shape):
        of = 4 / skewness**2
        return (rng.gamma(of, size=shape) - of) / math.sqrt(of)

    return draw


def papers(draw, correlation, seed=0, seeds=SEEDS, claims=CLAIMS):
    """Draw differences of mean 0: a part that a paper's claims share, and a part of each claim."""
    rng = np.random.default_rng(seed)
    own, shared = (draw(rng, (PAPERS, number, seeds)) for number in (claims, 1))
    return math.sqrt(1 - correlation) * own + math.sqrt(correlation) * shared


def words_of(differences, margin):
    std, seeds = differences.std(-1, ddof=1), differences.shape[-1]
    return verdicts.decide(differences.mean(-1), std, seeds, margin)


def share(words, *wanted):
    """Return the share of papers with a word that contains one of the wanted texts."""
    return np.mean([any(part in word for word in paper for part in wanted) for paper in words])


@pytest.mark.parametrize("correlation", [0.0, 0.5])
@pytest.mark.parametrize("draw", [normal, of_skewed_rows, skewed(0.5)])
def test_papers_without_an_effect_have_a_false_difference_in_five_percent(draw, correlation):
    words = words_of(papers(draw, correlation), 1.0)
    assert share(words, HOLDS, OTHERWISE) <= TOLERATED
    # With a wide margin, the verdict in every paper is that no difference matters.
    assert share(words_of(papers(draw, correlation), 3.0), NOTHING) == 1


@pytest.mark.parametrize("correlation", [0.0, 0.5])
@pytest.mark.parametrize("draw", [normal, of_skewed_rows, skewed(0.5)])
def test_differences_at_the_margin_are_called_equal_in_five_percent(draw, correlation):
    """Half of the differences are at +1 and half at -1, the two ends of the margin."""
    sides = np.where(np.arange(CLAIMS) % 2, 1.0, -1.0)[:, None]
    words = words_of(papers(draw, correlation) + sides, 1.0)
    assert share(words, NOTHING, LESS) <= TOLERATED


def test_t_tests_do_not_withstand_differences_of_skewness_two():
    """As the module states, about a fifth of papers with independent claims, each with mean 0."""
    assert 0.15 < share(words_of(papers(skewed(2.0), 0.0), 1.0), HOLDS, OTHERWISE) < 0.3


@pytest.mark.parametrize("std", [0.8, 1.5])
def test_an_effect_at_the_margin_is_found_with_the_announced_power(std):
    """The power is the power of a single claim; the tolerance is two standard errors."""
    seeds = needed_seeds(std, 1.0, 1)
    announced = power(seeds, std, 1.0, 0.05)
    assert announced >= 0.8 > power(seeds - 1, std, 1.0, 0.05)
    words = words_of(std * papers(normal, 0.0, 2, seeds, claims=1) + 1.0, 1.0)
    error = math.sqrt(announced * (1 - announced) / PAPERS)
    assert share(words, HOLDS) == pytest.approx(announced, abs=2 * error)


def test_among_ten_claims_the_announced_power_is_the_least():
    """It is the power of Holm's first step: a single effect has it, and ten effects have more."""
    seeds = needed_seeds(1.0, 1.0, CLAIMS)
    announced = power(seeds, 1.0, 1.0, 0.05 / CLAIMS)
    error = math.sqrt(announced * (1 - announced) / PAPERS)
    null = papers(normal, 0.0, 3, seeds)
    one = words_of(null + np.eye(CLAIMS)[0][:, None], 1.0)
    found = np.mean(np.char.startswith(one[:, 0], HOLDS))
    assert announced - 2 * error <= found <= announced + 3 * error
    every = words_of(null + 1.0, 1.0)
    assert np.mean(np.char.startswith(every, HOLDS)) > announced + 2 * error
