"""Figures of accuracy by the length of a phase, and of the terms of a meta objective."""

import itertools

import numpy as np
import pandas as pd

from coprefl_flwr.report.comparison import Comparison
from coprefl_flwr.report.figures import style

_ORDER = 3  # of the polynomial in the figure of CyclicFL
LEVEL, SPREAD = ("sum", "mean"), ("variance", "deviation")
"""Names of the two terms of a meta objective (see `learning.meta`): gamma weighs a term of LEVEL,
and 1 - gamma a term of SPREAD."""


@style.settings()
def p1_rounds(comparison: Comparison) -> style.Drawn:
    """Draw the accuracy by the length of the first phase (P1), with a cubic polynomial.

    There is no polynomial for four or fewer lengths of P1: a cubic goes through any four points.
    """
    metric = next((m for m in ("final", "accuracy") if m in comparison.metrics), "")
    rows = [row for row in comparison.rows if metric and row.switch]
    values = [(row.switch, value) for row in rows for value in row.values[metric]]
    points = pd.DataFrame(values, columns=["rounds", "value"]).dropna()
    if (lengths := points["rounds"].nunique()) < 2:
        raise style.NothingToDrawError("methods with different numbers of rounds of phase P1")
    figure, (panel,) = style.new_figure(1, 2.9)
    by_length = points.groupby("rounds")["value"].agg(["mean", "std"])
    means = by_length["mean"]
    panel.errorbar(means.index, means, by_length["std"], fmt="o", color=style.INK, elinewidth=1)
    if lengths > _ORDER + 1:
        cubic = np.polynomial.Polynomial.fit(means.index, means, _ORDER)
        panel.plot(*cubic.linspace(200), color=style.colours(["cyclic"])["cyclic"][0], zorder=1)
    which = "Final test accuracy" if metric == "final" else "Accuracy of the tasks' clients"
    style.title(panel, "Length of P1", "mean ± std", "Rounds in P1", f"{which} (%)")
    return figure, (
        f"{which} against the rounds of the first phase. Line, with more than four lengths: the "
        f"least-squares polynomial of order {_ORDER}, as in CyclicFL."
    )


@style.settings()
def objective(comparison: Comparison) -> style.Drawn:
    """Draw the weighted terms of the meta objective and the norms of their gradients by round."""
    terms = weighted(comparison)
    if terms.empty:
        raise style.NothingToDrawError("rounds of a method with a meta objective")
    looks = style.colours(terms["row"])
    lines = terms[["start", "row", "first"]].drop_duplicates().itertuples(index=False)
    shown: style.Looks = {
        start: (looks[row][0], style.SOLID if first else style.DASHED)
        for start, row, first in lines
    }
    figure, panels = style.new_figure(2, 2.7)
    titles = {"": "Terms of the meta objective", "-gradient": "Norms of their gradients"}
    for panel, (of, title) in zip(panels, titles.items(), strict=True):
        style.lines(panel, terms[terms["of"] == of], shown, errorbar=None)
        panel.set_yscale("log")
        style.title(panel, title, "times their weights", "Round")
    style.legend(figure, shown)
    return figure, (
        "The two terms of the meta objective, times their weights γ and 1 − γ: sum and variance of "  # noqa: RUF001
        "the query losses (coprefl-std: mean and standard deviation); and the norms of the terms' "
        "gradients over all trainable weights, times the same weights. The meta step follows the "
        "negative sum of both gradients. Means over seeds; a term of weight 0 has no line."
    )


def weighted(comparison: Comparison) -> pd.DataFrame:
    """Return the terms of the meta objectives and the norms of their gradients, weighted, by round.

    The columns are "row", "start" (the row with a term), "first" (whether γ weights the term), "of"
    ("" for a term or "-gradient" for the norm of its gradient), "round" and "value", above 0.
    """
    parts = [pd.DataFrame({"value": []})]
    for row, term, of in itertools.product(comparison.rows, LEVEL + SPREAD, ("", "-gradient")):
        if (name := f"meta-{term}{of}") in row.rounds:
            first = term in LEVEL
            values = row.rounds[name].astype(float) * (row.gamma if first else 1 - row.gamma)
            start = f"{row.name}, {'γ' if first else '(1 − γ)'} × {term}"  # noqa: RUF001
            names = {"row": row.name, "start": start, "first": first, "of": of}
            parts.append(row.rounds[["round"]].assign(**names, value=values))
    terms = pd.concat(parts, ignore_index=True)
    return terms[terms["value"] > 0]
