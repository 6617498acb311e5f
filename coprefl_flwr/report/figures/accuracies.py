"""How client accuracies are spread (CoPreFL, Figures 2 to 10)."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from coprefl_flwr.report.figures import style
from coprefl_flwr.report.results import accuracies, summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def accuracy_histogram(rows: pd.DataFrame, path: str | Path) -> None:
    """Save `accuracy_figure`; the file's suffix is one of `FORMATS`."""
    style.image_format(path)
    style.save(accuracy_figure(rows), path)


def accuracy_figure(rows: pd.DataFrame) -> "Figure":
    """Draw the client accuracies of each start, pooled over tasks (CoPreFL, Figures 2 to 10).

    Mean (also the vertical line) and variance in a panel's title are those of the table: per task,
    then averaged over tasks.
    """
    starts = accuracies(rows).groupby("start", sort=False)["accuracy"]
    pooled = {str(start): values.to_numpy() for start, values in starts}
    shown = style.colours(pooled)
    edges = _edges(np.concatenate(list(pooled.values())))
    # One below the other, shifts along the shared axis are seen best.
    columns = 1 if len(pooled) <= 3 else 2
    lines = -(-len(pooled) // columns)
    figure = style.new_figure(0.5 + 1.55 * lines)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for panel, (_, entry) in zip(panels, summary(rows).iterrows(), strict=False):
        values = pooled[entry["start"]]
        weights = np.full(values.size, 100 / values.size)
        colour, _ = shown[entry["start"]]
        panel.hist(values, edges, weights=weights, color=colour, edgecolor="white", linewidth=0.6)
        # White below, or the line is lost in dark bars.
        panel.axvline(entry["accuracy"], color="white", linewidth=2.6)
        panel.axvline(entry["accuracy"], color=style.INK, linewidth=1.2)
        numbers = f"mean {entry['accuracy']:.1f} %, variance {entry['variance']:.1f} %²"
        style.title(panel, entry["start"], numbers)
        style.plain(panel)
    for panel in panels[len(pooled) :]:
        panel.set_visible(False)
    for panel in panels[max(0, len(pooled) - columns) : len(pooled)]:
        panel.tick_params(labelbottom=True)
    panels[0].set_xlim(edges[0], edges[-1])
    figure.supxlabel("Client accuracy (%)", fontsize=10, color=style.INK)
    figure.supylabel("Clients (%)", fontsize=10, color=style.INK)
    return figure


def _edges(values: style.Floats) -> list[float]:
    """Return equal bins with edges at round percentages, at most 21 of them, around all values."""
    span = float(np.ptp(values))
    width = next((width for width in (1.0, 2.0, 2.5) if span <= 14 * width), 5.0)
    low = math.floor(values.min() / width) * width
    bins = max(4, math.ceil((values.max() - low) / width))
    low = min(low, 100 - bins * width)
    return [low + width * index for index in range(bins + 1)]
