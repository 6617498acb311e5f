"""Figures of the distribution of the clients' accuracies, and of metrics by round.

If the targets are no classes, the figures are of another measure (see `report.columns`).
"""

import math

import numpy as np
import numpy.typing as npt
import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report import columns, frames
from coprefl_flwr.report.comparison import Comparison, ResultRow
from coprefl_flwr.report.figures import style
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
    measure = comparison.measure
    if rows.empty or (measure.metric in rows and rows[measure.metric].isna().all()):
        return None
    what = "Accuracies" if measure == columns.ACCURACY else measure.title
    least = "highest" if measure.better == "lower" else "lowest"
    return accuracy_figure(rows, comparison.headings), (
        f"{what} of the tasks' clients, pooled over tasks. Line: mean; dotted line: {least} mean "
        "of all panels. Mean and variance are computed per task and averaged over tasks, as in the "
        "table."
    )


def curves(comparison: Comparison) -> style.Drawn:
    """Draw the learning curves of the pre-training and of the tasks."""
    parts = [(row.name, part) for row in comparison.rows for part in (row.rounds, row.curves)]
    rounds = pd.concat([part.assign(start=name) for name, part in parts], ignore_index=True)
    try:
        figure = learning_figure(rounds, comparison.measure)
    except SettingsError:
        return None
    test = columns.TESTS[frames.tested_by(rounds)].name
    return figure, (
        f"Learning curves: the training (its {test} if tested, else its loss), and the mean "
        f"{comparison.measure.name} of the tasks' clients. Bands: ± one sample standard deviation. "
        "In a chain, clients train one model one after the other; its loss is compared with no "
        "other."
    )


@style.settings()
def accuracy_figure(
    rows: pd.DataFrame, headings: columns.Headings = columns.NO_HEADINGS
) -> "style.Figure":
    """Draw a histogram of the client accuracies of each start, pooled over tasks.

    A panel's title has the mean and the variance of the table: they are computed per task and then
    averaged over tasks. The vertical line is this mean. The dotted line is the worst mean of all
    starts. All panels have the same bins, at most 20, with whole percentages as edges. If the
    targets are no classes, the histogram is of the measure; `headings` are those of `summary`.
    """
    import seaborn as sns
    from matplotlib.ticker import MaxNLocator

    clients, entries = frames.accuracies(rows), frames.summary(rows, headings)
    measure = frames.measure_of(rows, headings)
    column, variance = columns.of_measure(["accuracy", "variance"], measure.metric)
    unit = measure.unit
    low, high, digits = clients[column].min(), clients[column].max(), ".3g"
    if is_accuracy := measure == columns.ACCURACY:
        low, high, digits = min(low, max(high, 10) - 10), max(high, 10), ".1f"
    edges = MaxNLocator(20, integer=is_accuracy).tick_values(low, high)
    worst, shown = min(entries[column], key=measure.quality), style.colours(rows["start"])
    figure, panels = style.new_figure(len(entries), 1.1, sharex=True, sharey=True)
    for panel, entry in zip(panels, entries.to_dict("records"), strict=True):
        sns.histplot(
            clients[clients["start"] == entry["start"]], x=column, bins=edges, stat="percent",
            color=shown[entry["start"]][0], alpha=1, edgecolor="white", ax=panel,
        )  # fmt: skip
        panel.axvline(entry[column], color=style.INK, linewidth=1.2)
        panel.axvline(worst, color=style.INK, linewidth=0.8, linestyle=":")
        mean = f"mean {entry[column]:{digits}}{unit}"
        spread = f"variance {entry[variance]:{digits}}{unit and unit + '²'}"
        style.title(panel, entry["start"], f"{mean}, {spread}")
    figure.supxlabel("Client accuracy (%)" if is_accuracy else f"{measure.axis} of a client")
    figure.supylabel("Clients (%)")
    return figure


@style.settings()
def learning_figure(
    rounds: pd.DataFrame, measure: columns.ColumnSpec = columns.ACCURACY
) -> "style.Figure":
    """Draw the pre-training loss and the downstream accuracy by round, for each start.

    For personalised methods, draw the training loss by round. If the targets are no classes, draw
    the downstream mean of the measure.

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
    test = frames.tested_by(rounds)
    of_tasks = "accuracy" if measure == columns.ACCURACY else frames.OF_CLIENTS + measure.metric
    names = ["phase", "start", "round", "seed", "task", "loss", of_tasks, test]
    rounds = rounds.reindex(columns=[*names, CHAINED])
    phase = rounds["phase"]
    tested = _finite(rounds[phase == "pretraining"], test)
    before = rounds[(phase == "pretraining") & tested.empty]
    chained = before[CHAINED].eq(True)
    tasks, personal = rounds[phase == "downstream"], rounds[phase == "personalised"]
    drawn = {
        ("Pre-training", columns.TESTS[test].axis): tested,
        ("Pre-training", "Loss"): _finite(before[~chained], "loss"),
        ("Pre-training in a chain", "Loss"): _finite(before[chained], "loss"),
        ("Downstream tasks", measure.axis): _finite(tasks, of_tasks),
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
        number, first = values[unit].nunique(), str(values[unit].iloc[0])
        noun = "run" if first.startswith("draw") else unit  # Runs of crossed seeds.
        below = f"mean{' ± std' if errorbar else ''} over {number} {noun}s"
        style.title(panel, name, below if number > 1 else f"one {noun}", "Round", label)
        low, high = values["value"].min(), values["value"].max()
        if "loss" in label.lower() and 0 < _WIDE * low < high:
            # On a linear axis, one diverged run would flatten all other lines at the bottom.
            panel.set_yscale("log")
    style.legend(figure, shown)
    return figure


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
    test = frames.tested_by(pd.concat([row.rounds for row in comparison.rows]))
    tested = pd.concat([_tested(row, test) for row in comparison.rows], ignore_index=True)
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
        style.title(panel, *texts, "Round", columns.TESTS[test].axis)
    style.legend(figure, shown)
    return figure, (
        f"{columns.TESTS[test].name.capitalize()} by round, mean over seeds, smoothed where enough "
        f"rounds are tested: by a Savitzky-Golay filter of order {ORDER} over {WINDOW} rounds (as "
        "in CyclicFL), or over 5 tested rounds if these are more. Dotted line: the phase switch."
    )


def _tested(row: ResultRow, test: str) -> pd.DataFrame:
    """Return a row's mean test result over seeds by round, for rounds with a test of every seed.

    The columns are "start", "round" and "value".
    """
    tested = row.rounds.reindex(columns=["round", "seed", test])
    by_seed = tested.pivot(index="round", columns="seed", values=test).astype(float)
    means = by_seed.where(np.isfinite(by_seed)).dropna().mean(axis=1)
    return pd.DataFrame({"start": row.name, "value": means}).reset_index()


def _smoothed(tested: pd.DataFrame) -> pd.DataFrame:
    """Return the tested rounds of a start with smoothed values, if there are enough of them."""
    from scipy.signal import savgol_filter

    window = smoothing_window(tested["round"])
    return tested.assign(value=savgol_filter(tested["value"], window, ORDER)) if window else tested
