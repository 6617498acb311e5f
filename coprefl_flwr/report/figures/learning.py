"""Figures of the distribution of the clients' accuracies, and of metrics by round.

If the targets are no classes, the figures are of another measure (see `report.columns`).
"""

import math
import re
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.columns import ACCURACY, COLUMNS, ColumnSpec, Headings, column
from coprefl_flwr.report.comparison import Comparison, ResultRow
from coprefl_flwr.report.figures import style
from coprefl_flwr.report.frames import OF_CLIENTS, TEST_LOSS, measure_of, summary, test_of
from coprefl_flwr.report.frames import accuracies as with_accuracies
from coprefl_flwr.report.training_checks import CHAINED

# CyclicFL, Figure 5 (section IV.B): "all curves are smoothed by the Savitzky-Golay filter. The
# window size of the filter is 41, and the order is 3." "The final 50 rounds are zoomed in."
WINDOW, ORDER, _LAST = 41, 3, 50
_WIDE = 100.0  # ratio of the largest to the smallest loss above which the axis is logarithmic
_BANDS = 5  # number of lines, at most, that have bands


def accuracies(comparison: Comparison) -> style.Drawn:
    """Draw the accuracies, or other measures, of the tasks' clients."""
    parts = [row.client_rows.assign(start=row.name) for row in comparison.rows]
    rows = pd.concat(parts, ignore_index=True)
    if rows.empty:
        return None
    heading = comparison.column(comparison.measure)
    what = "Accuracies" if comparison.measure == ACCURACY else heading.title
    least = "highest" if heading.better == "lower" else "lowest"
    return accuracy_figure(rows, comparison.headings), (
        f"{what} of the tasks' clients, pooled over tasks. Line: mean; dotted line: {least} mean "
        "of all panels. Mean and variance are computed per task and averaged over tasks, as in the "
        "table."
    )


def curves(comparison: Comparison) -> style.Drawn:
    """Draw the learning curves of the pre-training and of the tasks."""
    frames = [(row.name, part) for row in comparison.rows for part in (row.rounds, row.curves)]
    rounds = pd.concat([part.assign(start=name) for name, part in frames], ignore_index=True)
    try:
        measure = comparison.measure
        figure = learning_figure(rounds, measure, comparison.column(measure))
    except SettingsError:
        return None
    what = comparison.column(measure).name
    test = "loss" if test_of(rounds) == TEST_LOSS else "accuracy"
    return figure, (
        f"Learning curves: the training (its test {test} if tested, else its loss), and the mean "
        f"{what} of the tasks' clients. Bands: ± one sample standard deviation. In a chain, "
        "clients train one model one after the other; its loss is compared with no other."
    )


@style.settings()
def accuracy_figure(
    rows: pd.DataFrame, headings: Headings = MappingProxyType({})
) -> "style.Figure":
    """Draw a histogram of the client accuracies of each start, pooled over tasks.

    A panel's title has the mean and the variance of the table: they are computed per task and then
    averaged over tasks. The vertical line is this mean. The dotted line is the worst mean of all
    starts. All panels have the same bins, at most 20, with whole percentages as edges. If the
    targets are no classes, the histogram is of the measure; `headings` are those of `summary`.
    """
    import seaborn as sns
    from matplotlib.ticker import MaxNLocator

    clients, entries = with_accuracies(rows), summary(rows, headings)
    measure = measure_of(rows, headings)
    heading, is_accuracy = column(measure, headings), measure == ACCURACY
    means = entries[measure]
    shown = style.colours(rows["start"])
    low, high = clients[measure].min(), clients[measure].max()
    if is_accuracy:
        low, high = min(low, max(high, 10) - 10), max(high, 10)
    edges = MaxNLocator(20, integer=is_accuracy).tick_values(low, high)
    figure, panels = style.new_figure(len(entries), 1.1, sharex=True, sharey=True)
    for panel, entry in zip(panels, entries.to_dict("records"), strict=True):
        sns.histplot(
            clients[clients["start"] == entry["start"]], x=measure, bins=edges, stat="percent",
            color=shown[entry["start"]][0], alpha=1, edgecolor="white", ax=panel,
        )  # fmt: skip
        worst = means.max() if heading.better == "lower" else means.min()
        panel.axvline(entry[measure], color=style.INK, linewidth=1.2)
        panel.axvline(worst, color=style.INK, linewidth=0.8, linestyle=":")
        if is_accuracy:
            numbers = f"mean {entry['accuracy']:.1f} %, variance {entry['variance']:.1f} %²"
        else:
            numbers = f"mean {entry[measure]:.3g}, variance {entry[f'{measure}:variance']:.3g}"
        style.title(panel, entry["start"], numbers)
    figure.supxlabel("Client accuracy (%)" if is_accuracy else f"{heading.title} of a client")
    figure.supylabel("Clients (%)")
    return figure


