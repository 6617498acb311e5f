import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import p1_rounds_figure


def points(rounds: list[int]) -> pd.DataFrame:
    """On the cubic 50 + (r - 5)³ / 100, with a deviation of 2."""
    found = [(number, 50 + (number - 5) ** 3 / 100, 2.0) for number in rounds]
    return pd.DataFrame(found, columns=["at", "mean", "std"])


def test_the_cubic_goes_through_points_on_a_cubic() -> None:
    (panel,) = p1_rounds_figure(points([9, 1, 5, 3, 7, 11]), "Accuracy").axes
    measured, *_, fit = panel.lines
    assert list(measured.get_xdata()) == [1, 3, 5, 7, 9, 11]
    rounds = np.asarray(fit.get_xdata())
    assert (rounds.min(), rounds.max()) == (1, 11)
    np.testing.assert_allclose(fit.get_ydata(), 50 + (rounds - 5) ** 3 / 100, atol=1e-9)
    bars = panel.collections[0].get_segments()
    assert [round(float(np.ptp(bar[:, 1])), 9) for bar in bars] == [4] * 6


def test_four_points_are_not_fitted() -> None:
    (panel,) = p1_rounds_figure(points([1, 2, 3, 4]), "Accuracy").axes
    assert all(len(np.asarray(line.get_xdata())) == 4 for line in panel.lines)


def test_one_length_is_refused() -> None:
    with pytest.raises(SettingsError, match="at least two lengths of P1"):
        p1_rounds_figure(points([3, 3]), "Accuracy")
