"""How client accuracies are spread (CoPreFL, Figures 2 to 10)."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coprefl_flwr.report.figures.style import (
    INK,
    colours,
    image_format,
    new_figure,
    plain,
    save,
    title,
)
from coprefl_flwr.report.tables import ClientRow, accuracies, summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def accuracy_histogram(rows: Sequence[ClientRow], path: str | Path) -> None:
    """Save `accuracy_figure`; the file's suffix is one of `FORMATS`."""
    image_format(path)
    save(accuracy_figure(rows), path)


def accuracy_figure(rows: Sequence[ClientRow]) -> "Figure":
    """Draw the client accuracies of each start, pooled over tasks (CoPreFL, Figures 2 to 10).

    Mean (also the vertical line) and variance in a panel's title are those of the table: per task,
    then averaged over tasks.
    """
    pooled = {
        start: np.concatenate([np.asarray(values) for values in tasks.values()])
        for start, tasks in accuracies(rows).items()
    }
    shown = colours(pooled)
    edges = _edges(np.concatenate(list(pooled.values())))
    # One below the other, shifts along the shared axis are seen best.
    columns = 1 if len(pooled) <= 3 else 2
    lines = -(-len(pooled) // columns)
    figure = new_figure(0.5 + 1.55 * lines)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for panel, entry in zip(panels, summary(rows), strict=False):
        values = pooled[entry["start"]]
        weights = np.full(values.size, 100 / values.size)
        panel.hist(
            values,
            bins=edges,
            weights=weights,
            color=shown[entry["start"]][0],
            edgecolor="white",
            linewidth=0.6,
        )
        # White below, or the line is lost in dark bars.
        panel.axvline(entry["accuracy"], color="white", linewidth=2.6)
        panel.axvline(entry["accuracy"], color=INK, linewidth=1.2)
        numbers = f"mean {entry['accuracy']:.1f} %, variance {entry['variance']:.1f} %²"
        title(panel, entry["start"], numbers)
        plain(panel)
    for panel in panels[len(pooled) :]:
        panel.set_visible(False)
    for panel in panels[max(0, len(pooled) - columns) : len(pooled)]:
        panel.tick_params(labelbottom=True)
    panels[0].set_xlim(edges[0], edges[-1])
    figure.supxlabel("Client accuracy (%)", fontsize=10, color=INK)
    figure.supylabel("Clients (%)", fontsize=10, color=INK)
    return figure


def _edges(values: npt.NDArray[np.float64]) -> list[float]:
    """Return equal bins with edges at round percentages, at most 21 of them, around all values."""
    span = float(np.ptp(values))
    width = next((width for width in (1.0, 2.0, 2.5) if span <= 14 * width), 5.0)
    low = math.floor(values.min() / width) * width
    bins = max(4, math.ceil((values.max() - low) / width))
    low = min(low, 100 - bins * width)
    return [low + width * index for index in range(bins + 1)]