@style.settings()
def learning_figure(
    rounds: pd.DataFrame, measure: str = ACCURACY, heading: ColumnSpec = COLUMNS[ACCURACY]
) -> "style.Figure":
    """Draw the pre-training loss and the downstream accuracy by round, for each start.

    For personalised methods, draw the training loss by round. If the targets are no classes, draw
    the downstream mean of `measure`, whose column is `heading`.

    `rounds` has one row per round (see `results`). It has the column "seed" if the pre-training was
    run with several seeds. If the pre-trained model was tested, the panel shows its test accuracy
    ("server-accuracy"), or its test loss, instead. In rounds whose column "chained" is true, it is
    passed from client to client. These rounds have a separate panel, because their loss is not a
    mean over clients that start from the same model: each client starts from the model that the
    previous client has trained.

    A line is the mean over the seeds or tasks that have a value for the round. A band shows one
    sample standard deviation on either side, if there are at most 5 lines. A panel without data is
    left out. Raises a SettingsError if no panel has data.
    """
    test, of_tasks = test_of(rounds), measure if measure == ACCURACY else OF_CLIENTS + measure
    columns = ["phase", "start", "round", "seed", "task", "loss", of_tasks, test]
    rounds = rounds.reindex(columns=[*columns, CHAINED])
    phase = rounds["phase"]
    tested = _finite(rounds[phase == "pretraining"], test)
    before = rounds[(phase == "pretraining") & tested.empty]
    chained = before[CHAINED].eq(True)
    tasks, personal = rounds[phase == "downstream"], rounds[phase == "personalised"]
    drawn = {
        ("Pre-training", _label(test)): tested,
        ("Pre-training", "Loss"): _finite(before[~chained], "loss"),
        ("Pre-training in a chain", "Loss"): _finite(before[chained], "loss"),
        ("Downstream tasks", re.sub(" %$", " (%)", heading.title)): _finite(tasks, of_tasks),
        ("Personalised methods", "Loss"): _finite(personal, "loss"),
    }
    drawn = {texts: values for texts, values in drawn.items() if not values.empty}
    if not drawn:
        raise SettingsError("the figure has no data: it needs a loss or a measure of rounds")
    shown = style.colours(pd.concat(drawn.values()).sort_index()["start"])
    errorbar = "sd" if len(shown) <= _BANDS else None
    figure, panels = style.new_figure(len(drawn), 2.7)
    for panel, ((name, label), values) in zip(panels, drawn.items(), strict=True):
        style.lines(panel, values, shown, errorbar=errorbar)
        unit = "task" if name == "Downstream tasks" else "seed"
        number = values[unit].nunique()
        below = f"mean{' ± std' if errorbar else ''} over {number} {unit}s"
        style.title(panel, name, below if number > 1 else f"one {unit}", "Round", label)
        low, high = values["value"].min(), values["value"].max()
        if "loss" in label.lower() and 0 < _WIDE * low < high:
            # On a linear axis, one diverged run would flatten all other lines at the bottom.
            panel.set_yscale("log")
    style.legend(figure, shown)
    return figure


