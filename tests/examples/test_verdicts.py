"""Verdicts on claims, by hand, against scipy's own intervals, and on simulated pages."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from coprefl_flwr.report.statistics import seed_means
from tests.common.claims import verdicts

FAILS, HOLDS, OPEN = verdicts.FAILS, verdicts.HOLDS, verdicts.OPEN
Question, Says = verdicts.Question, verdicts.Says
holm_levels, judge, usual_margin = verdicts.holm_levels, verdicts.judge, verdicts.usual_margin

Floats = npt.NDArray[np.float64]


def question(
    differences: Sequence[float],
    says: Says = "better",
    metric: str = "accuracy",
    margin: float | None = 0.5,
) -> Question:
    """A claim on rows whose second is at 50 in every seed."""
    return Question(
        metric, says, margin, [50 + one for one in differences], [50] * len(differences)
    )


def test_levels_by_hand() -> None:
    """Of four: 0.011 < 0.05 / 4, 0.016 < 0.05 / 3, and 0.03 is not below 0.05 / 2; 0.04 neither."""
    assert holm_levels([0.03, 0.011, 0.04, 0.016]) == pytest.approx(
        [0.025, 0.0125, 0.025, 0.05 / 3]
    )


def test_the_last_of_all_is_judged_at_five_percent() -> None:
    assert holm_levels([0.04]) == [0.05]
    assert holm_levels([0.001, 0.04]) == [0.025, 0.05]
    assert holm_levels([]) == []


def test_intervals_are_those_of_scipy() -> None:
    rows = [[3.0, 4.0, 5.0, 4.5], [1.0, -1.0, 2.0, 0.0], [-2.0, -2.5, -3.0, -2.2]]
    found = judge([question(one) for one in rows])
    tests = [stats.ttest_1samp(one, 0) for one in rows]
    assert np.argsort([test.pvalue for test in tests]).tolist() == [2, 0, 1]
    for verdict, test, level in zip(found, tests, [0.025, 0.05, 0.05 / 3], strict=True):
        low, high = test.confidence_interval(1 - level)
        assert (verdict.low, verdict.high) == pytest.approx((low, high))
    assert [one.word for one in found] == [HOLDS, OPEN, FAILS]


@pytest.mark.parametrize(
    ("center", "says", "metric", "word"),
    [
        (2.0, "better", "accuracy", HOLDS),
        (-2.0, "better", "accuracy", FAILS),
        (2.0, "worse", "accuracy", FAILS),
        (-2.0, "worse", "accuracy", HOLDS),
        (2.0, "better", "variance", FAILS),
        (-2.0, "better", "variance", HOLDS),
        (-2.0, "worse", "variance", FAILS),
        # Too small to matter, but on the claimed side.
        (0.2, "better", "accuracy", HOLDS),
        (-0.2, "better", "accuracy", FAILS),
        (0.2, "equal", "accuracy", HOLDS),
        (2.0, "equal", "accuracy", FAILS),
        (-2.0, "equal", "accuracy", FAILS),
        # The interval is about ± 0.08: around 0, within half a point; across half a point.
        (0.0, "better", "accuracy", FAILS),
        (0.0, "worse", "accuracy", FAILS),
        (0.0, "equal", "accuracy", HOLDS),
        (0.5, "equal", "accuracy", OPEN),
    ],
)
def test_sides(center: float, says: Says, metric: str, word: str) -> None:
    differences = [center + off for off in (-0.05, 0.0, 0.05, -0.05, 0.05)]
    assert judge([question(differences, says, metric)])[0].word == word


def test_nothing_is_too_small_without_a_margin() -> None:
    found = [question([-0.05, 0.0, 0.05, 0.01], "better", "variance", None)]
    assert judge(found)[0].word == OPEN
    assert [usual_margin(one) for one in ("accuracy", "worst-10%", "variance", "megabytes")] == [
        0.5, 0.5, None, None,
    ]  # fmt: skip
    assert usual_margin("rounds-to-60%") is None


def test_an_open_one_says_how_many_seeds_it_would_take() -> None:
    """Mean 1, std 2, alone on its page: at 18 seeds 1 > t(17) · 2 / √18 = 0.995, at 17 not."""
    differences = [-1.0, 1.0, 3.0]
    (found,) = judge([question(differences, margin=None)])
    assert found.word == OPEN
    assert found.needs == "about 18 seeds, if mean and spread stay"
    widths = {n: stats.t.interval(0.95, n - 1, scale=2 / math.sqrt(n))[1] for n in (17, 18)}
    assert widths[18] < 1 < widths[17]


def test_what_gives_no_verdict() -> None:
    few, alike = question([3.0, 4.0]), question([3.0, 3.0, 3.0])
    never = Question("rounds-to-60%", "better", None, [5.0, math.inf, 6.0], [9.0, 9.0, 9.5])
    found = judge([few, alike, never, question([])])
    assert [one.word for one in found] == [OPEN] * 4
    assert [one.needs for one in found] == [
        "at least 3 seeds",
        "seeds that differ: these do not",
        "a value that every seed reaches: 1 of 3 never did",
        "at least 3 seeds",
    ]
    assert (found[0].mean, found[0].seeds) == (3.5, 2)
    # None of them takes a share of the 5 % from those that can be tested.
    tested = question([1.0, 2.0, 1.5])
    assert judge([few, alike, never, tested])[3] == judge([tested])[0]


@pytest.mark.parametrize(("sent", "word"), [(10.0, HOLDS), (30.0, FAILS), (20.0, FAILS)])
def test_a_count_that_is_the_same_in_every_seed_needs_no_test(sent: float, word: str) -> None:
    counted = Question("numbers-sent", "better", None, [sent] * 3, [20.0] * 3)
    (found,) = judge([counted])
    assert (found.word, found.low, found.high) == (word, sent - 20, sent - 20)


# ---- simulated pages -----------------------------------------------------------------------------

PAGES, CLAIMS, SEEDS, TASKS = 1000, 8, 5, 4


def simulated_page(rng: np.random.Generator, effects: Sequence[float]) -> tuple[Floats, Floats]:
    """Accuracies of two rows by claim, seed and task: (CLAIMS, SEEDS, TASKS) each.

    Both rows meet the same tasks, of another difficulty each (std 5 points). What a pre-training is
    worth (std 1) is common to all tasks from it, and makes their differences correlated: 0.8.
    """
    shape = (CLAIMS, SEEDS, TASKS)
    difficulty = 60 + 5 * rng.standard_normal(shape)

    def row() -> Floats:
        worth = rng.standard_normal((CLAIMS, SEEDS, 1))
        return difficulty + worth + 0.5 * rng.standard_normal(shape)

    return row() + np.reshape(effects, (CLAIMS, 1, 1)), row()


def by_seed(page: tuple[Floats, Floats]) -> list[Question]:
    seeds = [str(seed) for seed in range(SEEDS) for _ in range(TASKS)]
    means = [[list(seed_means(one.ravel(), seeds).values()) for one in row] for row in page]
    return [Question("accuracy", "better", 0.5, *both) for both in zip(*means, strict=True)]


def by_task(page: tuple[Floats, Floats]) -> list[Question]:
    """The wrong way: as if every task had a pre-training of its own."""
    return [
        Question("accuracy", "better", 0.5, here.ravel().tolist(), there.ravel().tolist())
        for here, there in zip(*page, strict=True)
    ]


def is_false(page: list[Question]) -> bool:
    """Whether a difference is found where there is none; "too small to matter" is true there."""
    return any(one.low > 0 or one.high < 0 for one in judge(page))


def test_where_nothing_differs_five_percent_of_pages_have_a_false_verdict() -> None:
    """The family-wise rate of pages of 8 claims; tasks taken for seeds give a multiple of it."""
    rng = np.random.default_rng(13)
    pages = [simulated_page(rng, [0.0] * CLAIMS) for _ in range(PAGES)]
    assert 0.035 <= np.mean([is_false(by_seed(page)) for page in pages]) <= 0.065
    assert np.mean([is_false(by_task(page)) for page in pages[:50]]) > 0.3


def test_a_planted_difference_is_found() -> None:
    """5 points in one of 8 claims: 3.4 times a seed's std, √(2 + 2 · 0.5² / 4) = 1.46 points."""
    rng = np.random.default_rng(14)
    pages = [by_seed(simulated_page(rng, [5.0] + [0.0] * 7)) for _ in range(PAGES // 4)]
    words = [judge(page)[0].word for page in pages]
    assert words.count(HOLDS) / len(words) >= 0.8
    assert words.count(FAILS) == 0


def test_where_all_differ_a_smaller_difference_is_found() -> None:
    """4 points in each claim: each that is found leaves more of the 5 % to the others."""
    rng = np.random.default_rng(15)
    pages = [by_seed(simulated_page(rng, [4.0] * CLAIMS)) for _ in range(PAGES // 4)]
    words = [one.word for page in pages for one in judge(page)]
    assert words.count(HOLDS) / len(words) >= 0.8
