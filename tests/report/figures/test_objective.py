import math

import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import colours, objective_figure
from coprefl_flwr.report.figures.objective import weighted


def rounds(level: str, spread: str, values: list[tuple[float, ...]]) -> pd.DataFrame:
    """Return rows of rounds with the metrics that a round reports of its objective."""
    names = [f"meta-{name}{of}" for of in ("", "-gradient") for name in (level, spread)]
    found = pd.DataFrame(values, columns=["round", *names])
    return found.assign(phase="pretraining")


PRINTED = rounds("sum", "variance", [(2, 60.0, 0.02, 8.0, 0.4), (1, 80.0, 0.04, 4.0, 0.8)])


def test_terms_are_weighted_by_gamma_and_what_is_left_of_it() -> None:
    found = weighted(PRINTED, 0.25)
    assert list(found["round"]) == [2, 1]
    np.testing.assert_allclose(found["level"], [15, 20])
    np.testing.assert_allclose(found["spread"], [0.015, 0.03])
    np.testing.assert_allclose(found["level-gradient"], [2, 1])
    np.testing.assert_allclose(found["spread-gradient"], [0.3, 0.6])
    assert set(found["terms"]) == {"sum, variance"}
    ours = weighted(rounds("mean", "deviation", [(1, 4.0, 0.2, 2.0, 1.0)]), 0.5)
    assert ours.to_dict("records") == [
        {"round": 1, "level": 2.0, "level-gradient": 1.0, "spread": 0.1, "spread-gradient": 0.5,
         "terms": "mean, deviation"}
    ]  # fmt: skip


def test_rounds_without_the_terms_are_none() -> None:
    """Those of the phase before it, and of a method that has no such objective."""
    before = pd.DataFrame({"round": [1], "loss": [3.0]})
    together = pd.concat([before, PRINTED], ignore_index=True)
    assert list(weighted(together, 0.5)["round"]) == [2, 1]
    assert weighted(before, math.nan).empty
    assert weighted(pd.DataFrame(), 0.5).empty


def test_what_is_drawn() -> None:
    """Two seeds of CoPreFL, averaged; gamma 1 has no second term."""
    other = PRINTED.assign(**{"meta-sum": [20.0, 40.0]})
    parts = {"coprefl": weighted(pd.concat([PRINTED, other]), 0.25), "only": weighted(PRINTED, 1.0)}
    found = pd.concat([part.assign(start=start) for start, part in parts.items()])
    figure = objective_figure(found)
    terms, gradients = figure.axes
    assert [panel.get_yscale() for panel in figure.axes] == ["log", "log"]
    sums, variances, only, nothing = terms.lines
    assert list(sums.get_xdata()) == [1, 2]
    np.testing.assert_allclose(sums.get_ydata(), [15, 10])
    np.testing.assert_allclose(variances.get_ydata(), [0.03, 0.015])
    np.testing.assert_allclose(only.get_ydata(), [80, 60])
    assert not len(nothing.get_xdata())
    np.testing.assert_allclose(gradients.lines[0].get_ydata(), [1, 2])
    np.testing.assert_allclose(gradients.lines[1].get_ydata(), [0.6, 0.3])
    assert [line.get_linestyle() for line in terms.lines] == ["-", "--"] * 2
    shown = colours(parts)
    assert [line.get_color() for line in terms.lines[::2]] == [shown[start][0] for start in parts]


def test_no_rounds_are_refused() -> None:
    with pytest.raises(SettingsError, match="rounds of a method with a meta objective"):
        objective_figure(pd.DataFrame())
