"""What a start is worth, against what was measured at it before."""

from collections.abc import Mapping

import pandas as pd

from coprefl_flwr.report.figures import style

COLUMNS = 2


def explained_figure(panels: Mapping[str, pd.DataFrame]) -> "style.Figure":
    """Draw a point per start and unit: a measure at the start, and the accuracy that came of it.

    `panels` has by the panel's title a DataFrame with "start", "at" (the measure) and "accuracy" in
    percent. Raises `NothingToDrawError` where no panel has two points.
    """
    drawn = {title: points.dropna() for title, points in panels.items()}
    drawn = {title: points for title, points in drawn.items() if len(points) > 1}
    if not drawn:
        raise style.NothingToDrawError("diagnostics of at least two starts or units")
    starts = list(pd.concat(drawn.values())["start"].unique())
    shown = style.colours(starts)
    lines = -(-len(drawn) // COLUMNS)
    figure = style.new_figure(0.6 + 2.9 * lines)
    grid = list(figure.subplots(lines, COLUMNS, sharey=True, squeeze=False).flat)
    for panel in grid[len(drawn) :]:
        panel.set_visible(False)
    for panel, (title, points) in zip(grid, drawn.items(), strict=False):
        style.plain(panel, title, "a point: one task from one start", ylabel="Accuracy (%)")
        for start, of_start in points.groupby("start", sort=False):
            colour, _ = shown[str(start)]
            panel.plot(of_start["at"], of_start["accuracy"], "o", color=colour, markersize=5)
        if points["at"].nunique() == 1:  # Else the axis would show a spread that is none.
            panel.set_xticks([points["at"].iloc[0]])
    style.legend(figure, starts, shown)
    return figure
