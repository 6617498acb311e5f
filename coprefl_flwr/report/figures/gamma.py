"""What CoPreFL's balance γ does to accuracy and variance (CoPreFL, Table 2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = "paper"


@dataclass(frozen=True)
class GammaPoint:
    """A metric's mean and standard deviation at one γ; nan where there is none."""

    gamma: float
    mean: float
    std: float


def gamma_figure(panels: Mapping[str, Mapping[str, Sequence[GammaPoint]]]) -> "Figure":
    """Draw metrics by γ with error bars.

    `panels` has, for each panel by its title, the points of each line; the line named `PAPER` is
    drawn in ink, dashed and hollow. Raises `SettingsError` where no line has two values of γ.
    """
    lines = [points for panel in panels.values() for points in panel.values()]
    if all(len({point.gamma for point in points}) < 2 for points in lines):
        raise SettingsError("there is nothing to draw; allowed: at least two values of gamma")
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    shown = style.colours(name for name in names if name != PAPER)
    if PAPER in names:
        shown[PAPER] = (style.INK, "--")
    figure = style.new_figure(3.9)
    grid = figure.subplots(1, len(panels), squeeze=False).flat
    for panel, (name, by_line) in zip(grid, panels.items(), strict=True):
        style.title(panel, name, "mean ± std")
        for place, (line, points) in enumerate(by_line.items()):
            # Side by side, or the error bars hide one another.
            shift = 0.008 * (place - (len(by_line) - 1) / 2)
            _draw(panel, points, shown[line], shift, hollow=line == PAPER)
        panel.set_xlabel(r"$\gamma$", fontsize=10, color=style.INK)
        panel.set_xticks(sorted({point.gamma for line in by_line.values() for point in line}))
        style.plain(panel)
    style.legend(figure, names, shown)
    return figure


def _draw(
    panel: "Axes",
    points: Sequence[GammaPoint],
    look: tuple[str, style.LineStyle],
    shift: float,
    *,
    hollow: bool,
) -> None:
    colour, dashes = look
    points = sorted(points, key=lambda point: point.gamma)
    panel.errorbar(
        [point.gamma + shift for point in points],
        [point.mean for point in points],
        np.nan_to_num([point.std for point in points]),
        color=colour,
        linestyle=dashes,
        linewidth=1.6,
        elinewidth=1,
        capsize=3,
        marker="o",
        markersize=5,
        markerfacecolor="white" if hollow else colour,
    )
