"""A metric against a setting or a measurement, and the terms of CoPreFL's meta objective.

Points are rows of a DataFrame: "at" (the value on the horizontal axis), "mean" and "std" (nan for
none), or "accuracy".
"""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from coprefl_flwr.report.figures import style

PAPER = "paper"
_ORDER = 3  # of the polynomial that CyclicFL draws

LEVEL, SPREAD = ("sum", "mean"), ("variance", "deviation")
"""What the terms of a meta objective are called (see `learning.meta`): gamma weighs one of the
first, 1 - gamma one of the second."""

_LEAST = 30.0
"""Ratio of a logarithmic axis's ends, at least: a shorter axis has no round numbers."""


def gamma_figure(panels: Mapping[str, pd.DataFrame]) -> "style.Figure":
    """Draw metrics by γ with error bars.

    `panels` has points by the panel's title, with the "line" that each is on; the line `PAPER` is
    drawn in ink. A panel where no line has two values of γ is left out; raises
    `NothingToDrawError` where all are.
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
            # Side by side, or the error bars hide one another.
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
    """Draw accuracy in percent by rounds of P1, and the least-squares cubic where `is_fitted`.

    `label` is the vertical axis's. Raises `NothingToDrawError` for fewer than two lengths of P1.
    """
    if points["at"].nunique() < 2:
        raise style.NothingToDrawError("at least two lengths of P1")
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
    """Return whether a cubic is fitted: more than four points, as four always have a cubic."""
    return points["at"].nunique() > _ORDER + 1


def explained_figure(panels: Mapping[str, pd.DataFrame]) -> "style.Figure":
    """Draw a point per start and unit: a measure at the start, and the accuracy that came of it.

    `panels` has by the panel's title a DataFrame with "start", "at" (the measure) and "accuracy" in
    percent. Raises `NothingToDrawError` where no panel has two points.
    """
    drawn = {title: points.dropna() for title, points in panels.items()}
    drawn = {title: points for title, points in drawn.items() if len(points) > 1}
    if not drawn:
        raise style.NothingToDrawError("diagnostics of at least two starts or units")
    starts = list(pd.concat(drawn.values())["start"].unique())
    shown = style.colours(starts)
    figure, grid = style.grid(len(drawn), 2, (0.6, 2.9), sharex=False)
    for panel, (title, points) in zip(grid, drawn.items(), strict=True):
        style.plain(panel, title, "a point: one task from one start", ylabel="Accuracy (%)")
        for start, of_start in points.groupby("start", sort=False):
            colour, _ = shown[str(start)]
            panel.plot(of_start["at"], of_start["accuracy"], "o", color=colour, markersize=5)
        if points["at"].nunique() == 1:  # Else the axis would show a spread that is none.
            panel.set_xticks([points["at"].iloc[0]])
    style.legend(figure, starts, shown)
    return figure


def weighted(rounds: pd.DataFrame, gamma: float) -> pd.DataFrame:
    """Return a row a round with both terms of the meta objective and their gradients' lengths.

    `rounds` are rows of rounds (`results`). The columns are "round", "level", "spread",
    "level-gradient" and "spread-gradient", weighted by γ and 1 - γ; "terms" says what they are. No
    rows where no round reports them.
    """
    for level, spread in zip(LEVEL, SPREAD, strict=True):
        if {f"meta-{level}", f"meta-{spread}"} <= {*rounds.dropna(axis=1, how="all")}:
            terms = pd.DataFrame({"round": rounds["round"]})
            for name, term, weight in (("level", level, gamma), ("spread", spread, 1 - gamma)):
                for suffix in ("", "-gradient"):
                    terms[f"{name}{suffix}"] = weight * rounds[f"meta-{term}{suffix}"].astype(float)
            return terms.dropna().assign(terms=f"{level}, {spread}")
    return pd.DataFrame()


def objective_figure(rounds: pd.DataFrame) -> "style.Figure":
    """Draw the weighted terms and the lengths of their gradients, on logarithmic axes.

    `rounds` are those of `weighted`, with the "start" of each; values of one round, as of several
    seeds, are averaged. A term of weight 0 has no line. Raises `NothingToDrawError` for no rows.
    """
    if rounds.empty:
        raise style.NothingToDrawError("rounds of a method with a meta objective")
    starts = list(rounds["start"].unique())
    shown = style.colours(starts)
    pairs = rounds["terms"].unique()
    level, spread = pairs[0].split(", ") if len(pairs) == 1 else ("first term", "second")
    below = f"solid: γ × {level}; dashed: (1 − γ) × {spread}"  # noqa: RUF001
    figure, panels = style.row_of_panels(2)
    titles = ("Terms of the meta objective", "Lengths of their gradients")
    for panel, title, suffix in zip(panels, titles, ("", "-gradient"), strict=True):
        style.by_round(panel, title, below)
        panel.set_yscale("log")
        for start, part in rounds.groupby("start", sort=False):
            means = part.groupby("round")[[f"level{suffix}", f"spread{suffix}"]].mean()
            for name, dashes in ((f"level{suffix}", "-"), (f"spread{suffix}", "--")):
                line = means[name][means[name] > 0]
                marker = "o" if len(line) == 1 else ""
                colour, _ = shown[str(start)]
                panel.plot(
                    line.index, line, color=colour, linestyle=dashes, linewidth=1.6, marker=marker
                )
        low, high = panel.get_ylim()
        room = max(1.0, math.sqrt(_LEAST * low / high))
        panel.set_ylim(low / room, high * room)
    style.legend(figure, starts, {start: (colour, "-") for start, (colour, _) in shown.items()})
    return figure
