"""Learning curves of a pre-training in phases, smoothed, its switches marked.

CyclicFL, Figures 3 to 5: "all curves are smoothed by the Savitzky-Golay filter. The window size of
the filter is 41, and the order is 3."
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOW, ORDER = 41, 3
_LAST = 50  # "The final 50 rounds are zoomed in" (Figure 5).


@dataclass(frozen=True)
class PhaseCurve:
    """Test accuracies of one start's pre-training."""

    accuracy: Mapping[int, float]  # percent by round, of the rounds that were tested
    switch: int = 0  # the last round of the first phase (P1); 0 if there is one phase


def smoothing_window(rounds: npt.ArrayLike) -> int:
    """Return how many of the tested rounds the filter spans; 0: too few to smooth.

    As many as lie in 41 rounds, so that a test every tenth round is not smoothed over ten times as
    long; at least 5 (an odd number above the order), at most as many as there are.
    """
    tested = np.sort(np.asarray(rounds, dtype=np.int64))
    if tested.size < ORDER + 2:
        return 0
    spacing = max(1.0, float(np.median(np.diff(tested))))
    window = min(max(math.floor(WINDOW / spacing), ORDER + 2), tested.size)
    return window - (window % 2 == 0)


def switch_figure(runs: Mapping[str, PhaseCurve]) -> "Figure":
    """Draw test accuracy by round: smoothed, as measured in a fainter line, switches dotted.

    With 200 rounds or more a second panel shows the last 50. Raises `SettingsError` where nothing
    was tested.
    """
    if not any(run.accuracy for run in runs.values()):
        raise SettingsError("there is nothing to draw; allowed: runs tested in some rounds")
    shown = style.colours(runs)
    last = max(max(run.accuracy, default=0) for run in runs.values())
    figure = style.new_figure(4.2)
    zoomed = last >= 4 * _LAST
    widths = [2, 1] if zoomed else [2]
    panels = list(figure.subplots(1, len(widths), squeeze=False, width_ratios=widths).flat)
    style.title(panels[0], "Pre-training", "smoothed; faint: as measured; dotted: the switch")
    panels[0].set_ylabel("Test accuracy (%)", fontsize=10, color=style.INK)
    for panel in panels:
        for start, run in runs.items():
            _draw(panel, run, shown[start])
        style.count_rounds(panel)
        style.plain(panel)
    if zoomed:
        style.title(panels[1], f"Last {_LAST} rounds", "the same lines")
        _zoom(panels[1], runs, last - _LAST, last)
    style.legend(figure, list(runs), shown)
    return figure


def _draw(panel: "Axes", run: PhaseCurve, look: tuple[str, style.LineStyle]) -> None:
    from scipy.signal import savgol_filter

    colour, dashes = look
    rounds = sorted(run.accuracy)
    values = np.array([run.accuracy[number] for number in rounds])
    window = smoothing_window(rounds)
    smooth = savgol_filter(values, window, ORDER) if window else values
    marker = "o" if len(rounds) == 1 else ""
    panel.plot(rounds, values, color=colour, alpha=0.25, linewidth=0.8)
    panel.plot(rounds, smooth, color=colour, linestyle=dashes, linewidth=1.6, marker=marker)
    if run.switch:
        panel.axvline(run.switch, color=colour, linestyle=":", linewidth=1.2)


def _zoom(panel: "Axes", runs: Mapping[str, PhaseCurve], first: int, last: int) -> None:
    values = [value for run in runs.values() for n, value in run.accuracy.items() if n >= first]
    seen = [value for value in values if math.isfinite(value)]
    panel.set_xlim(first, last)
    if seen:
        room = max(0.05 * (max(seen) - min(seen)), 0.1)
        panel.set_ylim(min(seen) - room, max(seen) + room)
