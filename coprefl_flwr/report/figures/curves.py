"""How the pre-training and the downstream tasks went, round by round."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures.style import (
    INK,
    LineStyle,
    colours,
    count_rounds,
    image_format,
    legend,
    new_figure,
    plain,
    save,
    title,
)

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
    seed: NotRequired[int]  # where the pre-training was run with several


PHASES = ("pretraining", "downstream")
_REQUIRED = [key for key in CurveRow.__annotations__ if key in CurveRow.__required_keys__]


def learning_curves(curves: Sequence[CurveRow], path: str | Path) -> None:
    """Save `learning_figure`; the file's suffix is one of `FORMATS`."""
    image_format(path)
    save(learning_figure(curves), path)


def learning_figure(curves: Sequence[CurveRow]) -> "Figure":
    """Draw pre-training loss by round, and downstream accuracy by round, for each start.

    Where the pre-trained model was tested, its accuracy takes the place of the loss.
    The downstream line is the mean over the tasks that have an accuracy for that round, its band
    one sample standard deviation either side; so is the pre-training's over the seeds, where rows
    have several. A panel without data is left out.
    """
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
    figure = new_figure(3.9)
    panels = list(figure.subplots(1, bool(losses) + bool(tasks), squeeze=False).flat)
    if losses:
        panel = panels.pop(0)
        seeds = {row.get("seed") for row in curves if row["phase"] == "pretraining"}
        below = "one run each" if len(seeds) == 1 else f"mean ± std over {len(seeds)} seeds"
        title(panel, "Pre-training", below)
        label = "Test accuracy (%)" if tested else "Loss"
        panel.set_ylabel(label, fontsize=10, color=INK)
        _draw_curves(panel, losses, shown)
    if tasks:
        panel = panels.pop(0)
        title(panel, "Downstream tasks", "mean ± std over tasks")
        panel.set_ylabel("Accuracy (%)", fontsize=10, color=INK)
        _draw_curves(panel, tasks, shown)
        low, high = panel.get_ylim()
        panel.set_ylim(max(low, 0), min(high, 101))
    legend(figure, starts, shown)
    return figure


def _check_curves(curves: Iterable[Mapping[str, Any]]) -> None:
    seen = set()
    for row in curves:
        missing = [key for key in _REQUIRED if key not in row]
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
        key = (row["phase"], row["start"], row["task"], row["round"], row.get("seed"))
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
    count_rounds(panel)
    plain(panel)


def _sample_std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
