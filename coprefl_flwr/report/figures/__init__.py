"""The figures of a comparison, by the names that recipes give them, each with its caption.

Matplotlib is imported when a figure is drawn, and never through pyplot: no backend is chosen for
the program that calls, and none of its settings change.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from coprefl_flwr.report.columns import DIAGNOSTICS, column
from coprefl_flwr.report.comparison import Comparison, Measured
from coprefl_flwr.report.figures import learning, maps, relations, style
from coprefl_flwr.report.figures.learning import accuracy_figure as accuracy_figure
from coprefl_flwr.report.figures.learning import learning_figure as learning_figure
from coprefl_flwr.report.figures.style import NothingToDrawError, as_svg, content_of
from coprefl_flwr.report.figures.style import save as save
from coprefl_flwr.report.learnt import CHAINED
from coprefl_flwr.report.statistics import summarise
from coprefl_flwr.report.tables import numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn = tuple["Figure", str]  # a figure and its caption


class Picture(NamedTuple):
    """A figure of a comparison."""

    kind: str  # one of `comparison.FIGURES`
    files: dict[str, bytes]  # PNG and PDF, by path from the page's folder
    svg: str  # for a page, in its colours
    narrow: str  # the same for a phone
    caption: str
    alternative: str  # the caption for those who do not see the figure


def draw(comparison: Comparison, kinds: Sequence[str]) -> list[Picture]:
    """Return those figures that the comparison has data for."""
    found = []
    rows = ", ".join(row.name for row in comparison.measured)
    for kind in kinds:
        try:
            figure, caption = _KINDS[kind](comparison)
        except NothingToDrawError:
            continue
        name = f"{comparison.name}-{kind}"
        files = {f"figures/{name}.{end}": content_of(figure, end) for end in ("png", "pdf")}
        svg, told = as_svg(figure, name), f"{caption} Of {rows}."
        with style.narrow():
            figure, _ = _KINDS[kind](comparison)
            found.append(Picture(kind, files, svg, as_svg(figure, f"{name}-n"), caption, told))
    return found


def _together(comparison: Comparison, of: Callable[[Measured], pd.DataFrame]) -> pd.DataFrame:
    """Return what the measured rows have of something, with their names as start."""
    parts = [of(one).assign(start=one.name) for one in comparison.measured if not of(one).empty]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _accuracies(comparison: Comparison) -> Drawn:
    rows = _together(comparison, lambda one: one.rows)
    if rows.empty:
        raise NothingToDrawError("rows of clients")
    return accuracy_figure(rows), (
        "Accuracies of the tasks' clients, pooled over tasks; of few, a dot is a client. Line: "
        "mean; dotted: lowest mean of all. Mean and variance are those of the table: per task, "
        "then averaged."
    )


def _curves(comparison: Comparison) -> Drawn:
    before = _together(comparison, lambda one: one.rounds)
    tasks = _together(comparison, lambda one: one.curves)
    caption = "Learning curves: the training (test accuracy where tested, else training loss)"
    if not tasks.empty:
        caption += ", and the mean accuracy of the tasks' clients"
    caption += ". Bars next to the last round: one sample standard deviation"
    if CHAINED in before and before[CHAINED].eq(True).any():
        caption += ". In a chain the loss is that of one model, fitted to client after client"
    return learning_figure(pd.concat([before, tasks], ignore_index=True)), f"{caption}."


def _switch(comparison: Comparison) -> Drawn:
    runs = [one for one in comparison.measured if len(_tested(one.rounds))]
    accuracy = pd.DataFrame({one.name: _tested(one.rounds) for one in runs})
    switches = {one.name: one.switch for one in runs}
    figure = learning.switch_figure(accuracy, switches)
    seeds = max(one.rounds["seed"].nunique() for one in runs)
    over = f", mean over {seeds} seeds" if seeds > 1 else ""
    windows = {
        learning.smoothing_window(tested.dropna().index) for _, tested in accuracy.items()
    } - {0}
    smoothing = "too few tested rounds to smooth"
    if windows:
        smoothing = (
            f"smoothed by a Savitzky-Golay filter of order {learning.ORDER} over "
            f"{' or '.join(map(str, sorted(windows)))} tested rounds, as many as were tested in "
            f"{learning.WINDOW} (CyclicFL)"
        )
    return figure, f"Test accuracy by round{over}, {smoothing}; dotted lines: a switch of phase."


def _tested(rounds: pd.DataFrame) -> "pd.Series[float]":
    """Return the mean test accuracy over the seeds by round; rounds that all of them tested."""
    found = rounds.reindex(columns=["round", "seed", "server-accuracy"])
    by_seed = found.pivot(index="round", columns="seed", values="server-accuracy").astype(float)
    return by_seed.where(np.isfinite(by_seed)).dropna().mean(axis=1)


def _p1_rounds(comparison: Comparison) -> Drawn:
    metric = next((m for m in ("final", "accuracy") if m in comparison.metrics), "")
    phased = [one for one in comparison.measured if metric and one.switch]
    found = [(one.switch, *summarise(one.values[metric])) for one in phased]
    points = pd.DataFrame(found, columns=["at", "mean", "std", "n"]).query("n > 0")
    which = "Final test accuracy" if metric == "final" else "Accuracy of the tasks' clients"
    fit = (
        "the line is the least-squares"
        if relations.is_fitted(points)
        else "too few points for the paper's"
    )
    caption = f"{which} against the rounds of the first phase; {fit} polynomial of order 3."
    return relations.p1_rounds_figure(points, f"{which} (%)"), caption


def _landscape(comparison: Comparison) -> Drawn:
    found = {o.name: o.landscape for o in comparison.measured if o.landscape is not None}
    return maps.landscape_figure(found), (
        "Loss around each model in the same two random directions, normalised filter by filter (Li "
        "et al., 2018); a step of 1 is as long as the filters. One colour scale for all."
    )


def _gamma(comparison: Comparison) -> Drawn:
    metrics = [metric for metric in ("accuracy", "variance") if metric in comparison.metrics]
    panels = {column(metric).title: _by_gamma(comparison, metric) for metric in metrics}
    caption = "Accuracy and variance by γ; bars: one sample standard deviation."  # noqa: RUF001
    if any((points["line"] == relations.PAPER).any() for points in panels.values()):
        caption += f" Dashed: {comparison.source or 'the paper'}."
    return relations.gamma_figure(panels), caption


def _by_gamma(comparison: Comparison, metric: str) -> pd.DataFrame:
    """Return points, on a line a label and its other choices; the paper's if one has them."""
    lines = []
    for one in comparison.measured:
        others = [f"{key}={value}" for key, value in one.options.items() if key != "gamma"]
        line = ":".join([one.label, ",".join(others)]) if others else one.label
        if "gamma" in one.options:
            lines.append((one.name, line, float(one.options["gamma"])))
    found = numbers(comparison)
    found = found[found["metric"] == metric]
    found = pd.DataFrame(lines, columns=["row", "line", "at"]).merge(found, on="row")
    points = found.query("n > 0")[["line", "at", "mean", "std"]]
    paper = found[found["paper-mean"].notna()]
    if paper["line"].nunique() != 1:
        return points
    printed = paper[["at", "paper-mean", "paper-std"]].set_axis(["at", "mean", "std"], axis=1)
    return pd.concat([points, printed.assign(line=relations.PAPER)])


