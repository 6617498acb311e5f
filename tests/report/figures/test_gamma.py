import math

import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import colours, gamma_figure
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
