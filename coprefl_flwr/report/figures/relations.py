"""Figures of differences, of accuracy by the length of a phase, and of a meta objective's terms."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd

from coprefl_flwr.report.answer import half_interval
from coprefl_flwr.report.comparison import Comparison, numbers
from coprefl_flwr.report.figures import style

_ORDER = 3  # of the polynomial in the figure of CyclicFL
_TERMS = {"sum": 0, "mean": 0, "variance": 1, "deviation": 1}
"""Terms of meta objectives (see `learning.meta`): gamma weighs those of 0, 1 - gamma those of 1."""


@style.settings()
def differences(comparison: Comparison) -> style.Drawn:
    """Draw each row's difference from the reference in the measure, with its interval."""
    reference, measure = comparison.tested_against.name, comparison.measure
    data = numbers(replace(comparison, metrics=[measure.metric]))
    data = data[(data["row"] != reference) & np.isfinite(data["difference"])][::-1]
    if data.empty:
        return None
    figure, (panel,) = style.new_figure(1, 1.0 + 0.3 * len(data))
    shown = style.colours(row.name for row in comparison.rows)
    for at, (_, row) in enumerate(data.iterrows()):
        half = half_interval(row) if row["pairs"] > 2 else None  # Two draws give endless ones.
        panel.errorbar(row["difference"], at, xerr=half, fmt="o", color=shown[row["row"]][0])
    panel.axvline(0, color=style.INK, linewidth=0.8)
    panel.set_yticks(range(len(data)), data["row"].tolist())
    panel.set_ylim(-0.6, len(data) - 0.4)
    panel.grid(visible=True, axis="x")
    unit = "points" if measure.unit == " %" else measure.axis
    panel.set_xlabel(f"Difference from {reference} ({unit})")
    return figure, (
        f"Mean paired differences in {measure.name} from {reference}, with 95 % intervals over "
        f"{comparison.noun}s if there are three, which are not corrected for several rows."
    )


@style.settings()
def p1_rounds(comparison: Comparison) -> style.Drawn:
    """Draw the accuracy, or the measure, by the length of the first phase (P1), with a cubic.

    There is no polynomial for four or fewer lengths of P1: a cubic goes through any four points.
    """
    from matplotlib.ticker import MaxNLocator

    names = {"final": "Final test accuracy", "final-loss": "Final test loss"}
    wanted = (*names, comparison.measure.metric)
    metric = next((m for m in wanted if m in comparison.metrics), "")
    rows = [row for row in comparison.rows if metric and row.switch]
    values = [(row.switch, value) for row in rows for value in row.values[metric]]
    points = pd.DataFrame(values, columns=["rounds", "value"]).dropna()
    if (lengths := points["rounds"].nunique()) < 2:
        return None
    figure, (panel,) = style.new_figure(1, 2.9)
    by_length = points.groupby("rounds")["value"].agg(["mean", "std"])
    means = by_length["mean"]
    panel.errorbar(means.index, means, by_length["std"], fmt="o", color=style.INK, elinewidth=1)
    if lengths > _ORDER + 1:
        cubic = np.polynomial.Polynomial.fit(means.index, means, _ORDER)
        panel.plot(*cubic.linspace(200), color=style.colours(["cyclic"])["cyclic"][0], zorder=1)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    title, unit = comparison.column(metric).title, comparison.column(metric).unit
    which = names.get(metric, f"{title.removesuffix(unit)} of the tasks' clients")
    label = f"{which} (%)" if unit else which
    style.title(panel, "Length of P1", "mean ± std", "Rounds in P1", label)
    return figure, (
        f"{which} against the rounds of the first phase. Line, with more than four lengths: the "
        f"least-squares polynomial of order {_ORDER}, as in CyclicFL."
    )


@style.settings()
def objective(comparison: Comparison) -> style.Drawn:
    """Draw the weighted terms of the meta objective and the norms of their gradients by round."""
    terms = weighted(comparison)
    if terms.empty:
        return None
    looks = style.colours(terms["row"])
    lines = terms[["start", "row", "term"]].drop_duplicates().itertuples(index=False)
    shown = {start: (looks[row][0], style.DASHES[int(term)]) for start, row, term in lines}
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

    The columns are "row", "start" (the row with a term), "term" (see `_TERMS`), "of" ("" for a term
    or "-gradient" for the norm of its gradient), "round" and "value", above 0.
    """
    parts = [pd.DataFrame({"value": []})]
    for row, (name, term), of in itertools.product(
        comparison.rows, _TERMS.items(), ("", "-gradient")
    ):
        if f"meta-{name}{of}" in row.rounds:
            weight, factor = ((row.gamma, "γ"), (1 - row.gamma, "(1 − γ)"))[term]  # noqa: RUF001
            values = weight * row.rounds[f"meta-{name}{of}"].astype(float)
            part = row.rounds[["round"]].assign(row=row.name, term=term, of=of, value=values)
            parts.append(part.assign(start=f"{row.name}, {factor} × {name}"))  # noqa: RUF001
    terms = pd.concat(parts, ignore_index=True)
    return terms[terms["value"] > 0]
