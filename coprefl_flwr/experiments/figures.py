"""The figures of a comparison: how client accuracies are spread, and how learning went.

Matplotlib is imported when a figure is drawn, and never through pyplot: no backend is chosen for
the program that calls, and none of its settings change.
"""

import difflib
import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.experiments.tables import ClientRow, accuracies, summary
from coprefl_flwr.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class CurveRow(TypedDict):
    """One round of a pre-training run (task None) or of a downstream task."""

    phase: str  # "pretraining" or "downstream"
    start: str
    task: int | None
    round: int
    loss: float
    accuracy: float | None  # percent


PHASES = ("pretraining", "downstream")
FORMATS = ("png", "svg", "pdf")

# Okabe and Ito's colour-blind-safe palette; grey for its yellow, too pale for lines on white, and
# dark grey for its black, the ink of everything else.
_PALETTE = (
    "#D55E00",
    "#0072B2",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#474747",
    "#A3A3A3",
)
LineStyle = Literal["-", "--", ":"]
_DASHES: tuple[LineStyle, ...] = ("-", "--", ":")
# A method keeps its colour in figures that show different starts.
_OWN_COLOURS = {
    "coprefl": 0,
    "fedavg": 1,
    "fedmeta": 2,
    "qffl": 3,
    "cyclic": 4,
    "copreflsgd": 5,
    "centralized": 6,
    "centralised": 6,
    "random": 7,
}
_INK, _FAINT = "#222222", "#D9D9D9"
_WIDTH, _DPI = 8.0, 200  # inches; 1600 pixels wide


