"""The figures of a comparison, by the names that recipes give them, with their captions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from coprefl_flwr.report import figures
from coprefl_flwr.report.columns import column
from coprefl_flwr.report.comparison import Comparison, Measured
from coprefl_flwr.report.figures.against import PAPER, Point, is_fitted
from coprefl_flwr.report.figures.curves import is_drawable
from coprefl_flwr.report.figures.switch import ORDER, WINDOW
from coprefl_flwr.report.statistics import summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure of a comparison."""

    kind: str  # one of `comparison.FIGURES`
    figure: "Figure"
    caption: str  # what it shows, in a sentence or two
    alternative: str  # the same for those who do not see it


Drawn = tuple["Figure", str] | None
"""A figure and its caption; None where the comparison has no data for it."""


def pictures(comparison: Comparison, kinds: Sequence[str]) -> list[Picture]:
    """Draw those figures that the comparison has data for."""
    found = []
    for kind in kinds:
        what, draw = _KINDS[kind]
        drawn = draw(comparison)
        if drawn:
            rows = ", ".join(row.name for row in comparison.measured)
            title = comparison.title or comparison.name
            alternative = f"{what} of {rows}; {title}. The table has the numbers."
            found.append(Picture(kind, *drawn, alternative))
    return found


def _together(comparison: Comparison, of: Callable[[Measured], pd.DataFrame]) -> pd.DataFrame:
    """Return what the measured rows have of something, with their names as start."""
    parts = [of(one).assign(start=one.name) for one in comparison.measured if not of(one).empty]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _accuracies(comparison: Comparison) -> Drawn:
    rows = _together(comparison, lambda one: one.rows)
    if rows.empty:
        return None
    caption = (
        "Accuracies of the tasks' clients, pooled over tasks; the line is the mean. Mean and "
        "variance are those of the table: per task, then averaged."
    )
    return figures.accuracy_figure(rows), caption


def _curves(comparison: Comparison) -> Drawn:
    before = _together(comparison, lambda one: one.rounds)
    tasks = _together(comparison, lambda one: one.curves)
    rounds = pd.concat([before, tasks], ignore_index=True)
    if not is_drawable(rounds):
        return None
    caption = "Learning curves: the pre-training (test accuracy where tested, else training loss)"
    if not tasks.empty:
        caption += ", and the mean accuracy of the tasks' clients"
    return figures.learning_figure(rounds), f"{caption}."


def _switch(comparison: Comparison) -> Drawn:
    runs = {
        one.name: figures.PhaseCurve(_tested(one.rounds), one.switch)
        for one in comparison.measured
        if _tested(one.rounds)
    }
    if not runs:
        return None
    seeds = max(one.rounds["seed"].nunique() for one in comparison.measured if one.name in runs)
    over = f", mean over {seeds} seeds" if seeds > 1 else ""
    windows = sorted({figures.smoothing_window(list(run.accuracy)) for run in runs.values()})
    smoothed = [f"{window} tested rounds" for window in windows if window]
    smoothing = (
        f"Smoothed by a Savitzky-Golay filter of order {ORDER} over {' or '.join(smoothed)} "
        f"({WINDOW} rounds in CyclicFL; here as many as were tested in {WINDOW})"
        if smoothed
        else "Too few tested rounds to smooth"
    )
    switched = any(run.switch for run in runs.values())
    marks = "; dotted lines mark the switch of phase" if switched else ""
    return figures.switch_figure(runs), f"Test accuracy by round{over}. {smoothing}{marks}."


def _tested(rounds: pd.DataFrame) -> dict[int, float]:
    """Return round -> mean test accuracy over the seeds; rounds that all of them tested."""
    if "server-accuracy" not in rounds:
        return {}
    by_seed = rounds.astype({"server-accuracy": float}).pivot(
        index="round", columns="seed", values="server-accuracy"
    )
    common = by_seed[np.isfinite(by_seed).all(axis=1)].sort_index()
    return {
        int(n): float(np.mean(found)) for n, found in zip(common.index, common.values, strict=True)
    }


