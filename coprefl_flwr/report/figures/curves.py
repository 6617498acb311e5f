"""How the pre-training and the downstream tasks went, round by round."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.options import unknown
from coprefl_flwr.report.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASES = ("pretraining", "downstream")
_KEY = ["phase", "start", "task", "round"]


def learning_curves(rounds: pd.DataFrame, path: str | Path) -> None:
    """Save `learning_figure`; the file's suffix is one of `style.FORMATS`."""
    style.image_format(path)
    style.save(learning_figure(rounds), path)


def learning_figure(rounds: pd.DataFrame) -> "Figure":
    """Draw pre-training loss by round, and downstream accuracy by round, for each start.

    `rounds` are rows of rounds (`results`), with the column seed where the pre-training was run
    with several. Where the pre-trained model was tested, its accuracy (server-accuracy) takes the
    place of the loss. The downstream line is the mean over the tasks that have an accuracy for that
    round, its band one sample standard deviation either side; so is the pre-training's over the
    seeds. A panel without data is left out.
    """
    _check(rounds)
    tested = _by_round(rounds, "pretraining", "server-accuracy")
    before = _by_round(rounds, "pretraining", "loss") if tested.empty else tested
    tasks = _by_round(rounds, "downstream", "accuracy")
    shown = style.colours(rounds["start"])
    figure = style.new_figure(3.9)
    seeds = rounds["seed"].nunique() if "seed" in rounds else 1
    over_seeds = "one run each" if seeds == 1 else f"mean ± std over {seeds} seeds"
    label = "Loss" if tested.empty else "Test accuracy (%)"
    drawn = [
        (before, "Pre-training", over_seeds, label),
        (tasks, "Downstream tasks", "mean ± std over tasks", "Accuracy (%)"),
    ]
    drawn = [one for one in drawn if not one[0].empty]
    panels = figure.subplots(1, len(drawn), squeeze=False).flat
    for panel, (values, name, below, label) in zip(panels, drawn, strict=True):
        style.title(panel, name, below)
        panel.set_ylabel(label, fontsize=10, color=style.INK)
        _draw(panel, values, shown)
        if values is tasks:
            low, high = panel.get_ylim()
            panel.set_ylim(max(low, 0), min(high, 101))
    lines = {start for values, *_ in drawn for start in values.index.unique("start")}
    style.legend(figure, [start for start in rounds["start"].unique() if start in lines], shown)
    return figure


def is_drawable(rounds: pd.DataFrame) -> bool:
    """Tell whether `learning_figure` would have a line to draw."""
    missing = [key for key in _KEY if len(rounds) and key not in rounds]
    if missing:
        have = ", ".join(map(str, rounds))
        raise SettingsError(f"rows of rounds have no {missing[0]!r}; they have {have}")
    for phase in rounds.get("phase", pd.Series()).unique():
        if phase not in PHASES:
            raise SettingsError(unknown("phase", str(phase), PHASES))
    lines = [
        ("pretraining", "server-accuracy"),
        ("pretraining", "loss"),
        ("downstream", "accuracy"),
    ]
    return len(rounds) > 0 and any(len(_by_round(rounds, *line)) for line in lines)


def _check(rounds: pd.DataFrame) -> None:
    if not is_drawable(rounds):
        allowed = "rows with a pre-training loss or a downstream accuracy"
        raise SettingsError(f"there is nothing to draw; allowed: {allowed}")
    for _, row in rounds[rounds["task"].isna() != (rounds["phase"] == "pretraining")].iterrows():
        raise SettingsError(
            f"task of a {row['phase']} row is {row['task']!r}; "
            "allowed: none for pretraining, a number for downstream"
        )
    key = [*_KEY, "seed"] if "seed" in rounds else _KEY
    for _, row in rounds[rounds.duplicated(key)].iterrows():
        raise SettingsError(
            f"{row['phase']} of start {row['start']!r}, task {row['task']}, has two rows for round "
            f"{row['round']}; allowed: one each"
        )


def _by_round(rounds: pd.DataFrame, phase: str, quantity: str) -> pd.DataFrame:
    """Return mean and sample std of a quantity's finite values, by start and round.

    The deviation of one value is 0; rounds are in order, starts as they first appear.
    """
    found = rounds[rounds["phase"] == phase].reindex(columns=["start", "round", quantity])
    found = found.astype({quantity: float}).sort_values("round", kind="stable")
    found = found[np.isfinite(found[quantity])]
    values = found.groupby(["start", "round"], sort=False)[quantity]
    return pd.DataFrame({"mean": values.mean(), "std": values.std(ddof=1).fillna(0)})


def _draw(panel: "Axes", values: pd.DataFrame, shown: style.Looks) -> None:
    for start, of_start in values.groupby("start", sort=False):
        colour, dashes = shown[str(start)]
        rounds = of_start.index.get_level_values("round").to_numpy()
        means, stds = of_start["mean"].to_numpy(), of_start["std"].to_numpy()
        # A line through one point cannot be seen.
        marker = "o" if len(rounds) == 1 else ""
        panel.plot(rounds, means, color=colour, linestyle=dashes, linewidth=1.6, marker=marker)
        if stds.any():
            low, high = means - stds, means + stds
            panel.fill_between(rounds, low, high, color=colour, alpha=0.1, linewidth=0)
    style.count_rounds(panel)
    style.plain(panel)
