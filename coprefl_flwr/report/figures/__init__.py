"""The figures of a comparison with their captions, by the names of the figures in recipes.

Matplotlib is imported when a figure is drawn. Pyplot is never used, so that the calling program's
matplotlib backend and settings do not change.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from coprefl_flwr.report.columns import DIAGNOSTICS
from coprefl_flwr.report.comparison import Comparison, ResultRow, numbers, units
from coprefl_flwr.report.figures import learning, maps, relations, style
from coprefl_flwr.report.figures.learning import accuracy_figure as accuracy_figure
from coprefl_flwr.report.figures.learning import learning_figure as learning_figure
from coprefl_flwr.report.figures.style import NothingToDrawError, as_svg, content_of
from coprefl_flwr.report.figures.style import save as save
from coprefl_flwr.report.statistics import summarise
from coprefl_flwr.report.training_checks import CHAINED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn = tuple["Figure", str]  # a figure and its caption


class Picture(NamedTuple):
    """A drawn figure of a comparison, in all its formats."""

    kind: str  # one of `FIGURES`
    files: dict[str, bytes]  # PNG and PDF content, by path relative to the page's folder
    svg: str  # SVG element for a page, in the colours of the page
    narrow: str  # SVG element for the width of a phone
    caption: str
    alternative: str  # alternative text for readers who cannot see the figure


def draw(comparison: Comparison, kinds: Sequence[str]) -> list[Picture]:
    """Return the figures of the given kinds, which are keys of `FIGURES`.

    A kind is left out if the comparison has no data for this figure.
    """
    pictures = []
    rows = ", ".join(row.name for row in comparison.rows)
    for kind in kinds:
        try:
            figure, caption = FIGURES[kind](comparison)
        except NothingToDrawError:
            continue
        name = f"{comparison.name}-{kind}"
        files = {f"figures/{name}.{end}": content_of(figure, end) for end in ("png", "pdf")}
        svg, alternative = as_svg(figure, name), f"{caption} Of {rows}."
        with style.narrow():
            narrow = as_svg(FIGURES[kind](comparison)[0], f"{name}-n")
        pictures.append(Picture(kind, files, svg, narrow, caption, alternative))
    return pictures


def _together(
    comparison: Comparison, frame_of: Callable[[ResultRow], pd.DataFrame]
) -> pd.DataFrame:
    """Return the DataFrames of all rows in one, with the row's name in the column "start"."""
    parts = [frame_of(row).assign(start=row.name) for row in comparison.rows]
    parts = [part for part in parts if not part.empty]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _accuracies(comparison: Comparison) -> Drawn:
    rows = _together(comparison, lambda row: row.client_rows)
    if rows.empty:
        raise NothingToDrawError("results of clients")
    return accuracy_figure(rows), (
        "Accuracies of the tasks' clients, pooled over tasks, as a histogram or, for few clients, "
        "as a dot per client. Line: mean; dotted line: lowest mean of all panels. Mean and "
        "variance are computed per task and averaged over tasks, as in the table."
    )


def _curves(comparison: Comparison) -> Drawn:
    before = _together(comparison, lambda row: row.rounds)
    tasks = _together(comparison, lambda row: row.curves)
    training = "the training (its test accuracy if tested, else its loss)"
    shown = [training] * (not before.empty)
    shown += ["the mean accuracy of the tasks' clients"] * (not tasks.empty)
    caption = f"Learning curves: {', and '.join(shown)}"
    caption += ". Bands, or bars next to the last round: ± one sample standard deviation"
    if CHAINED in before and before[CHAINED].eq(True).any():
        caption += ". In a chain, clients train one model one after the other; this is its loss"
    return learning_figure(pd.concat([before, tasks], ignore_index=True)), f"{caption}."


def _switch(comparison: Comparison) -> Drawn:
    runs = [row for row in comparison.rows if len(_tested(row.rounds))]
    accuracy = pd.DataFrame({row.name: _tested(row.rounds) for row in runs})
    switches = {row.name: row.switch for row in runs}
    figure = learning.switch_figure(accuracy, switches)
    seeds = max(row.rounds["seed"].nunique() for row in runs)
    over = f", mean over {seeds} seeds" if seeds > 1 else ""
    windows = {
        learning.smoothing_window(tested.dropna().index) for _, tested in accuracy.items()
    } - {0}
    smoothing = "not smoothed, because there are too few tested rounds"
    if windows:
        smoothing = (
            f"smoothed by a Savitzky-Golay filter of order {learning.ORDER} over "
            f"{' or '.join(map(str, sorted(windows)))} tested rounds (as in CyclicFL: those among "
            f"{learning.WINDOW} rounds; here at least 5)"
        )
    return figure, f"Test accuracy by round{over}, {smoothing}; dotted line: the phase switch."


def _tested(rounds: pd.DataFrame) -> "pd.Series[float]":
    """Return the mean test accuracy over seeds by round, for rounds with a test of every seed."""
    tested = rounds.reindex(columns=["round", "seed", "server-accuracy"])
    by_seed = tested.pivot(index="round", columns="seed", values="server-accuracy").astype(float)
    return by_seed.where(np.isfinite(by_seed)).dropna().mean(axis=1)


