"""Figures of accuracy against gamma, first-phase length or diagnostics; the meta objective."""

import math

import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import save
from coprefl_flwr.report.figures.relations import (
    PAPER,
    explained_figure,
    gamma_figure,
    objective_figure,
    p1_rounds_figure,
    weighted,
)
from coprefl_flwr.report.figures.style import colours


def points(of: list[tuple[float, float, float]], line: str) -> pd.DataFrame:
    return pd.DataFrame(of, columns=["at", "mean", "std"]).assign(line=line)


def test_gamma_figure_shows_measured_and_printed_values() -> None:
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


def lengths(rounds: list[int]) -> pd.DataFrame:
    """Return points on the cubic 50 + (r - 5)³ / 100, with a standard deviation of 2."""
    points = [(number, 50 + (number - 5) ** 3 / 100, 2.0) for number in rounds]
    return pd.DataFrame(points, columns=["at", "mean", "std"])


def test_cubic_fit_goes_through_points_on_a_cubic() -> None:
    (panel,) = p1_rounds_figure(lengths([9, 1, 5, 3, 7, 11]), "Accuracy").axes
    measured, *_, fit = panel.lines
    assert list(measured.get_xdata()) == [1, 3, 5, 7, 9, 11]
    rounds = np.asarray(fit.get_xdata())
    assert (rounds.min(), rounds.max()) == (1, 11)
    np.testing.assert_allclose(fit.get_ydata(), 50 + (rounds - 5) ** 3 / 100, atol=1e-9)
    bars = panel.collections[0].get_segments()
    assert [round(float(np.ptp(bar[:, 1])), 9) for bar in bars] == [4] * 6


def test_four_points_have_no_cubic_fit() -> None:
    (panel,) = p1_rounds_figure(lengths([1, 2, 3, 4]), "Accuracy").axes
    assert all(len(np.asarray(line.get_xdata())) == 4 for line in panel.lines)


def measured(*rows):
    return pd.DataFrame(rows, columns=["start", "at", "accuracy"])


def test_each_measure_is_a_panel_and_each_task_a_point(tmp_path):
    rows = measured(("random", 1.0, 40.0), ("random", 1.5, 42.0), ("coprefl", 0.5, 60.0))
    alone = measured(("random", 1.0, 40.0), ("coprefl", float("nan"), 60.0))
    figure = explained_figure({"Barrier": rows, "Probe %": rows, "Nothing": alone})
    shown = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title(loc="left") for panel in shown] == ["Barrier", "Probe %"]
    drawn = {line.get_color(): list(line.get_xdata()) for line in shown[0].lines}
    look = colours(["random", "coprefl"])
    assert drawn == {look["random"][0]: [1.0, 1.5], look["coprefl"][0]: [0.5]}
    save(figure, tmp_path / "explained.png")
    assert (tmp_path / "explained.png").stat().st_size > 10_000


def rounds(level: str, spread: str, values: list[tuple[float, ...]]) -> pd.DataFrame:
    """Return rows of rounds with the metrics that a round reports for the meta objective."""
    names = [f"meta-{name}{of}" for of in ("", "-gradient") for name in (level, spread)]
    data = pd.DataFrame(values, columns=["round", *names])
    return data.assign(phase="pretraining")


PRINTED = rounds("sum", "variance", [(2, 60.0, 0.02, 8.0, 0.4), (1, 80.0, 0.04, 4.0, 0.8)])


def test_terms_are_weighted_by_gamma_and_one_minus_gamma() -> None:
    terms = weighted(PRINTED, 0.25)
    assert list(terms["round"]) == [2, 1]
    np.testing.assert_allclose(terms["level"], [15, 20])
    np.testing.assert_allclose(terms["spread"], [0.015, 0.03])
    np.testing.assert_allclose(terms["level-gradient"], [2, 1])
    np.testing.assert_allclose(terms["spread-gradient"], [0.3, 0.6])
    assert set(terms["terms"]) == {"sum, variance"}
    ours = weighted(rounds("mean", "deviation", [(1, 4.0, 0.2, 2.0, 1.0)]), 0.5)
    assert ours.to_dict("records") == [
        {"round": 1, "level": 2.0, "level-gradient": 1.0, "spread": 0.1, "spread-gradient": 0.5,
         "terms": "mean, deviation"}
    ]  # fmt: skip


def test_rounds_without_a_meta_objective_are_omitted() -> None:
    """Rounds of an earlier phase and of a method without a meta objective are left out."""
    before = pd.DataFrame({"round": [1], "loss": [3.0]})
    together = pd.concat([before, PRINTED], ignore_index=True)
    assert list(weighted(together, 0.5)["round"]) == [2, 1]
    assert weighted(before, math.nan).empty
    assert weighted(pd.DataFrame(), 0.5).empty


def test_objective_figure_shows_both_terms_averaged_over_seeds() -> None:
    """Two seeds of CoPreFL are averaged; gamma 1 has no second term."""
    other = PRINTED.assign(**{"meta-sum": [20.0, 40.0]})
    parts = {"coprefl": weighted(pd.concat([PRINTED, other]), 0.25), "only": weighted(PRINTED, 1.0)}
    weighted_rounds = pd.concat([part.assign(start=start) for start, part in parts.items()])
    figure = objective_figure(weighted_rounds)
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


def test_figures_with_too_few_values_are_refused() -> None:
    with pytest.raises(SettingsError, match="at least two values of gamma"):
        gamma_figure({"Accuracy %": points([(0.5, 1.0, 1.0)], "a")})
    with pytest.raises(SettingsError, match="different numbers of rounds of phase P1"):
        p1_rounds_figure(lengths([3, 3]), "Accuracy")
    with pytest.raises(SettingsError, match="rounds of a method with a meta objective"):
        objective_figure(pd.DataFrame())
