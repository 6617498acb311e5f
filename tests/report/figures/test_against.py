"""Accuracies against gamma, and against the length of the first phase."""

import math

import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import colours, gamma_figure, p1_rounds_figure
from coprefl_flwr.report.figures.against import PAPER


def points(of: list[tuple[float, float, float]], line: str) -> pd.DataFrame:
    return pd.DataFrame(of, columns=["at", "mean", "std"]).assign(line=line)


def test_what_is_drawn() -> None:
    here = points([(1.0, 84.0, 3.0), (0.0, 80.0, 2.0)], "coprefl")
    paper = points([(0.0, 78.0, math.nan), (1.0, 82.0, math.nan)], PAPER)
    panels = {"Accuracy %": pd.concat([here, paper]), "Variance %²": here}
    accuracy, variance = gamma_figure(panels).axes
    lines = [line for line in accuracy.lines if line.get_linestyle() != "None"]
    assert [list(line.get_ydata()) for line in lines] == [[80, 84], [78, 82]]
    np.testing.assert_allclose(lines[0].get_xdata(orig=False), [0, 1], atol=0.01)
    assert lines[0].get_color() == colours(["coprefl"])["coprefl"][0]
    assert lines[1].get_markerfacecolor() == "white"
    bars = [np.ptp(bar[:, 1]) for bar in accuracy.collections[0].get_segments()]
    assert bars == pytest.approx([4, 6])
    assert list(accuracy.get_xticks()) == [0, 1]
    assert len(variance.collections) == 1


def test_one_value_of_gamma_is_refused() -> None:
    with pytest.raises(SettingsError, match="at least two values of gamma"):
        gamma_figure({"Accuracy %": points([(0.5, 1.0, 1.0)], "a")})


def lengths(rounds: list[int]) -> pd.DataFrame:
    """On the cubic 50 + (r - 5)³ / 100, with a deviation of 2."""
    found = [(number, 50 + (number - 5) ** 3 / 100, 2.0) for number in rounds]
    return pd.DataFrame(found, columns=["at", "mean", "std"])


def test_the_cubic_goes_through_points_on_a_cubic() -> None:
    (panel,) = p1_rounds_figure(lengths([9, 1, 5, 3, 7, 11]), "Accuracy").axes
    measured, *_, fit = panel.lines
    assert list(measured.get_xdata()) == [1, 3, 5, 7, 9, 11]
    rounds = np.asarray(fit.get_xdata())
    assert (rounds.min(), rounds.max()) == (1, 11)
    np.testing.assert_allclose(fit.get_ydata(), 50 + (rounds - 5) ** 3 / 100, atol=1e-9)
    bars = panel.collections[0].get_segments()
    assert [round(float(np.ptp(bar[:, 1])), 9) for bar in bars] == [4] * 6


def test_four_points_are_not_fitted() -> None:
    (panel,) = p1_rounds_figure(lengths([1, 2, 3, 4]), "Accuracy").axes
    assert all(len(np.asarray(line.get_xdata())) == 4 for line in panel.lines)


def test_one_length_is_refused() -> None:
    with pytest.raises(SettingsError, match="at least two lengths of P1"):
        p1_rounds_figure(lengths([3, 3]), "Accuracy")
