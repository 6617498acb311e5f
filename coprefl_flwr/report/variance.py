"""Where differences between starts come from, and how many more draws would find one.

A value is the measure of a start in a task: the mean over the clients of the task. A *draw* draws
the data: partition, splits and tasks. It may have several training seeds, which share its tasks.
The model of a value is the mean of its start, which is fixed, plus independent normal numbers with
mean 0, one per level of each of the `PARTS`.
"""

import bisect
import math

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy  # Imports scipy.stats at its first use, which takes half a second.

from coprefl_flwr.errors import SettingsError

PARTS = {
    "draw": ("draw",),
    "start x draw": ("start", "draw"),
    "seed": ("draw", "seed"),
    "start x seed": ("start", "draw", "seed"),
    "task": ("draw", "task"),
    "start x task": ("start", "draw", "task"),
    "seed x task": ("draw", "seed", "task"),
    "rest": ("start", "draw", "seed", "task"),
}
"""The parts of the variance, each with the columns that name its levels.

The parts with "start x" and the rest change the differences between starts. The others are the same
for all starts of a draw. Training seeds and tasks belong to a draw.
"""

LEVEL = 0.05
"""A difference is significant if its corrected p-value is below this level."""
POWER = 0.8
MOST_DRAWS = 1000
SMALL = 1e-8  # a singular value of a direction that is in the spaces before

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def variance_parts(rows: pd.DataFrame, measure: str = "accuracy") -> pd.DataFrame:
    """Return the parts of a measure's variance that several draws of a study can tell apart.

    **Experimental since 0.3.** The names and the order of the parts may change.

    `rows` has the columns start, draw, seed, task and the measure. Rows that differ only in the
    client are averaged. Combinations may be missing, and means that are not finite are left out.

    The result has a row per part: "draw", "seed" and "task" are the same for all starts; "start x
    draw", "start x seed", "start x task" and "rest" change the differences between starts. The
    columns are "share" (of the sum of all parts, in percent), "std" (the standard deviation, in the
    unit of the measure), and "low" and "high" (its 95 % interval). A part without separate levels
    is missing and counts to an earlier one: with one seed per draw, "draw" is draw and seed.

    Each part has the sum of squares by which its levels improve the fit of the parts before it
    (Henderson's method 3, fitting constants). The expected sums of squares are linear in the
    variances. The intervals are generalised confidence intervals (Weerahandi, 1993): each sum of
    squares, divided by its expectation, counts as chi-squared divided by its degrees of freedom.
    This is exact if no cell is missing. An estimate below 0 counts as 0.

    Raises a SettingsError if no two starts have values of the same two draws.
    """
    known = rows.groupby([*PARTS["rest"]], as_index=False)[measure].mean()
    known = known[np.isfinite(known[measure])]
    numbers = known[measure].to_numpy(float)
    groups = [known.groupby(list(columns)) for columns in (["start"], *PARTS.values())]
    levels = np.stack([group.ngroup() for group in groups], axis=1)
    between = _sums_of_squares(numbers, levels, levels[:, :3])
    if not between[-1, 0]:
        raise SettingsError("parts of the variance need values of two starts in the same two draws")
    draws = groups[1].indices.values()
    of_draws = [_sums_of_squares(numbers[at], levels[at], levels[at, 2:]) for at in draws]
    sums = np.concatenate([between, np.sum(of_draws, axis=0)])
    found = sums[:, 0] > 0
    freedom, squares, *expected = sums[found].T
    # Row i, column j: the expected sum of squares i for a variance of 1 of part j.
    matrix = np.stack(expected, axis=1)[:, found]
    variances = np.linalg.solve(matrix, squares).clip(0)
    chi = np.random.default_rng(0).chisquare(freedom, (10_000, len(freedom)))
    simulated = np.linalg.solve(matrix, (squares * freedom / chi).T).clip(0)
    low, high = np.quantile(simulated, [LEVEL / 2, 1 - LEVEL / 2], axis=1)
    share = 100 * variances / max(variances.sum(), SMALL**2)  # 0, not nan, for equal values.
    columns = {"share": share, "std": variances**0.5, "low": low**0.5, "high": high**0.5}
    return pd.DataFrame(columns, pd.Index(np.array([*PARTS])[found], name="part"))


def _sums_of_squares(numbers: Floats, levels: Integers, spaces: Integers) -> Floats:
    """Return, per space but the first, its degrees of freedom, sum of squares and expectations.

    `numbers` are the values (n,); `levels` (n, 1 + parts) are the starts and the levels of each
    part. A column of `spaces` (n, spaces) is a space with a dimension per level, which counts
    without the spaces before it. The expectations are tr(B' Z Z' B) for an orthonormal basis B of
    this space and the indicators Z of the levels of each part.
    """
    before, rows = np.zeros((len(numbers), 0)), []
    for column in spaces.T:
        indicators = _indicators(column)
        left = indicators - before @ (before.T @ indicators)
        basis, sizes, _ = np.linalg.svd(left, full_matrices=False)
        basis = basis[:, sizes > SMALL]
        expected = [((_indicators(of).T @ basis) ** 2).sum() for of in levels.T[1:]]
        rows.append([basis.shape[1], ((basis.T @ numbers) ** 2).sum(), *expected])
        before = np.concatenate([before, basis], axis=1)
    return np.array(rows[1:])


def _indicators(levels: Integers) -> Floats:
    """Return a column per level that is 1 at the values of the level, and else 0."""
    return np.equal.outer(levels, np.unique(levels)).astype(np.float64)


def more_draws(std: float, draws: int, margin: float) -> float:
    """Return how many more draws find a difference of `margin` with a power of 80 %; 0 if none.

    `std` is the sample standard deviation over `draws` draws (at least 2) of the difference of two
    starts, each by its mean over the seeds and tasks of a draw. The test is a two-sided paired t
    test at 5 % over all draws. The power is averaged over the variances that agree with the
    measured one, std² (n - 1) / chi-squared(n - 1), so that few measured draws ask for more draws.
    Infinity if more than 1000 draws are needed in all.
    """
    middles = (np.arange(200) + 0.5) / 200  # of 200 equally probable intervals
    stds = std * np.sqrt((draws - 1) / scipy.stats.chi2.ppf(middles, draws - 1))

    def power(number: int) -> float:
        limit = scipy.stats.t.ppf(1 - LEVEL / 2, number - 1)
        ratios = np.sqrt(scipy.stats.chi2.ppf(middles, number - 1) / (number - 1))
        shifts = margin * math.sqrt(number) / np.maximum(stds, margin / 1000)
        # Of a normal number, given its variance. A difference of the wrong sign does not count.
        return float(scipy.special.ndtr(shifts[:, None] - limit * ratios).mean())

    needed = 2 + bisect.bisect_left(range(2, MOST_DRAWS + 1), POWER, key=power)
    return math.inf if needed > MOST_DRAWS else max(0, needed - draws)