def _p1_rounds(comparison: Comparison) -> Drawn:
    metric = next((m for m in ("final", "accuracy") if m in comparison.metrics), "")
    phased = [row for row in comparison.rows if metric and row.switch]
    entries = [(row.switch, *summarise(row.values[metric])) for row in phased]
    points = pd.DataFrame(entries, columns=["at", "mean", "std", "n"]).query("n > 0")
    which = "Final test accuracy" if metric == "final" else "Accuracy of the tasks' clients"
    fit = (
        "line: least-squares"
        if relations.is_fitted(points)
        else "there are too few points for the paper's"
    )
    caption = f"{which} against the rounds of the first phase; {fit} polynomial of order 3."
    return relations.p1_rounds_figure(points, f"{which} (%)"), caption


def _landscape(comparison: Comparison) -> Drawn:
    landscapes = {o.name: o.landscape for o in comparison.rows if o.landscape is not None}
    return maps.landscape_figure(landscapes), (
        "Loss around each model in the same two random directions, normalised filter by filter (Li "
        "et al., 2018); a step of 1 has the norm of the filters. All panels have one colour scale."
    )


def _gamma(comparison: Comparison) -> Drawn:
    metrics = [metric for metric in ("accuracy", "variance") if metric in comparison.metrics]
    panels = {comparison.column(metric).title: _by_gamma(comparison, metric) for metric in metrics}
    caption = "Accuracy and variance by γ; bars: ± one sample standard deviation."  # noqa: RUF001
    if any((points["line"] == relations.PAPER).any() for points in panels.values()):
        caption += f" Dashed: {comparison.source or 'the paper'}."
    return relations.gamma_figure(panels), caption


def _by_gamma(comparison: Comparison, metric: str) -> pd.DataFrame:
    """Return the points by gamma of each label with its other options, and the paper's points."""
    lines = []
    for row in comparison.rows:
        others = [f"{key}={value}" for key, value in row.options.items() if key != "gamma"]
        line = ":".join([row.label, ",".join(others)]) if others else row.label
        if "gamma" in row.options:
            lines.append((row.name, line, float(row.options["gamma"])))
    entries = numbers(comparison)
    entries = entries[entries["metric"] == metric]
    entries = pd.DataFrame(lines, columns=["row", "line", "at"]).merge(entries, on="row")
    points = entries.query("n > 0")[["line", "at", "mean", "std"]]
    paper = entries[entries["paper-mean"].notna()]
    if paper["line"].nunique() != 1:
        return points
    printed = paper[["at", "paper-mean", "paper-std"]].set_axis(["at", "mean", "std"], axis=1)
    return pd.concat([points, printed.assign(line=relations.PAPER)])


def _similarity(comparison: Comparison) -> Drawn:
    similarities = [row.similarity for row in comparison.rows if row.similarity is not None]
    if not similarities:
        raise NothingToDrawError("a row with several backbones")
    return maps.similarity_figure(similarities[0]), (
        "Normalised similarity of each client's prototypes with one backbone and with all "
        "backbones (FedPCL, section 5.5), for the first seed; each column adds up to 1."
    )


def _noise(comparison: Comparison) -> Drawn:
    images = [row.noised for row in comparison.rows if row.noised is not None]
    if not images:
        raise NothingToDrawError("a row with noise on images")
    return maps.noised_figure(images[0]), (
        "The first training image of the first client, for the first seed, without and with added "
        "noise (FedPCL, Figure 6); pixel values are clipped to 0..1."
    )


def _diagnostics(comparison: Comparison) -> Drawn:
    metrics = [name for name in DIAGNOSTICS if {name, "accuracy"} <= {*comparison.metrics}]
    values = units(comparison).rename(columns={"row": "start"})
    panels = {
        comparison.column(metric).title: values[["start", metric, "accuracy"]].rename(
            columns={metric: "at"}
        )
        for metric in metrics
    }
    return relations.explained_figure(panels), (
        "Accuracy of a task's clients against measurements of the initial model before the task: "
        "diversity of clients' gradients (Yin et al., 2018), largest eigenvalue of the Hessian, "
        "loss barrier between clients' models after their first round, and linear probe."
    )


def _objective(comparison: Comparison) -> Drawn:
    rounds = _together(comparison, lambda row: relations.weighted(row.rounds, row.gamma))
    return relations.objective_figure(rounds), (
        "The two terms of the meta objective, times their weights γ and 1 − γ: sum and variance of "  # noqa: RUF001
        "the query losses (coprefl-std: mean and standard deviation); and the norms of the terms' "
        "gradients over all trainable weights, times the same weights. The meta step follows the "
        "negative sum of both gradients. Means over seeds; a term of weight 0 has no line."
    )


FIGURES: dict[str, Callable[[Comparison], Drawn]] = {
    "accuracies": _accuracies,
    "curves": _curves,
    "switch": _switch,
    "p1-rounds": _p1_rounds,
    "landscape": _landscape,
    "gamma": _gamma,
    "similarity": _similarity,
    "diagnostics": _diagnostics,
    "objective": _objective,
    "noise": _noise,
}
"""The drawing function of each kind of figure, by the name of the kind."""
