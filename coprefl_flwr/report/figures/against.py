"""A metric against a setting: CoPreFL's γ (its Table 2), the rounds of P1 (CyclicFL, Figure 6)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "paper"
_ORDER = 3  # of the polynomial that CyclicFL draws


@dataclass(frozen=True)
class Point:
    """A metric's mean and standard deviation (nan where there is none) at one value."""

    at: float
    mean: float
    std: float


def gamma_figure(panels: Mapping[str, Mapping[str, Sequence[Point]]]) -> "Figure":
    """Draw metrics by γ with error bars.

    `panels` has, for each panel by its title, the points of each line; the line named `PAPER` is
    drawn in ink, dashed and hollow. Raises `SettingsError` where no line has two values of γ.
    """
    if not any(_several(line) for lines in panels.values() for line in lines.values()):
        raise SettingsError("there is nothing to draw; allowed: at least two values of gamma")
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    shown = style.colours(name for name in names if name != PAPER)
    if PAPER in names:
        shown[PAPER] = (style.INK, "--")
    figure = style.new_figure(3.9)
    grid = figure.subplots(1, len(panels), squeeze=False).flat
    for panel, (title, lines) in zip(grid, panels.items(), strict=True):
        style.title(panel, title, "mean ± std")
        for place, (name, line) in enumerate(lines.items()):
            colour, dashes = shown[name]
            # Side by side, or the error bars hide one another.
            shift = 0.008 * (place - (len(lines) - 1) / 2)
            values, means, stds = _arrays(line)
            panel.errorbar(
                values + shift, means, stds, color=colour, linestyle=dashes, linewidth=1.6,
                elinewidth=1, capsize=3, marker="o", markersize=5,
                markerfacecolor="white" if name == PAPER else colour,
            )  # fmt: skip
        panel.set_xlabel(r"$\gamma$", fontsize=10, color=style.INK)
        panel.set_xticks(sorted({point.at for line in lines.values() for point in line}))
        style.plain(panel)
    style.legend(figure, names, shown)
    return figure


def p1_rounds_figure(points: Sequence[Point], label: str) -> "Figure":
    """Draw accuracy in percent by rounds of P1, and the least-squares cubic where `is_fitted`.

    `label` is the vertical axis's. Raises `SettingsError` for fewer than two lengths of P1.
    """
    if not _several(points):
        raise SettingsError("there is nothing to draw; allowed: at least two lengths of P1")
    colour, _ = style.colours(["cyclic"])["cyclic"]
    rounds, means, stds = _arrays(points)
    figure = style.new_figure(3.9)
    panel = figure.subplots()
    below = "mean ± std" if stds.any() else "one run each"
    panel.errorbar(
        rounds, means, stds, fmt="o", color=style.INK, ecolor=style.INK, elinewidth=1, capsize=3
    )
    if is_fitted(points):
        cubic = np.polynomial.Polynomial.fit(rounds, means, _ORDER)
        panel.plot(*cubic.linspace(200), color=colour, linewidth=1.6, zorder=1)
        below += "; line: least-squares cubic"
    style.title(panel, "Length of P1", below)
    panel.set_ylabel(label, fontsize=10, color=style.INK)
    style.count_rounds(panel, "Rounds in P1")
    style.plain(panel)
    return figure


def is_fitted(points: Sequence[Point]) -> bool:
    """Tell whether a cubic says anything: through four points there is always one."""
    return len({point.at for point in points}) > _ORDER + 1


def _several(points: Sequence[Point]) -> bool:
    return len({point.at for point in points}) > 1


def _arrays(points: Sequence[Point]) -> tuple[style.Floats, style.Floats, style.Floats]:
    """Return places, means and standard deviations (0 where there is none), in order of place."""
    ordered = sorted(points, key=lambda point: point.at)
    columns = np.array([(point.at, point.mean, point.std) for point in ordered], dtype=np.float64).T
    return columns[0], columns[1], np.nan_to_num(columns[2])
