"""Means of the global models of several rounds, which do not change the training."""

from typing import Any

import numpy as np

from coprefl_flwr.arrays import Arrays, cast_like
from coprefl_flwr.federation.context import RunStrategy

AVERAGES = ("average-window", "average-decay")
"""Keys of the options of a mean."""

MODELS = "models-of-rounds"
"""Prefix of the entries of a run's state from which the mean is computed."""


def remember(
    state: dict[str, Any], server_round: int, arrays: Arrays, options: RunStrategy
) -> None:
    """Add the global model w of a round to the state of a run, if the run has a mean.

    With a window of W rounds, the state holds the models of the last W rounds (WIMA). With a decay
    d, it holds m <- d m + (1 - d) w in float64, where m is at first the first model.
    """
    window, d = options.average_window, options.average_decay
    if window is None and d is None:
        return
    old = state.pop(f"{MODELS}-{server_round - (window or 1)}", arrays)
    if d is not None:
        changes = {n: np.subtract(w, old[n], dtype=np.float64) for n, w in arrays.items()}
        arrays = {n: np.asarray(old[n] + (1 - d) * change) for n, change in changes.items()}
    state[f"{MODELS}-{server_round}"] = arrays


def mean_model(state: dict[str, Any], like: Arrays) -> Arrays | None:
    """Return the mean in the state of a run, with the dtypes of `like`; None if there is none.

    The mean is computed in float64. The mean of an integer buffer is rounded.
    """
    models = [arrays for name, arrays in state.items() if name.startswith(MODELS)]
    if not models:
        return None
    sums = {n: np.asarray(sum(np.float64(model[n]) for model in models)) for n in like}
    return cast_like({n: array / len(models) for n, array in sums.items()}, like)
