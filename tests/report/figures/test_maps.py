"""Landscapes on one colour scale."""

import math

import numpy as np
import numpy.typing as npt
import pandas as pd

from coprefl_flwr.report.figures import maps
from tests.common.comparisons import comparison, result_row


def landscape(losses: npt.ArrayLike) -> pd.DataFrame:
    steps = [-1.0, 0.0, 1.0]
    return pd.DataFrame(np.asarray(losses), steps, steps)


def drawn(landscapes: dict[str, pd.DataFrame]):
    rows = [result_row(name, [1.0], [1.0], landscape=of) for name, of in landscapes.items()]
    figure, _ = maps.landscape(comparison(rows=rows))
    return figure


def test_landscapes_share_one_colour_scale() -> None:
    flat = landscape(np.full((3, 3), 2.0))
    steep = landscape([[9.0, 5.0, math.inf], [4.0, 1.0, 4.0], [9.0, 5.0, 9.0]])
    *panels, bar = drawn({"flat": flat, "steep": steep}).axes
    contours = [panel.collections[0] for panel in panels]
    assert [contour.get_clim() for contour in contours] == [(1, 9), (1, 9)]
    assert [panel.get_title(loc="left") for panel in panels] == ["flat", "steep"]
    assert panels[1].texts[0].get_text() == "loss 1 at the cross"
    assert bar.get_ylabel() == "Loss"


def test_first_direction_is_horizontal() -> None:
    """The loss grows along the first direction only: the lowest level is on the left."""
    rising = landscape(np.repeat(np.array([[1.0], [2.0], [3.0]]), 3, axis=1))
    panel, _ = drawn({"a": rising}).axes
    lowest = panel.collections[0].get_paths()[0].get_extents()
    assert lowest.x0 == -1
    assert lowest.x1 < -0.8
    assert (lowest.y0, lowest.y1) == (-1, 1)


def test_landscape_without_finite_losses_is_not_drawn() -> None:
    row = result_row("a", [1.0], [1.0], landscape=landscape(np.full((3, 3), math.nan)))
    assert maps.landscape(comparison(rows=[row])) is None