def colours(starts: Iterable[str]) -> dict[str, tuple[str, LineStyle]]:
    """Return start -> (colour, line style), which depends on the set of starts, not their order.

    The shortest name of a method of the papers gets that method's own colour ("coprefl" before
    "coprefl:gamma=0.5"); the others take the free ones, shorter names first. Beyond eight starts
    colours repeat with another line style.
    """
    slots: dict[str, int] = {}
    names = sorted(set(starts), key=lambda name: (len(name), name))
    for name in names:
        phases = [phase.partition(":")[0] for phase in name.lower().split("+")]
        method = "".join(filter(str.isalnum, "+".join(phases)))
        own = _OWN_COLOURS.get(method)
        if own is not None and own not in slots.values():
            slots[name] = own
    for name in names:
        if name not in slots:
            slots[name] = next(slot for slot in itertools.count() if slot not in slots.values())
    return {
        name: (_PALETTE[slot % len(_PALETTE)], _DASHES[slot // len(_PALETTE) % len(_DASHES)])
        for name, slot in slots.items()
    }


def accuracy_histogram(rows: Sequence[ClientRow], path: str | Path) -> None:
    """Draw the client accuracies of each start, pooled over tasks (CoPreFL, Figures 2 to 10).

    Mean (also the vertical line) and variance in a panel's title are those of the table: per task,
    then averaged over tasks. The file's suffix is one of `FORMATS`.
    """
    image_format = _format(path)
    pooled = {
        start: np.concatenate([np.asarray(values) for values in tasks.values()])
        for start, tasks in accuracies(rows).items()
    }
    shown = colours(pooled)
    edges = _edges(np.concatenate(list(pooled.values())))
    # One below the other, shifts along the shared axis are seen best.
    columns = 1 if len(pooled) <= 3 else 2
    lines = -(-len(pooled) // columns)
    figure = _figure(0.5 + 1.55 * lines)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for panel, entry in zip(panels, summary(rows), strict=False):
        values = pooled[entry["start"]]
        weights = np.full(values.size, 100 / values.size)
        panel.hist(
            values,
            bins=edges,
            weights=weights,
            color=shown[entry["start"]][0],
            edgecolor="white",
            linewidth=0.6,
        )
        # White below, or the line is lost in dark bars.
        panel.axvline(entry["accuracy"], color="white", linewidth=2.6)
        panel.axvline(entry["accuracy"], color=_INK, linewidth=1.2)
        numbers = f"mean {entry['accuracy']:.1f} %, variance {entry['variance']:.1f} %²"
        _title(panel, entry["start"], numbers)
        _plain(panel)
    for panel in panels[len(pooled) :]:
        panel.set_visible(False)
    for panel in panels[max(0, len(pooled) - columns) : len(pooled)]:
        panel.tick_params(labelbottom=True)
    panels[0].set_xlim(edges[0], edges[-1])
    figure.supxlabel("Client accuracy (%)", fontsize=10, color=_INK)
    figure.supylabel("Clients (%)", fontsize=10, color=_INK)
    _save(figure, path, image_format)


def learning_curves(curves: Sequence[CurveRow], path: str | Path) -> None:
    """Draw pre-training loss by round, and downstream accuracy by round, for each start.

    Where the pre-trained model was tested, its accuracy takes the place of the loss.
    The downstream line is the mean over the tasks that have an accuracy for that round, its band
    one sample standard deviation either side. A panel without data is left out. The file's suffix
    is one of `FORMATS`.
    """
    image_format = _format(path)
    _check_curves(curves)
    tested = _by_start(curves, "pretraining", "accuracy")
    losses = tested or _by_start(curves, "pretraining", "loss")
    tasks = _by_start(curves, "downstream", "accuracy")
    if not losses and not tasks:
        raise SettingsError(
            "there is nothing to draw; allowed: rows with a pre-training loss "
            "or a downstream accuracy"
        )
    shown = colours(row["start"] for row in curves)
    starts = [
        start
        for start in dict.fromkeys(row["start"] for row in curves)
        if start in losses or start in tasks
    ]
    figure = _figure(3.9)
    panels = list(figure.subplots(1, bool(losses) + bool(tasks), squeeze=False).flat)
    if losses:
        panel = panels.pop(0)
        _title(panel, "Pre-training", "one run each")
        label = "Test accuracy (%)" if tested else "Loss"
        panel.set_ylabel(label, fontsize=10, color=_INK)
        _draw_curves(panel, losses, shown)
    if tasks:
        panel = panels.pop(0)
        _title(panel, "Downstream tasks", "mean ± std over tasks")
        panel.set_ylabel("Accuracy (%)", fontsize=10, color=_INK)
        _draw_curves(panel, tasks, shown)
        low, high = panel.get_ylim()
        panel.set_ylim(max(low, 0), min(high, 101))
    _legend(figure, starts, shown)
    _save(figure, path, image_format)


def _check_curves(curves: Iterable[Mapping[str, Any]]) -> None:
    seen = set()
    for row in curves:
        missing = [key for key in CurveRow.__annotations__ if key not in row]
        if missing:
            raise SettingsError(f"a curve row has no {missing[0]!r}; it has {', '.join(row)}")
        if row["phase"] not in PHASES:
            near = difflib.get_close_matches(str(row["phase"]), PHASES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SettingsError(
                f"phase of a curve row is {row['phase']!r}; allowed: {', '.join(PHASES)}{hint}"
            )
        if (row["task"] is None) != (row["phase"] == "pretraining"):
            raise SettingsError(
                f"task of a {row['phase']} row is {row['task']!r}; "
                "allowed: None for pretraining, a number for downstream"
            )
        key = (row["phase"], row["start"], row["task"], row["round"])
        if key in seen:
            raise SettingsError(
                f"{key[0]} of start {key[1]!r}, task {key[2]}, has two rows for round {key[3]}; "
                "allowed: one each"
            )
        seen.add(key)


def _by_start(
    curves: Iterable[Mapping[str, Any]], phase: str, quantity: str
) -> dict[str, dict[int, list[float]]]:
    """Return start -> round -> the finite values of that round, rounds ascending."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in sorted(curves, key=lambda row: row["round"]):
        value = row[quantity]
        if row["phase"] == phase and value is not None and math.isfinite(value):
            found.setdefault(row["start"], {}).setdefault(row["round"], []).append(value)
    return found


def _draw_curves(
    panel: "Axes",
    values: Mapping[str, Mapping[int, Sequence[float]]],
    shown: Mapping[str, tuple[str, LineStyle]],
) -> None:
    from matplotlib.ticker import MaxNLocator

    for start, by_round in values.items():
        colour, dashes = shown[start]
        rounds = list(by_round)
        means = np.array([np.mean(by_round[number]) for number in rounds])
        stds = np.array([_sample_std(by_round[number]) for number in rounds])
        # A line through one point cannot be seen.
        marker = "o" if len(rounds) == 1 else ""
        panel.plot(rounds, means, color=colour, linestyle=dashes, linewidth=1.6, marker=marker)
        if stds.any():
            panel.fill_between(
                rounds, means - stds, means + stds, color=colour, alpha=0.1, linewidth=0
            )
    panel.set_xlabel("Round", fontsize=10, color=_INK)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    panel.margins(x=0.02)
    _plain(panel)


def _sample_std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _edges(values: npt.NDArray[np.float64]) -> list[float]:
    """Return equal bins with edges at round percentages, at most 21 of them, around all values."""
    span = float(np.ptp(values))
    width = next((width for width in (1.0, 2.0, 2.5) if span <= 14 * width), 5.0)
    low = math.floor(values.min() / width) * width
    bins = max(4, math.ceil((values.max() - low) / width))
    low = min(low, 100 - bins * width)
    return [low + width * index for index in range(bins + 1)]


def _figure(height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained", facecolor="white")


def _title(panel: "Axes", name: str, below: str) -> None:
    panel.set_title(
        name, loc="left", pad=18, fontsize=10, fontweight="bold", color=_INK, parse_math=False
    )
    panel.annotate(
        below,
        (0, 1),
        xytext=(0, 5),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=9,
        color=_INK,
    )


def _plain(panel: "Axes") -> None:
    """Leave what is needed to read values, behind the data."""
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        panel.spines[side].set_color(_INK)
    panel.tick_params(labelsize=9, color=_INK, labelcolor=_INK)
    panel.grid(axis="y", color=_FAINT, linewidth=0.6)
    panel.set_axisbelow(True)


def _legend(
    figure: "Figure", starts: Sequence[str], shown: Mapping[str, tuple[str, LineStyle]]
) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=shown[start][0], linestyle=shown[start][1], linewidth=2.4)
        for start in starts
    ]
    # About 103 characters of this size and as many line samples fit across the figure.
    columns = max(1, min(len(starts), 103 // (max(map(len, starts)) + 6)))
    figure.legend(
        lines, starts, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )


def _format(path: str | Path) -> str:
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise SettingsError(
            f"figure {str(path)!r} ends in {suffix!r}; allowed: {', '.join(FORMATS)}"
        )
    return suffix


def _save(figure: "Figure", path: str | Path, image_format: str) -> None:
    content = io.BytesIO()
    figure.savefig(content, format=image_format)
    write_atomically(path, content.getvalue())
