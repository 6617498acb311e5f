"""Parts of the variance and the number of draws that are missing, by hand and by simulation."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.variance import PARTS, more_draws, variance_parts

BALANCED, ONE_SEED = (4, 10, 2, 3), (4, 12, 1, 5)
TYPICAL = dict(zip(PARTS, (3.0, 2.0, 0.5, 0.5, 1.5, 1.0, 0.5, 1.0), strict=True))
MANY_ZEROS = dict(zip(PARTS, (2.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0), strict=True))
NO_DRAW = dict(zip(PARTS, (0.0, 0.0, 1.0, 0.5, 0.0, 1.0, 0.0, 1.0), strict=True))


def study(
    shape: tuple[int, int, int, int],
    stds: Mapping[str, float],
    seed: int,
    missing: float = 0.0,
) -> pd.DataFrame:
    """Return values with planted parts of (starts, draws, seeds, tasks); a share is missing."""
    rng = np.random.default_rng(seed)
    names = ["start", "draw", "seed", "task"]
    values = pd.MultiIndex.from_product(map(range, shape), names=names).to_frame(index=False)
    value = 3.0 * values["start"].to_numpy(float)
    for part, std in stds.items():
        level = values.groupby(list(PARTS[part])).ngroup().to_numpy()
        value = value + std * rng.standard_normal(level.max() + 1)[level]
    return values.assign(accuracy=value)[rng.random(len(values)) >= missing]


def planted(shape: tuple[int, int, int, int], stds: Mapping[str, float]) -> dict[str, float]:
    """Return the planted standard deviations; with one seed, those of parts that cannot be told."""
    if shape[2] > 1:
        return dict(stds)
    both = {"draw": "seed", "start x draw": "start x seed"}
    both |= {"task": "seed x task", "start x task": "rest"}
    return {part: math.hypot(stds[part], stds[other]) for part, other in both.items()}


def coverage(
    shape: tuple[int, int, int, int], stds: Mapping[str, float], missing: float, studies: int
) -> "pd.Series[float]":
    """Return, per part, in which share of studies the interval has the planted deviation."""
    truth, covered = pd.Series(planted(shape, stds)), []
    for seed in range(studies):
        parts = variance_parts(study(shape, stds, seed, missing))
        covered.append((parts["low"] <= truth) & (truth <= parts["high"]))
    return pd.DataFrame(covered).mean()


def test_parts_of_a_complete_study_by_mean_squares() -> None:
    """Each mean square is that of an effect in a table of 3 starts, 4 draws, 2 seeds, 2 tasks."""
    starts, draws, seeds, tasks = shape = (3, 4, 2, 2)
    values = study(shape, TYPICAL, 1)
    y = values["accuracy"].to_numpy().reshape(shape)

    def less(y: np.ndarray, axis: int) -> np.ndarray:
        return y - y.mean(axis, keepdims=True)

    def square(effect: np.ndarray, freedom: int) -> float:
        return float((np.broadcast_to(effect, shape) ** 2).sum() / freedom)

    same, other = y.mean(0, keepdims=True), less(y, 0)
    mean_squares = {}
    for kind, of, times in (("", same, 1), ("start x ", other, starts - 1)):
        by_draw = of.mean((2, 3), keepdims=True)
        seed, task = less(of.mean(3, keepdims=True), 2), less(of.mean(2, keepdims=True), 3)
        mean_squares |= {
            f"{kind}draw": square(less(by_draw, 1), times * (draws - 1)),
            f"{kind}seed": square(seed, times * draws * (seeds - 1)),
            f"{kind}task": square(task, times * draws * (tasks - 1)),
            f"{kind}both": square(less(less(of, 2), 3), times * draws * (seeds - 1) * (tasks - 1)),
        }
    rest = mean_squares["start x both"]
    start_seed = (mean_squares["start x seed"] - rest) / tasks
    start_task = (mean_squares["start x task"] - rest) / seeds
    both = (mean_squares["both"] - rest) / starts
    seed_part = mean_squares["seed"] - mean_squares["start x seed"] - starts * both
    task_part = mean_squares["task"] - mean_squares["start x task"] - starts * both
    start_draw = mean_squares["start x draw"] - rest - tasks * start_seed - seeds * start_task
    rest_of_draw = mean_squares["start x draw"] + seed_part + task_part + starts * both
    by_hand = {
        "draw": (mean_squares["draw"] - rest_of_draw) / (starts * seeds * tasks),
        "start x draw": start_draw / (seeds * tasks),
        "seed": seed_part / (starts * tasks),
        "start x seed": start_seed,
        "task": task_part / (starts * seeds),
        "start x task": start_task,
        "seed x task": both,
        "rest": rest,
    }
    parts = variance_parts(values)
    assert list(parts.index) == list(PARTS)
    expected = pd.Series(by_hand).clip(lower=0)
    assert (expected > 0).sum() >= 6
    np.testing.assert_allclose(parts["std"] ** 2, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(parts["share"], 100 * expected / expected.sum(), atol=1e-9)


def test_parts_of_starts_with_missing_draws_by_least_squares() -> None:
    """Residual sums of squares of linear models, and traces of their projections."""
    values = study((3, 5, 1, 1), TYPICAL, 3).drop(index=[2, 9])
    y, (starts, draws) = (
        values["accuracy"].to_numpy(),
        (pd.get_dummies(values[name]).to_numpy(float) for name in ("start", "draw")),
    )
    of_starts, of_both = (x @ np.linalg.pinv(x) for x in (starts, np.hstack([starts, draws])))
    freedom = len(y) - 7
    rest = (y @ y - y @ of_both @ y) / freedom
    gained = of_both - of_starts
    draw = (y @ gained @ y - 4 * rest) / np.trace(gained @ draws @ draws.T)
    parts = variance_parts(values)
    assert list(parts.index) == ["draw", "start x draw"]
    np.testing.assert_allclose(parts["std"] ** 2, [draw, rest])
    # The rest's interval is that of a variance: its sum of squares over quantiles of chi-squared.
    exact = np.sqrt(freedom * rest / stats.chi2.ppf([0.975, 0.025], freedom))
    np.testing.assert_allclose(parts.loc["start x draw", ["low", "high"]], exact, rtol=0.03)


def test_parts_without_levels_are_left_out() -> None:
    """With one seed, draw and seed are one part; with one task, so are draw and task."""
    assert list(variance_parts(study(ONE_SEED, TYPICAL, 0)).index) == [
        "draw", "start x draw", "task", "start x task",
    ]  # fmt: skip
    of_seeds = variance_parts(study((3, 4, 2, 1), TYPICAL, 0))
    assert list(of_seeds.index) == ["draw", "start x draw", "seed", "start x seed"]


def test_infinite_and_missing_values_are_left_out() -> None:
    values = study((3, 4, 1, 2), TYPICAL, 0)
    spoilt = values.assign(accuracy=values["accuracy"].where(values.index != 5, math.inf))
    pd.testing.assert_frame_equal(variance_parts(spoilt), variance_parts(values.drop(index=5)))


def test_equal_values_have_no_variance() -> None:
    parts = variance_parts(study((2, 3, 1, 2), dict.fromkeys(PARTS, 0.0), 0).assign(accuracy=50.0))
    assert (parts[["std", "low", "high"]] < 1e-9).all(axis=None)


@pytest.mark.parametrize("kept", ["draw == 0", "start == 0", "start == draw", "draw < 0"])
def test_too_few_starts_or_draws_are_refused(kept: str) -> None:
    with pytest.raises(SettingsError, match="two starts in the same two draws"):
        variance_parts(study((3, 3, 2, 2), TYPICAL, 0).query(kept))


def test_intervals_cover_in_a_few_studies() -> None:
    """The slow test has 500 studies of each kind."""
    assert (coverage((4, 8, 2, 2), MANY_ZEROS, 0.1, 60) >= 0.9).all()


@pytest.mark.slow
@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("stds", [TYPICAL, MANY_ZEROS, NO_DRAW])
@pytest.mark.parametrize("shape", [BALANCED, ONE_SEED])
def test_intervals_cover(
    shape: tuple[int, int, int, int], stds: Mapping[str, float], missing: float
) -> None:
    assert (coverage(shape, stds, missing, 500) >= 0.9).all()


def test_power_is_reached_with_the_last_draw_and_not_before() -> None:
    """Paired t tests of simulated differences, whose variances agree with the measured one."""
    std, draws, margin = 2.0, 6, 1.0
    rng = np.random.default_rng(0)
    stds = std * np.sqrt((draws - 1) / rng.chisquare(draws - 1, 20_000))

    def power(number: int) -> float:
        differences = margin + stds[:, None] * rng.standard_normal((len(stds), number))
        return float((stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05).mean())

    number = draws + int(more_draws(std, draws, margin))
    assert power(number) == pytest.approx(0.8, abs=0.01)
    assert power(number - 6) < 0.79


def test_draws_of_a_known_variance_are_those_of_the_textbook() -> None:
    """A paired t test finds half a standard deviation with 34 pairs (Cohen, 1988)."""
    assert more_draws(2.0, 30, 1.0) + 30 == pytest.approx(34, abs=3)
    assert more_draws(0.5, 30, 1.0) == more_draws(0.0, 2, 1.0) == 0
    assert more_draws(100.0, 30, 1.0) == math.inf
    few, many = (more_draws(2.0, draws, 1.0) + draws for draws in (3, 20))
    assert few > many > 34


def test_smaller_differences_need_more_draws() -> None:
    """With scipy's noncentral t, which is nan here and there, some larger ones needed more."""
    counts = [more_draws(2**0.5, 4, margin) for margin in np.arange(1, 8, 0.1)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 27
    assert counts[-1] == 0
