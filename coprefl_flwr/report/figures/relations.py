"""Figures of a metric against a setting or measure, and of the terms of CoPreFL's meta objective.

The points are rows of a DataFrame. The column "at" has the value on the horizontal axis. The value
on the vertical axis is in "mean" and "std" (nan if there is no deviation), or in "accuracy".
"""

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from coprefl_flwr.report.figures import style

PAPER = "paper"
_ORDER = 3  # of the polynomial in the figure of CyclicFL

LEVEL, SPREAD = ("sum", "mean"), ("variance", "deviation")
"""Names of the two terms of a meta objective (see `learning.meta`): gamma weighs a term of LEVEL,
and 1 - gamma a term of SPREAD."""

_LEAST = 30.0
"""Ratio, at least, of the two ends of a logarithmic axis, so that the axis has labelled ticks."""


def gamma_figure(panels: Mapping[str, pd.DataFrame]) -> "style.Figure":
    """Draw metrics by γ with error bars.

    `panels` has the points of each panel, by the title of the panel. The column "line" is the name
    of the line of each point. The line `PAPER` has the colour of the text. A panel is left out if
    none of its lines has two values of γ. Raises `NothingToDrawError` if every panel is left out.
    """
    drawn = {
        title: points.sort_values("at", kind="stable").fillna({"std": 0.0})
        for title, points in panels.items()
        if (points.groupby("line")["at"].nunique() > 1).any()
    }
    if not drawn:
        raise style.NothingToDrawError("at least two values of gamma")
    names = list(pd.concat([panels[title] for title in drawn])["line"].unique())
    shown = style.colours(name for name in names if name != PAPER) | {PAPER: (style.INK, "--")}
    figure, grid = style.row_of_panels(len(drawn))
    for panel, (title, points) in zip(grid, drawn.items(), strict=True):
        style.plain(panel, title, "mean ± std", r"$\gamma$")
        lines = panels[title]["line"].unique()
        for place, name in enumerate(lines):
            line = points[points["line"] == name]
            colour, dashes = shown[name]
            # Shifted sideways, or else the error bars of the lines would overlap.
            shift = 0.008 * (place - (len(lines) - 1) / 2)
            panel.errorbar(
                line["at"] + shift, line["mean"], line["std"], color=colour, linestyle=dashes,
                linewidth=1.6, elinewidth=1, capsize=3, marker="o", markersize=5,
                markerfacecolor="white" if name == PAPER else colour,
            )  # fmt: skip
        panel.set_xticks(points["at"].unique())
    style.legend(figure, names, shown)
    return figure


def p1_rounds_figure(points: pd.DataFrame, label: str) -> "style.Figure":
    """Draw the accuracy, in percent, by the number of rounds of the first phase (P1).

    The least-squares cubic polynomial is drawn too if `is_fitted`. `label` is the label of the
    vertical axis. Raises `NothingToDrawError` if all points have the same number.
    """
    if points["at"].nunique() < 2:
        raise style.NothingToDrawError("methods with different numbers of rounds of phase P1")
    points = points.sort_values("at", kind="stable").fillna({"std": 0.0})
    colour, _ = style.colours(["cyclic"])["cyclic"]
    figure, (panel,) = style.row_of_panels(1)
    below = "mean ± std" if points["std"].any() else "one run each"
    panel.errorbar(
        points["at"], points["mean"], points["std"], fmt="o", color=style.INK, ecolor=style.INK,
        elinewidth=1, capsize=3,
    )  # fmt: skip
    if is_fitted(points):
        cubic = np.polynomial.Polynomial.fit(points["at"], points["mean"], _ORDER)
        panel.plot(*cubic.linspace(200), color=colour, linewidth=1.6, zorder=1)
        below += "; line: least-squares cubic"
    style.by_round(panel, "Length of P1", below, label, "Rounds in P1")
    return figure


def is_fitted(points: pd.DataFrame) -> bool:
    """Return whether a cubic polynomial is fitted to the points.

    The points need more than four different numbers of rounds, because a cubic can pass through any
    four points.
    """
    return points["at"].nunique() > _ORDER + 1


