"""Accuracy against the rounds spent in P1 (CyclicFL, Figure 6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDER = 3


@dataclass(frozen=True)
class P1Point:
    """What one length of P1 came to."""

    rounds: int
    accuracy: float  # percent, mean over the units of the table
    std: float  # nan for one unit


def is_fitted(points: Sequence[P1Point]) -> bool:
    """Tell whether a cubic says anything: through four points there is always one."""
    return len({point.rounds for point in points}) > ORDER + 1


def p1_rounds_figure(points: Sequence[P1Point], label: str) -> "Figure":
    """Draw accuracy by rounds of P1, and the least-squares cubic where `is_fitted`.

    `label` is the vertical axis's. Raises `SettingsError` for fewer than two lengths of P1.
    """
    if len({point.rounds for point in points}) < 2:
        raise SettingsError("there is nothing to draw; allowed: at least two lengths of P1")
    colour, _ = style.colours(["cyclic"])["cyclic"]
    points = sorted(points, key=lambda point: point.rounds)
    rounds = np.array([point.rounds for point in points], dtype=np.float64)
    means = np.array([point.accuracy for point in points])
    stds = np.nan_to_num([point.std for point in points])
    figure = style.new_figure(3.9)
    panel = figure.subplots()
    below = "mean ± std" if stds.any() else "one run each"
    panel.errorbar(
        rounds, means, stds, fmt="o", color=style.INK, ecolor=style.INK, elinewidth=1, capsize=3
    )
    if is_fitted(points):
        cubic = np.polynomial.Polynomial.fit(rounds, means, ORDER)
        panel.plot(*cubic.linspace(200), color=colour, linewidth=1.6, zorder=1)
        below += "; line: least-squares cubic"
    style.title(panel, "Length of P1", below)
    panel.set_ylabel(label, fontsize=10, color=style.INK)
    style.count_rounds(panel, "Rounds in P1")
    style.plain(panel)
    return figure
