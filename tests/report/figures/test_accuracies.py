"""The histogram of accuracies."""

from pathlib import Path

import numpy as np
import pytest

from coprefl_flwr.report import figures
from coprefl_flwr.report.figures import accuracies
from coprefl_flwr.seeds import generator
from tests.common.figures import STARTS, client_rows, has_colour, pixels


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_histogram_shows_every_start(tmp_path: Path, count: int) -> None:
    path = tmp_path / "figures" / "accuracies.png"
    figures.save(figures.accuracy_figure(client_rows(STARTS[:count])), path)
    image = pixels(path)
    assert image.shape[1] == 1600
    assert 300 <= image.shape[0] <= 1600
    assert 0.3 < (image == 255).all(axis=-1).mean() < 0.97
    shown = figures.colours(STARTS[:count])
    assert all(has_colour(image, colour) for colour, _ in shown.values())
    assert [file.name for file in path.parent.iterdir()] == ["accuracies.png"]


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        ([90, 99], [90, 91, 92, 93, 94, 95, 96, 97, 98, 99]),
        ([100], [96, 97, 98, 99, 100]),
        ([0], [0, 1, 2, 3, 4]),
        ([0, 100], list(range(0, 101, 5))),
    ],
)
def test_bin_edges(values: list[float], edges: list[float]) -> None:
    assert accuracies._edges(np.array(values, dtype=np.float64)) == edges


def test_every_client_is_in_a_bin() -> None:
    draws = generator("bins")
    for _ in range(200):
        low, high = sorted(draws.uniform(0, 100, size=2))
        values = draws.uniform(low, high, size=20)
        edges = accuracies._edges(values)
        assert np.histogram(values, edges)[0].sum() == 20
        assert edges[-1] <= 100
        assert len(edges) <= 22
