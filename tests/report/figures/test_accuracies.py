"""The histogram of accuracies."""

from pathlib import Path

import pandas as pd
import pytest

from coprefl_flwr.report import figures
from coprefl_flwr.seeds import generator
from tests.common.comparisons import row
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


def bins(values: list[float]) -> tuple[list[float], float]:
    """Return the edges of the histogram's bins, and how many percent of the clients they hold."""
    clients = [row("a", 0, c, round(v * 10**4), n=10**6) for c, v in enumerate(values)]
    bars = figures.accuracy_figure(pd.DataFrame(clients)).axes[0].patches
    ends = [bars[0].get_x(), *(bar.get_x() + bar.get_width() for bar in bars)]
    return ends, sum(bar.get_height() for bar in bars)


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
    assert bins(values)[0] == pytest.approx(edges)


def test_every_client_is_in_a_bin() -> None:
    draws = generator("bins")
    for _ in range(20):
        low, high = sorted(draws.uniform(0, 100, size=2))
        edges, held = bins(draws.uniform(low, high, size=20).tolist())
        assert held == pytest.approx(100)
        assert edges[-1] <= 100 + 1e-9
        assert len(edges) <= 22
