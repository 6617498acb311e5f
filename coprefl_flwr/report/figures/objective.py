"""CoPreFL's meta objective round by round: what γ weighs against what."""

import math

import pandas as pd

from coprefl_flwr.report.figures import style

LEVEL, SPREAD = ("sum", "mean"), ("variance", "deviation")
"""What the terms of a meta objective are called (see `learning.meta`): gamma weighs one of the
first, 1 - gamma one of the second."""

_LEAST = 30.0
"""The axis's end over its beginning: below it, a logarithmic axis has no round numbers."""


def weighted(rounds: pd.DataFrame, gamma: float) -> pd.DataFrame:
    """Return a row a round with both terms of the meta objective and their gradients' lengths.

    `rounds` are rows of rounds (`results`). The columns are "round", "level", "spread",
    "level-gradient" and "spread-gradient", weighted by γ and 1 - γ; "terms" says what they are. No
    rows where no round reports them.
    """
    for level, spread in zip(LEVEL, SPREAD, strict=True):
        if f"meta-{spread}" in rounds and f"meta-{level}" in rounds:
            found = pd.DataFrame({"round": rounds["round"]})
            for name, term, weight in (("level", level, gamma), ("spread", spread, 1 - gamma)):
                for of in ("", "-gradient"):
                    found[f"{name}{of}"] = weight * rounds[f"meta-{term}{of}"].astype(float)
            return found.dropna().assign(terms=f"{level}, {spread}")
    return pd.DataFrame()


def objective_figure(rounds: pd.DataFrame) -> "style.Figure":
    """Draw the weighted terms and the lengths of their gradients, on logarithmic axes.

    `rounds` are those of `weighted`, with the "start" of each; values of one round, as of several
    seeds, are averaged. A term of weight 0 has no line. Raises `NothingToDrawError` for no rows.
    """
    if rounds.empty:
        raise style.NothingToDrawError("rounds of a method with a meta objective")
    starts = list(rounds["start"].unique())
    shown = style.colours(starts)
    pairs = rounds["terms"].unique()
    level, spread = pairs[0].split(", ") if len(pairs) == 1 else ("first term", "second")
    below = f"solid: γ × {level}; dashed: (1 − γ) × {spread}"  # noqa: RUF001
    figure, panels = style.row_of_panels(2)
    titles = ("Terms of the meta objective", "Lengths of their gradients")
    for panel, title, of in zip(panels, titles, ("", "-gradient"), strict=True):
        style.by_round(panel, title, below)
        panel.set_yscale("log")
        for start, part in rounds.groupby("start", sort=False):
            means = part.groupby("round")[[f"level{of}", f"spread{of}"]].mean()
            for name, dashes in ((f"level{of}", "-"), (f"spread{of}", "--")):
                line = means[name][means[name] > 0]
                marker = "o" if len(line) == 1 else ""
                colour, _ = shown[str(start)]
                panel.plot(
                    line.index, line, color=colour, linestyle=dashes, linewidth=1.6, marker=marker
                )
        low, high = panel.get_ylim()
        room = max(1.0, math.sqrt(_LEAST * low / high))
        panel.set_ylim(low / room, high * room)
    style.legend(figure, starts, {start: (colour, "-") for start, (colour, _) in shown.items()})
    return figure
