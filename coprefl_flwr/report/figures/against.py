"""A metric against a setting: CoPreFL's γ (its Table 2), the rounds of P1 (CyclicFL, Figure 6).

Points are rows of a DataFrame: "at" (the setting's value), "mean" and "std" (nan for none).
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from coprefl_flwr.report.figures import style

PAPER = "paper"
_ORDER = 3  # of the polynomial that CyclicFL draws


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
    """Tell whether a cubic says anything: through four points there is always one."""
    return points["at"].nunique() > _ORDER + 1