def _p1_rounds(comparison: Comparison) -> Drawn:
    metric = next((m for m in ("final", "accuracy") if m in comparison.metrics), None)
    if metric is None:
        return None
    points = []
    for one in comparison.measured:
        found = summarise(one.values[metric])
        if one.switch and found.n:
            points.append(Point(one.switch, found.mean, found.std))
    if len({point.at for point in points}) < 2:
        return None
    which = "Final test accuracy" if metric == "final" else "Accuracy of the tasks' clients"
    fit = (
        "the line is the least-squares polynomial of order 3"
        if is_fitted(points)
        else "too few points for the paper's polynomial of order 3"
    )
    caption = f"{which} against the rounds of the first phase; {fit}."
    return figures.p1_rounds_figure(points, f"{which} (%)"), caption


def _landscape(comparison: Comparison) -> Drawn:
    found = {one.name: one.landscape for one in comparison.measured if one.landscape}
    if not any(np.isfinite(one.losses).any() for one in found.values()):
        return None
    caption = (
        "Loss around each model in the same two random directions, normalised filter by filter (Li "
        "et al., 2018); a step of 1 is as long as the filters. One colour scale for all."
    )
    return figures.landscape_figure(found), caption


def _gamma(comparison: Comparison) -> Drawn:
    panels = {}
    for metric in ("accuracy", "variance"):
        lines = _gamma_lines(comparison, metric) if metric in comparison.metrics else {}
        if any(len(points) > 1 for points in lines.values()):
            panels[column(metric).title] = lines
    if not panels:
        return None
    caption = "Accuracy and variance by γ; bars: one sample standard deviation."  # noqa: RUF001
    if any(PAPER in lines for lines in panels.values()):
        caption += f" Dashed: {comparison.source or 'the paper'}."
    return figures.gamma_figure(panels), caption


def _gamma_lines(comparison: Comparison, metric: str) -> dict[str, list[Point]]:
    """Return a point per gamma for each label and its other choices; the paper's if one has it."""
    lines: dict[str, list[Point]] = {}
    paper: dict[str, list[Point]] = {}
    for one in comparison.measured:
        if "gamma" not in one.options:
            continue
        gamma = float(one.options["gamma"])
        others = ",".join(f"{key}={v}" for key, v in one.options.items() if key != "gamma")
        line = f"{one.label}:{others}" if others else one.label
        found = summarise(one.values[metric])
        if found.n:
            lines.setdefault(line, []).append(Point(gamma, found.mean, found.std))
        printed = comparison.paper_of(one).get(metric)
        if printed:
            std = math.nan if printed[1] is None else printed[1]
            paper.setdefault(line, []).append(Point(gamma, printed[0], std))
    if len(paper) == 1:
        lines[PAPER] = next(iter(paper.values()))
    return lines


def _similarity(comparison: Comparison) -> Drawn:
    found = [one.similarity for one in comparison.measured if one.similarity]
    if not found:
        return None
    caption = (
        "Normalised similarity of each client's prototypes under one backbone and under all "
        "(FedPCL, section 5.5), of the first seed; a column adds up to 1."
    )
    return figures.similarity_figure(found[0]), caption


_KINDS: dict[str, tuple[str, Callable[[Comparison], Drawn]]] = {
    "accuracies": ("Histograms of client accuracies", _accuracies),
    "curves": ("Learning curves", _curves),
    "switch": ("Smoothed learning curves of the pre-training", _switch),
    "p1-rounds": ("Accuracy against rounds of the first phase", _p1_rounds),
    "landscape": ("Contour plots of the loss around the models", _landscape),
    "gamma": ("Accuracy and variance against gamma", _gamma),
    "similarity": ("Heat map of how much each backbone is in the fused prototypes", _similarity),
}
"""What each kind of figure shows, for those who do not see it, and the function that draws it."""
