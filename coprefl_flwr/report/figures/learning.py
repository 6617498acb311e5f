"""Figures of the distribution of the clients' accuracies, and of metrics by round."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich.cells import cell_len

from coprefl_flwr.report.figures import style
from coprefl_flwr.report.frames import accuracies, summary
from coprefl_flwr.report.training_checks import CHAINED

# CyclicFL, Figure 5 (section IV.B): "all curves are smoothed by the Savitzky-Golay filter. The
# window size of the filter is 41, and the order is 3." "The final 50 rounds are zoomed in."
WINDOW, ORDER, _LAST = 41, 3, 50
_WIDE = 100.0  # ratio of the largest to the smallest loss above which the axis is logarithmic
_FEW, _NEAR = 60, 2.0  # clients of a start, at most, drawn as dots; percent per stack of dots
_BELOW = 6  # number of panels, at most, in one column
# Names are next to the lines for at most 6 lines, with at most 12 characters per name. The distance
# of two names is at least 0.07 of the panel's height.
_NAMED, _SHORT, _APART = 6, 12, 0.07
_BANDS = 2  # number of lines, at most, that have bands


def accuracy_figure(rows: pd.DataFrame) -> "style.Figure":
    """Draw the client accuracies of each start, pooled over tasks.

    Each start has a panel. With at most 60 accuracies per start, each accuracy is a dot. With more
    accuracies, the panels are histograms. A panel's title has the mean and the variance of the
    table: they are computed per task and then averaged over tasks. The vertical line is this mean.
    The dotted line is the lowest mean of all starts, the same in all panels.
    """
    clients = accuracies(rows)
    shown = style.colours(rows["start"])
    edges = _edges(clients["accuracy"].to_numpy())
    entries = summary(rows)
    # In one column, differences along the shared axis are easiest to see.
    columns = 1 if len(entries) <= _BELOW else 2
    few = clients.groupby("start").size().max() <= _FEW
    labels = ("Client accuracy (%)", "" if few else "Clients (%)")
    height = 1.2 if few else 1.55 if len(entries) <= 3 or columns > 1 else 1.25
    figure, panels = style.grid(len(entries), columns, (0.5, height), *labels)
    least = min(entries["accuracy"])
    for panel, (_, entry) in zip(panels, entries.iterrows(), strict=True):
        values = clients["accuracy"][clients["start"] == entry["start"]]
        weights = np.full(len(values), 100 / len(values))
        colour, _ = shown[entry["start"]]
        if few:
            _dots(panel, values.to_numpy(), colour)
        else:
            panel.hist(
                values, edges, weights=weights, color=colour, edgecolor="white", linewidth=0.6
            )
        # A white line behind the dark line keeps the dark line visible on dark bars.
        panel.axvline(entry["accuracy"], color="white", linewidth=2.6)
        panel.axvline(entry["accuracy"], color=style.INK, linewidth=1.2)
        panel.axvline(least, color=style.INK, linewidth=0.8, linestyle=":")
        numbers = f"mean {entry['accuracy']:.1f} %, variance {entry['variance']:.1f} %²"
        style.plain(panel, entry["start"], numbers)
    panels[0].set_xlim(edges[0], edges[-1])
    return figure


def _dots(panel: "style.Axes", values: npt.NDArray[np.float64], colour: str) -> None:
    """Draw a dot for each client; dots of clients with similar accuracies are stacked."""
    near = np.round(values / _NEAR).astype(int)
    order = np.argsort(near, kind="stable")
    sorted_near = near[order]
    above = np.arange(near.size) - np.searchsorted(sorted_near, sorted_near) + 1
    panel.plot(values[order], above, "o", color=colour, markersize=6, clip_on=False)
    panel.set_ylim(0, max(above.max() + 0.6, panel.get_ylim()[1]))
    panel.set_yticks([])


def _edges(values: npt.NDArray[np.float64]) -> list[float]:
    """Return at most 21 edges of equal bins around all values, at round percentages."""
    span = float(np.ptp(values))
    width = next((width for width in (1.0, 2.0, 2.5) if span <= 14 * width), 5.0)
    low = math.floor(values.min() / width) * width
    bins = max(4, math.ceil((values.max() - low) / width))
    low = min(low, 100 - bins * width)
    return [low + width * index for index in range(bins + 1)]


def learning_figure(rounds: pd.DataFrame) -> "style.Figure":
    """Draw the pre-training loss and the downstream accuracy by round, for each start.

    For personalised methods, draw the training loss by round.

    `rounds` has one row per round (see `results`). It has the column "seed" if the pre-training was
    run with several seeds. If the pre-trained model was tested, the panel shows its test accuracy
    ("server-accuracy") instead of the loss. In rounds whose column "chained" is true, the model is
    passed from client to client. These rounds have a separate panel, because their loss is not a
    mean over clients that start from the same model: each client starts from the model that the
    previous client has trained.

    A line is the mean over the seeds or tasks that have a value for the round. If a panel has at
    most two lines, a band shows one sample standard deviation on either side. With more lines,
    bands would overlap, so a bar next to the last round shows the standard deviation. A panel
    without data is left out.

    Raises `NothingToDrawError` if no panel has data.
    """
    if rounds.empty:
        raise style.NothingToDrawError("at least one row")
    before, label = _by_round(rounds, "pretraining", "server-accuracy"), "Test accuracy (%)"
    chains, averaged = before.iloc[:0], "Pre-training"
    if before.empty:
        chained = rounds.get(CHAINED, pd.Series(False, rounds.index)).eq(True)
        before, label = _by_round(rounds[~chained], "pretraining", "loss"), "Loss"
        chains = _by_round(rounds[chained], "pretraining", "loss")
        averaged = "Pre-training" if chains.empty else "Pre-training, averaged"
    tasks = _by_round(rounds, "downstream", "accuracy")
    seeds = rounds["seed"].nunique() if "seed" in rounds else 1
    over = "one run each" if seeds == 1 else f"mean ± std over {seeds} seeds"
    number = rounds.loc[rounds["phase"] == "downstream", "task"].nunique()
    of_tasks = "one task" if number == 1 else f"mean ± std over {number} tasks"
    drawn = [
        (before, averaged, over, label),
        (chains, "Pre-training in a chain", over, "Loss in the chain"),
        (tasks, "Downstream tasks", of_tasks, "Accuracy (%)"),
        (_by_round(rounds, "personalised", "loss"), "Personalised methods", over, "Loss"),
    ]
    drawn = [part for part in drawn if not part[0].empty]
    if not drawn:
        raise style.NothingToDrawError("rows with a training loss or a downstream accuracy")
    shown = style.colours(rounds["start"])
    lines = {start for values, *_ in drawn for start in values.index.unique("start")}
    starts = [start for start in rounds["start"].unique() if start in lines]
    named = len(starts) <= _NAMED and max(map(cell_len, style.drawn(starts))) <= _SHORT
    figure, panels = style.row_of_panels(len(drawn))
    for panel, (values, *texts) in zip(panels, drawn, strict=True):
        style.by_round(panel, *texts)
        _draw(panel, values, shown)
        if (values is not tasks and label == "Loss") and _spans_wide(values["mean"]):
            # On a linear axis, one diverged run would flatten all other lines at the bottom.
            panel.set_yscale("log")
        if values is tasks:
            low, high = panel.get_ylim()
            panel.set_ylim(max(low, 0), min(high, 101))
        if named:
            _name_lines(panel, values["mean"].groupby("start", sort=False).last(), shown)
    if not named:
        style.legend(figure, starts, shown)
    return figure


def _by_round(rounds: pd.DataFrame, phase: str, quantity: str) -> pd.DataFrame:
    """Return "mean" and "std" (sample, 0 for one value) of finite values, by start and round."""
    # Rounds are sorted; starts keep the order in which they first appear.
    rows = rounds[rounds["phase"] == phase].reindex(columns=["start", "round", quantity])
    rows = rows.astype({quantity: float}).sort_values("round", kind="stable")
    rows = rows[np.isfinite(rows[quantity])]
    values = rows.groupby(["start", "round"], sort=False)[quantity]
    return pd.DataFrame({"mean": values.mean(), "std": values.std(ddof=1).fillna(0)})


def _spans_wide(losses: "pd.Series[float]") -> bool:
    """Return whether the losses need a logarithmic axis: they differ by more than a factor 100."""
    low, high = losses.min(), losses.max()
    return bool(low > 0) and bool(high > _WIDE * low)


def _draw(panel: "style.Axes", values: pd.DataFrame, shown: style.Looks) -> None:
    starts = list(values.index.unique("start"))
    last = values.index.get_level_values("round").max()
    step = max(0.02 * last, 0.04)  # Distance of two bars, and of the first bar from the last round.
    for at, (start, of_start) in enumerate(values.groupby("start", sort=False)):
        colour, dashes = shown[str(start)]
        rounds = of_start.index.get_level_values("round").to_numpy()
        means, stds = of_start["mean"].to_numpy(), of_start["std"].to_numpy()
        style.line(panel, rounds, means, colour, dashes)
        if stds.any() and len(starts) <= _BANDS:
            low, high = means - stds, means + stds
            panel.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        elif stds.any():
            beside = rounds[-1:] + step * (at + 1)
            panel.errorbar(
                beside, means[-1:], stds[-1:], color=colour, fmt="o", markersize=3, linewidth=1.2,
                capsize=2,
            )  # fmt: skip


def _name_lines(panel: "style.Axes", ends: "pd.Series[float]", shown: style.Looks) -> None:
    """Write each start's name right of the panel at its line's last value, without overlap."""
    low, high = panel.get_ylim()
    scale = np.log if panel.get_yscale() == "log" else np.asarray
    bottom, top = float(scale(low)), float(scale(high))
    at = {str(name): float(scale(end)) for name, end in ends.items()}
    heights = {name: (height - bottom) / (top - bottom) for name, height in at.items()}
    names = sorted(heights, key=lambda name: heights[name])
    places: list[float] = []
    for name in names:
        places.append(max(heights[name], places[-1] + _APART if places else 0.0))
    too_high = max(0.0, places[-1] - 1)
    for name, place in zip(names, places, strict=True):
        panel.annotate(
            name, (1, place - too_high), (4, 0), xycoords="axes fraction",
            textcoords="offset points", va="center", fontsize=9, color=shown[name][0],
            parse_math=False,
        )  # fmt: skip


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


def switch_figure(accuracy: pd.DataFrame, switches: Mapping[str, int]) -> "style.Figure":
    """Draw the test accuracy of the pre-training by round, smoothed if there are enough rounds.

    Where a line is smoothed, a faint line shows the measured accuracies. `accuracy` is in percent,
    with a row per round and a column per start. It is nan if a start was not tested in a round.
    `switches` has the last round of the first phase (P1) for each start with several phases; a
    dotted line is drawn there. With 200 rounds or more, a second panel shows the last 50 rounds.
    Raises `NothingToDrawError` if no start was tested in any round.
    """
    accuracy = accuracy.dropna(how="all").sort_index()
    if accuracy.empty:
        raise style.NothingToDrawError("runs with test-every")
    shown = style.colours(accuracy.columns)
    last = int(accuracy.index.max())
    widths = [2, 1] if last >= 4 * _LAST else [2]
    figure, (first, *zoomed) = style.row_of_panels(len(widths), 4.2, widths)
    smoothed = any(smoothing_window(values.dropna().index) for _, values in accuracy.items())
    below = "smoothed; faint: as measured; " * smoothed + "dotted: the switch"
    style.by_round(first, "Pre-training", below, "Test accuracy (%)")
    for panel in (first, *zoomed):
        for start, values in accuracy.items():
            _smooth(panel, values.dropna(), switches.get(str(start), 0), *shown[str(start)])
    for panel in zoomed:
        style.by_round(panel, f"Last {_LAST} rounds", "the same lines")
        seen = accuracy.loc[last - _LAST :].to_numpy(float)
        low, high = float(np.nanmin(seen)), float(np.nanmax(seen))
        room = max(0.05 * (high - low), 0.1)
        panel.set_xlim(last - _LAST, last)
        panel.set_ylim(low - room, high + room)
    style.legend(figure, list(accuracy.columns), shown)
    return figure


def _smooth(
    panel: "style.Axes", values: "pd.Series[float]", switch: int, colour: str, dashes: str
) -> None:
    from scipy.signal import savgol_filter

    smooth = values
    if window := smoothing_window(values.index):
        panel.plot(values.index, values, color=colour, alpha=0.25, linewidth=0.8)
        smooth = savgol_filter(values, window, ORDER)
    style.line(panel, values.index, smooth, colour, dashes)
    if switch:
        panel.axvline(switch, color=colour, linestyle=":", linewidth=1.2)