def _label(test: str) -> str:
    return "Test loss" if test == TEST_LOSS else "Test accuracy (%)"


def _finite(rounds: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Return the rows with a finite number in a column, which is also in the column "value"."""
    rows = rounds.assign(value=rounds[quantity].astype(float))
    return rows[rows["value"].abs() < math.inf]


def smoothing_window(rounds: npt.ArrayLike) -> int:
    """Return the window of the smoothing filter in tested rounds; 0 if there are too few rounds.

    The window is the number of tests in 41 rounds. It spans about 41 rounds also if only some
    rounds are tested. The window is odd, at least 5, and at most half of the tested rounds. A wider
    window would hide a jump of the accuracy.
    """
    tested = np.sort(np.asarray(rounds, dtype=np.int64))
    spacing = max(1.0, float(np.median(np.diff(tested)))) if tested.size > 1 else 1.0
    window = max(math.floor(WINDOW / spacing), ORDER + 2)
    window -= window % 2 == 0
    return window if tested.size >= 2 * window else 0


@style.settings()
def switch(comparison: Comparison) -> style.Drawn:
    """Draw the test accuracy of the pre-training by round, smoothed if there are enough rounds.

    Without classes, draw the test loss.
    Where a line is smoothed, a faint line shows the measured numbers. A dotted line shows the
    last round of the first phase (P1) of a start with several phases. With 200 rounds or more, a
    second panel shows the last 50 rounds.
    """
    label = _label(next((test_of(row.rounds) for row in comparison.rows if len(row.rounds)), ""))
    tested = pd.concat([_tested(row) for row in comparison.rows], ignore_index=True)
    if tested.empty:
        return None
    shown = style.colours(tested["start"])
    smooth = pd.concat(_smoothed(of_start) for _, of_start in tested.groupby("start", sort=False))
    last = int(tested["round"].max())
    figure, panels = style.new_figure(2 if last >= 4 * _LAST else 1, 2.7)
    below = "smoothed; faint: as measured; " * (not smooth.equals(tested)) + "dotted: the switch"
    names = {0: ("Pre-training", below), last - _LAST: (f"Last {_LAST} rounds", "the same lines")}
    for panel, (first, texts) in zip(panels, names.items(), strict=False):
        measured, line = (rows[rows["round"] >= first] for rows in (tested, smooth))
        style.lines(panel, measured, shown, errorbar=None, alpha=0.25, linewidth=0.8)
        style.lines(panel, line, shown, errorbar=None)
        for row in comparison.rows:
            if row.switch > first and row.name in shown:
                panel.axvline(row.switch, color=shown[row.name][0], linestyle=":", linewidth=1.2)
        style.title(panel, *texts, "Round", label)
    style.legend(figure, shown)
    return figure, (
        f"{label.removesuffix(' (%)')} by round, mean over seeds, smoothed where enough rounds are "
        f"tested: by a Savitzky-Golay filter of order {ORDER} over {WINDOW} rounds (as in "
        "CyclicFL), or over 5 tested rounds if these are more. Dotted line: the phase switch."
    )


def _tested(row: ResultRow) -> pd.DataFrame:
    """Return a row's mean test result over seeds by round, for rounds with a test of every seed.

    The columns are "start", "round" and "value".
    """
    test = test_of(row.rounds)
    tested = row.rounds.reindex(columns=["round", "seed", test])
    by_seed = tested.pivot(index="round", columns="seed", values=test).astype(float)
    means = by_seed.where(np.isfinite(by_seed)).dropna().mean(axis=1)
    return pd.DataFrame({"start": row.name, "value": means}).reset_index()


def _smoothed(tested: pd.DataFrame) -> pd.DataFrame:
    """Return the tested rounds of a start with smoothed values, if there are enough of them."""
    from scipy.signal import savgol_filter

    window = smoothing_window(tested["round"])
    return tested.assign(value=savgol_filter(tested["value"], window, ORDER)) if window else tested
