"""The loss around a model, in two random directions (CyclicFL, Figures 7 to 9).

Filter-normalised directions: Li et al., Visualizing the Loss Landscape of Neural Nets, NeurIPS
2018, Section 4. https://arxiv.org/abs/1712.09913
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coprefl_flwr.arrays import Arrays, weights_of
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import style
from coprefl_flwr.seeds import generator

_LEVELS = 24
_STEEP = 20.0  # ratio of losses from which steps of equal ratio show more than equal steps


@dataclass(frozen=True)
class Landscape:
    """Losses on a square grid around a model.

    `steps` has the shape (points,): from -span to span along either direction, 1 being as long as
    the filters themselves. `losses` is (points, points): [i, j] at model + steps[i] * first +
    steps[j] * second direction.
    """

    steps: style.Floats
    losses: style.Floats


def landscape(
    loss: Callable[[Arrays], float],
    arrays: Arrays,
    *,
    seed: int = 0,
    span: float = 1.0,
    points: int = 25,
) -> Landscape:
    """Return f(a, b) = L(θ + a δ + b η) on a grid (Li et al., Equation 1).

    δ and η are functions of `seed` and of the arrays' names and shapes, before each is normalised
    to the filters of θ: models of one network are looked at in the same two directions.

    `arrays` are θ with its buffers, which no direction changes. `span` is half the side of the
    square, `points` the grid points along a side: an odd number, so that θ itself is one of them.
    """
    if points < 3 or points % 2 == 0:
        raise SettingsError(f"points = {points}; allowed: an odd number of 3 or more")
    if not span > 0:
        raise SettingsError(f"span = {span}; allowed: above 0")
    first, second = (direction(arrays, seed, which) for which in ("first", "second"))
    # Whole numbers divided, not linspace: the middle one is 0 itself.
    steps = span * np.arange(1 - points, points, 2) / (points - 1)

    def moved(a: float, b: float) -> Arrays:
        moving = {
            name: (arrays[name] + a * first[name] + b * second[name]).astype(arrays[name].dtype)
            for name in first
        }
        return arrays | moving

    losses = np.array([[loss(moved(a, b)) for b in steps] for a in steps], dtype=np.float64)
    return Landscape(steps, losses)


def direction(arrays: Arrays, seed: int, which: str) -> Arrays:
    """Return a random direction, normalised filter by filter, without the arrays it leaves alone.

    Those are the buffers and what has one dimension (biases, normalisation weights).
    """
    return {
        name: filter_normalised(
            generator(seed, "landscape", which, name).standard_normal(array.shape), array
        )
        for name, array in weights_of(arrays).items()
        if array.ndim > 1
    }


def filter_normalised(random: style.Floats, weights: npt.NDArray[Any]) -> style.Floats:
    """Return d_i / ||d_i|| * ||θ_i|| for every filter i, of either array's first axis.

    A filter is what makes one output: (in, height, width) of a convolution, a row of a matrix.
    """
    inner = tuple(range(1, weights.ndim))
    wanted = np.sqrt(np.sum(np.square(weights, dtype=np.float64), axis=inner, keepdims=True))
    norms = np.sqrt(np.sum(np.square(random), axis=inner, keepdims=True))
    return np.asarray(random * (wanted / np.where(norms > 0, norms, 1.0)))


def landscape_figure(landscapes: Mapping[str, Landscape]) -> "style.Figure":
    """Draw landscapes side by side as filled contours, on one colour scale; a cross is the model.

    Where the largest loss is more than twenty times the smallest, levels are of equal ratio. What
    is not finite stays white. Raises `NothingToDrawError` where no loss is finite.
    """
    grids = [found.losses for found in landscapes.values()]
    finite = np.concatenate([losses[np.isfinite(losses)] for losses in grids] or [np.empty(0)])
    if not finite.size:
        raise style.NothingToDrawError("landscapes with finite losses")
    levels, norm, ticks = _scale(float(finite.min()), float(finite.max()))
    columns = min(len(landscapes), 3)
    height = (0.6, 6.6 / columns if columns > 1 else 4.4)
    labels = ("First direction", "Second direction")
    figure, panels = style.alike(len(landscapes), columns, height, *labels)
    for panel, (name, found) in zip(panels, landscapes.items(), strict=True):
        steps, losses = found.steps, np.ma.masked_invalid(found.losses.T)  # Rows run upwards.
        drawn = panel.contourf(steps, steps, losses, levels=levels, norm=norm, cmap="viridis")
        panel.plot(0, 0, marker="+", color="white", markersize=9, markeredgewidth=1.6)
        middle = found.losses[len(steps) // 2, len(steps) // 2]
        style.title(panel, name, f"loss {middle:.3g} at the cross")
        panel.set_aspect("equal")
    bar = figure.colorbar(drawn, ax=figure.axes, shrink=0.8, format="%.4g", ticks=ticks)
    bar.set_label("Loss", fontsize=10, color=style.INK)
    bar.ax.minorticks_off()
    for axes in (*panels, bar.ax):
        axes.tick_params(labelsize=9, color=style.INK, labelcolor=style.INK)
    return figure


def _scale(low: float, high: float) -> tuple[style.Floats, Any, Any]:
    """Return contour levels from `low` to `high`, how they become colours, and where to label."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import LogLocator, MaxNLocator

    if high <= low:
        high = low + max(1e-6, abs(low) * 1e-6)
    if low > 0 and high > _STEEP * low:
        ticks = LogLocator(subs=(1.0, 2.0, 5.0), numticks=12)
        return np.geomspace(low, high, _LEVELS), LogNorm(low, high), ticks
    return np.linspace(low, high, _LEVELS), Normalize(low, high), MaxNLocator(8)
