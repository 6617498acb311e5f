"""How client accuracies are spread (CoPreFL, Figures 2 to 10)."""

import math

import numpy as np
import pandas as pd

from coprefl_flwr.report.figures import style
from coprefl_flwr.report.results import accuracies, summary

_BELOW = 6  # panels that can stand one below the other


def accuracy_figure(rows: pd.DataFrame) -> "style.Figure":
    """Draw the client accuracies of each start, pooled over tasks.

    Mean (also the vertical line) and variance in a panel's title are those of the table: per task,
    then averaged over tasks. The dotted line is the lowest mean, the same in all panels.
    """
    found = accuracies(rows)
    shown = style.colours(rows["start"])
    edges = _edges(found["accuracy"].to_numpy())
    entries = summary(rows)
    # One below the other, shifts along the shared axis are seen best.
    columns = 1 if len(entries) <= _BELOW else 2
    labels = ("Client accuracy (%)", "Clients (%)")
    height = 1.55 if len(entries) <= 3 or columns > 1 else 1.25
    figure, panels = style.alike(len(entries), columns, (0.5, height), *labels)
    least = min(entries["accuracy"])
    for panel, (_, entry) in zip(panels, entries.iterrows(), strict=True):
        values = found["accuracy"][found["start"] == entry["start"]]
        weights = np.full(len(values), 100 / len(values))
        colour, _ = shown[entry["start"]]
        panel.hist(values, edges, weights=weights, color=colour, edgecolor="white", linewidth=0.6)
        # White below, or the line is lost in dark bars.
        panel.axvline(entry["accuracy"], color="white", linewidth=2.6)
        panel.axvline(entry["accuracy"], color=style.INK, linewidth=1.2)
        panel.axvline(least, color=style.INK, linewidth=0.8, linestyle=":")
        numbers = f"mean {entry['accuracy']:.1f} %, variance {entry['variance']:.1f} %²"
        style.plain(panel, entry["start"], numbers)
    panels[0].set_xlim(edges[0], edges[-1])
    return figure


def _edges(values: style.Floats) -> list[float]:
    """Return equal bins with edges at round percentages, at most 21 of them, around all values."""
    span = float(np.ptp(values))
    width = next((width for width in (1.0, 2.0, 2.5) if span <= 14 * width), 5.0)
    low = math.floor(values.min() / width) * width
    bins = max(4, math.ceil((values.max() - low) / width))
    low = min(low, 100 - bins * width)
    return [low + width * index for index in range(bins + 1)]
