import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import colours, smoothing_window, switch_figure


@pytest.mark.parametrize(
    ("rounds", "window"),
    [
        (range(1, 1001), 41),
        (range(1, 31), 29),  # as many as there are, but odd
        (range(2, 1001, 2), 19),  # 20 tested rounds lie in 41
        (range(10, 1001, 10), 5),
        (range(1, 5), 0),
        ([], 0),
    ],
)
def test_window(rounds: range, window: int) -> None:
    assert smoothing_window(rounds) == window


def test_what_is_drawn() -> None:
    """A cubic goes through the filter unchanged; noise does not."""
    numbers = np.arange(1, 101)
    cubic = {int(n): 50 + 1e-5 * (n - 50.0) ** 3 for n in numbers}
    noisy = {int(n): 50.0 + (-1) ** int(n) for n in numbers}
    accuracy = pd.DataFrame({"fedavg": cubic, "cyclic+fedavg": noisy})
    figure = switch_figure(accuracy, {"cyclic+fedavg": 30})
    (panel,) = figure.axes
    raw, smooth, raw_noisy, smooth_noisy, switch = panel.lines
    np.testing.assert_allclose(raw.get_ydata(), list(cubic.values()))
    np.testing.assert_allclose(smooth.get_ydata(), list(cubic.values()), atol=1e-9)
    np.testing.assert_allclose(raw_noisy.get_ydata(), list(noisy.values()))
    assert np.ptp(np.asarray(smooth_noisy.get_ydata())[20:-20]) < 0.2
    assert list(switch.get_xdata()) == [30, 30]
    assert switch.get_linestyle() == ":"
    shown = colours(["fedavg", "cyclic+fedavg"])
    assert smooth.get_color() == shown["fedavg"][0]
    assert switch.get_color() == shown["cyclic+fedavg"][0]
    assert raw.get_alpha() < 0.5


def test_long_runs_are_zoomed() -> None:
    accuracy = pd.DataFrame({"a": {n: 40 + n / 100 for n in range(1, 401)}})
    whole, last = switch_figure(accuracy, {"a": 100}).axes
    assert last.get_xlim() == (350, 400)
    low, high = last.get_ylim()
    assert 43 < low < 43.5
    assert 44 < high < 44.5
    assert whole.get_xlim()[0] < 1


def test_too_few_rounds_are_drawn_as_they_are() -> None:
    (panel,) = switch_figure(pd.DataFrame({"a": {1: 10.0, 2: 30.0, 3: 20.0}}), {}).axes
    assert list(panel.lines[1].get_ydata()) == [10, 30, 20]


def test_nothing_tested_is_refused() -> None:
    with pytest.raises(SettingsError, match="nothing to draw"):
        switch_figure(pd.DataFrame({"a": {}}), {})