def explained_figure(panels: Mapping[str, pd.DataFrame]) -> "style.Figure":
    """Draw the accuracy of tasks against measures of the starting model, a panel per measure.

    A point is one task from one start. `panels` has a DataFrame per panel, by the title of the
    panel. Its columns are "start", "at" (the measure) and "accuracy" in percent. A panel with fewer
    than two points is left out. Raises `NothingToDrawError` if every panel is left out.
    """
    drawn = {title: points.dropna() for title, points in panels.items()}
    drawn = {title: points for title, points in drawn.items() if len(points) > 1}
    if not drawn:
        raise style.NothingToDrawError("diagnostics of at least two tasks or initial models")
    starts = list(pd.concat(drawn.values())["start"].unique())
    shown = style.colours(starts)
    figure, grid = style.grid(len(drawn), 2, (0.6, 2.9), sharex=False)
    for panel, (title, points) in zip(grid, drawn.items(), strict=True):
        style.plain(panel, title, "a point: one task from one start", ylabel="Accuracy (%)")
        for start, of_start in points.groupby("start", sort=False):
            colour, _ = shown[str(start)]
            panel.plot(of_start["at"], of_start["accuracy"], "o", color=colour, markersize=5)
        if points["at"].nunique() == 1:  # Or else the axis would suggest a spread.
            panel.set_xticks([points["at"].iloc[0]])
    style.legend(figure, starts, shown)
    return figure


def weighted(rounds: pd.DataFrame, gamma: float) -> pd.DataFrame:
    """Return both weighted terms of the meta objective and the norms of their gradients, by round.

    `rounds` has one row per round (see `results`). The columns of the result are "round", "level"
    and "level-gradient" (weighted by γ), "spread" and "spread-gradient" (weighted by 1 - γ), and
    "terms" with the names of the two terms. The result is empty if no round has these metrics.
    """
    for level, spread in itertools.product(LEVEL, SPREAD):
        if {f"meta-{level}", f"meta-{spread}"} <= {*rounds.dropna(axis=1, how="all")}:
            terms = pd.DataFrame({"round": rounds["round"]})
            for name, term, weight in (("level", level, gamma), ("spread", spread, 1 - gamma)):
                for suffix in ("", "-gradient"):
                    terms[f"{name}{suffix}"] = weight * rounds[f"meta-{term}{suffix}"].astype(float)
            return terms.dropna().assign(terms=f"{level}, {spread}")
    return pd.DataFrame()


def objective_figure(rounds: pd.DataFrame) -> "style.Figure":
    """Draw the weighted terms and the norms of their gradients by round, on logarithmic axes.

    `rounds` has the rows that `weighted` returns, with the additional column "start". If a round
    has several rows, such as those of several seeds, their values are averaged. A term with weight
    0 has no line. Raises `NothingToDrawError` if `rounds` is empty.
    """
    if rounds.empty:
        raise style.NothingToDrawError("rounds of a method with a meta objective")
    starts = list(rounds["start"].unique())
    shown = style.colours(starts)
    pairs = rounds["terms"].unique()
    level, spread = pairs[0].split(", ") if len(pairs) == 1 else ("first term", "second")
    below = f"solid: γ × {level}; dashed: (1 − γ) × {spread}"  # noqa: RUF001
    figure, panels = style.row_of_panels(2)
    titles = ("Terms of the meta objective", "Norms of their gradients")
    for panel, title, suffix in zip(panels, titles, ("", "-gradient"), strict=True):
        style.by_round(panel, title, below)
        panel.set_yscale("log")
        for start, part in rounds.groupby("start", sort=False):
            means = part.groupby("round")[[f"level{suffix}", f"spread{suffix}"]].mean()
            colour, _ = shown[str(start)]
            for name, dashes in ((f"level{suffix}", "-"), (f"spread{suffix}", "--")):
                term = means[name][means[name] > 0]
                style.line(panel, term.index, term, colour, dashes)
        low, high = panel.get_ylim()
        room = max(1.0, math.sqrt(_LEAST * low / high))
        panel.set_ylim(low / room, high * room)
    style.legend(figure, starts, {start: (colour, "-") for start, (colour, _) in shown.items()})
    return figure
