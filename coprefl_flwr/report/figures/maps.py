"""Figures of loss landscapes, of similarities of backbones, and of an image with noise."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from coprefl_flwr.report.comparison import Floats
from coprefl_flwr.report.figures import style

_LEVELS = 24
_STEEP = 20.0  # ratio of largest to smallest loss above which contour levels are geometric
_PALE = "#FEFEFE"  # Not pure white, because a dark page replaces pure white by its dark colour.


def landscape_figure(landscapes: Mapping[str, pd.DataFrame]) -> "style.Figure":
    """Draw the losses around each model as filled contours on one colour scale.

    A cross marks the model. A landscape has a row per step in the first direction and a column per
    step in the second direction. The unit of a step is the norm of the filters. If the largest loss
    is more than 20 times the smallest loss, the ratio of neighbouring contour levels is constant.
    Losses that are not finite are white. Raises `NothingToDrawError` if no loss is finite.
    """
    grids = [landscape.to_numpy() for landscape in landscapes.values()]
    finite = np.concatenate([losses[np.isfinite(losses)] for losses in grids] or [np.empty(0)])
    if not finite.size:
        raise style.NothingToDrawError("landscapes with finite losses")
    levels, norm, ticks = _scale(float(finite.min()), float(finite.max()))
    columns = min(len(landscapes), 3)
    height = (0.6, 6.6 / columns if columns > 1 else 4.4)
    labels = ("First direction", "Second direction")
    figure, panels = style.grid(len(landscapes), columns, height, *labels)
    for panel, losses, (name, landscape) in zip(panels, grids, landscapes.items(), strict=True):
        rows, cols = landscape.index.to_numpy(), landscape.columns.to_numpy()
        upwards = np.ma.masked_invalid(losses.T)
        drawn = panel.contourf(rows, cols, upwards, levels=levels, norm=norm, cmap="viridis")
        panel.plot(0, 0, marker="+", color=_PALE, markersize=9, markeredgewidth=1.6)
        middle = losses[len(rows) // 2, len(cols) // 2]
        style.title(panel, name, f"loss {middle:.3g} at the cross")
        panel.set_aspect("equal")
    bar = figure.colorbar(drawn, ax=figure.axes, shrink=0.8, format="%.4g", ticks=ticks)
    bar.set_label("Loss", fontsize=10, color=style.INK)
    bar.ax.minorticks_off()
    for axes in (*panels, bar.ax):
        axes.tick_params(labelsize=9, color=style.INK, labelcolor=style.INK)
    return figure


def _scale(low: float, high: float) -> tuple[Floats, Any, Any]:
    """Return contour levels from `low` to `high`, their colour norm, and the locator of ticks."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import LogLocator, MaxNLocator

    if high <= low:
        high = low + max(1e-6, abs(low) * 1e-6)
    if low > 0 and high > _STEEP * low:
        ticks = LogLocator(subs=(1.0, 2.0, 5.0), numticks=12)
        return np.geomspace(low, high, _LEVELS), LogNorm(low, high), ticks
    return np.linspace(low, high, _LEVELS), Normalize(low, high), MaxNLocator(8)


def similarity_figure(scores: pd.DataFrame) -> "style.Figure":
    """Draw a heat map of normalised similarities: a row per backbone, a column per client."""
    rows, columns = scores.shape
    figure = style.new_figure(1.4 + 0.6 * rows, 2.2 + 0.9 * columns)
    axes = figure.add_subplot()
    image = axes.imshow(scores, cmap="Blues", aspect="auto")
    axes.set_xticks(range(columns), style.drawn(scores.columns), rotation=30, ha="right")
    axes.set_yticks(range(rows), style.drawn(scores.index))
    axes.tick_params(color=style.INK, labelcolor=style.INK)
    values = scores.to_numpy()
    middle = (values.min() + values.max()) / 2
    for (row, column), value in np.ndenumerate(values):
        colour = _PALE if value > middle else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("Normalised similarity", color=style.INK)
    bar.ax.tick_params(color=style.INK, labelcolor=style.INK)
    return figure


def noised_figure(images: tuple[Floats, Floats]) -> "style.Figure":
    """Draw an image (C, H, W) without and with noise; pixel values are clipped to 0..1."""
    figure = style.new_figure(2.8, 5.0)
    panels = dict(zip(("without noise", "with noise"), images, strict=True))
    for axes, (title, image) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        shown = np.clip(np.moveaxis(image, 0, -1), 0, 1)
        axes.imshow(shown if shown.shape[-1] == 3 else shown[..., 0], cmap="gray", vmin=0, vmax=1)
        axes.set_title(title, color=style.INK)
        axes.set_axis_off()
    return figure