def _similarity(comparison: Comparison) -> Drawn:
    found = [one.similarity for one in comparison.measured if one.similarity is not None]
    if not found:
        raise NothingToDrawError("a row with several backbones")
    return maps.similarity_figure(found[0]), (
        "Normalised similarity of each client's prototypes under one backbone and under all "
        "(FedPCL, section 5.5), of the first seed; a column adds up to 1."
    )


def _noise(comparison: Comparison) -> Drawn:
    found = [one.noised for one in comparison.measured if one.noised is not None]
    if not found:
        raise NothingToDrawError("a row with noise on images")
    return maps.noised_figure(found[0]), (
        "The first image that the first client trains on, of the first seed, without and with "
        "added noise (FedPCL, Figure 6); pixels beyond 0 and 1 are cut off."
    )


def _diagnostics(comparison: Comparison) -> Drawn:
    metrics = [one for one in DIAGNOSTICS if one in comparison.metrics]
    panels = {
        column(metric).title: pd.concat(
            pd.DataFrame(
                {"start": o.name, "at": o.values[metric], "accuracy": o.values["accuracy"]}
            )
            for o in comparison.measured
        )
        for metric in (metrics if "accuracy" in comparison.metrics else ())
    }
    return relations.explained_figure(panels), (
        "Accuracy of a task's clients against what was measured at the start before the task: how "
        "the clients' gradients differ (Yin et al., 2018), the largest eigenvalue of the Hessian, "
        "the barrier between clients' models after their first round, and a linear probe."
    )


def _objective(comparison: Comparison) -> Drawn:
    found = _together(comparison, lambda one: relations.weighted(one.rounds, one.gamma))
    return relations.objective_figure(found), (
        "The terms of the meta objective, each with its weight γ or 1 − γ: the sum of the query "  # noqa: RUF001
        "losses and their variance (of coprefl-std their mean and standard deviation); and the "
        "lengths of their gradients over all trainable numbers, weighted alike. The meta step goes "
        "against the sum of both. Means over the seeds; a weight of 0 has no line."
    )


_KINDS: dict[str, Callable[[Comparison], Drawn]] = {
    "accuracies": _accuracies,
    "curves": _curves,
    "switch": _switch,
    "p1-rounds": _p1_rounds,
    "landscape": _landscape,
    "gamma": _gamma,
    "diagnostics": _diagnostics,
    "objective": _objective,
    "noise": _noise,
    "similarity": _similarity,
}
