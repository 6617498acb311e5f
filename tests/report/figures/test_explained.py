"""Accuracy against diagnostics: a panel a measure, a colour a start."""

import pandas as pd
import pytest

from coprefl_flwr.report import figures
from coprefl_flwr.report.figures.style import NothingToDrawError, colours


def points(*rows):
    return pd.DataFrame(rows, columns=["start", "at", "accuracy"])


def test_a_panel_a_measure_and_a_point_a_task(tmp_path):
    rows = points(("random", 1.0, 40.0), ("random", 1.5, 42.0), ("coprefl", 0.5, 60.0))
    alone = points(("random", 1.0, 40.0), ("coprefl", float("nan"), 60.0))
    figure = figures.explained_figure({"Barrier": rows, "Probe %": rows, "Nothing": alone})
    shown = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title(loc="left") for panel in shown] == ["Barrier", "Probe %"]
    drawn = {line.get_color(): list(line.get_xdata()) for line in shown[0].lines}
    look = colours(["random", "coprefl"])
    assert drawn == {look["random"][0]: [1.0, 1.5], look["coprefl"][0]: [0.5]}
    figures.save(figure, tmp_path / "explained.png")
    assert (tmp_path / "explained.png").stat().st_size > 10_000


def test_nothing_is_drawn_without_two_points():
    with pytest.raises(NothingToDrawError):
        figures.explained_figure({"Barrier": points(("random", 1.0, 40.0))})


def test_one_value_everywhere_is_one_tick():
    rows = points(("random", 0.0, 40.0), ("coprefl", 0.0, 60.0))
    (panel,) = [
        one for one in figures.explained_figure({"Barrier": rows}).axes if one.get_visible()
    ]
    assert list(panel.get_xticks()) == [0.0]
