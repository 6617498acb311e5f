"""How well, and how evenly, a model serves the clients of one task.

The metrics of CoPreFL's evaluation (AAAI text, Section 4.1, and its appendix). Accuracies are
percentages, one per client, and every client counts the same however many samples it has. Variance
is that of the population of clients.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from coprefl_flwr.errors import SettingsError


def worst(accuracies: npt.ArrayLike, share: float) -> float:
    """Return the mean of the lowest ceil(share * |G|) accuracies ("Lowest k %"), in percent."""
    values = np.sort(np.asarray(accuracies, dtype=np.float64))
    return float(np.mean(values[: _count(share, values.size)]))


def best(accuracies: npt.ArrayLike, share: float) -> float:
    """Return the mean of the highest ceil(share * |G|) accuracies, in percent."""
    values = np.sort(np.asarray(accuracies, dtype=np.float64))
    return float(np.mean(values[-_count(share, values.size) :]))


Measure = Callable[[npt.NDArray[np.float64]], float]  # of the clients' accuracies
METRICS: dict[str, Measure] = {
    "accuracy": lambda accuracies: float(np.mean(accuracies)),
    "variance": lambda accuracies: float(np.var(accuracies)),
    **{f"worst-{percent}%": partial(worst, share=percent / 100) for percent in (10, 20, 30, 40)},
    "best-10%": partial(best, share=0.1),
}
"""What is reported of a task, by name."""


def summarise_task(accuracies: npt.ArrayLike) -> dict[str, float]:
    """Return every metric of `METRICS` for the clients of one task, in that order."""
    values = np.asarray(accuracies, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise SettingsError(
            f"accuracies have shape {values.shape}; allowed: one number per client, at least one"
        )
    for outside in values[~((values >= 0) & (values <= 100))]:
        raise SettingsError(f"an accuracy is {outside}; allowed: percentages from 0 to 100")
    return {name: measure(values) for name, measure in METRICS.items()}


def _count(share: float, clients: int) -> int:
    """Return ceil(share * clients), at least 1, as if `share` were the decimal that was written."""
    if not 0 < share <= 1:
        raise SettingsError(f"share of clients is {share}; allowed: above 0, up to 1")
    # 0.07 * 100 is 7.000000000000001 in floating point, and its ceiling 8.
    return max(1, math.ceil(round(share * clients, 9)))
