import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from coprefl_flwr.report.figures import save
from coprefl_flwr.report.figures.budgets import budget_figure, points

VALUES = {"accuracy": [50.0, 52.0, 54.0], "variance": [90.0, 100.0, 80.0]}


def table(row: str, protocol: str, values: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """The table's rows of one row: {metric: a value a seed}."""
    about = {"recipe": "r", "protocol": protocol, "where": "", "row": row}
    found = [
        {**about, "metric": metric, "seed": seed, "value": value, "tasks": 2}
        for metric, of_seeds in values.items()
        for seed, value in enumerate(of_seeds)
    ]
    return pd.DataFrame(found)


def test_points_by_hand() -> None:
    """Mean and scipy's interval; what lacks the metric, or never reached it, is left out."""
    values = pd.concat([
        table("fedavg", "ratio", {**VALUES, "step-size": [25.0] * 3}),
        table("coprefl", "ratio", VALUES),
        table("late", "ratio", {**VALUES, "step-size": [math.inf] * 3}),
        table("few", "ratio", {"accuracy": [39, 41.0], "variance": [9.0] * 2, "step-size": [0.0]}),
    ])  # fmt: skip
    fedavg, few = points(values, "step-size").to_dict("records")
    assert (fedavg["row"], fedavg["protocol"], fedavg["at"]) == ("fedavg", "ratio", 25)
    for metric, of_seeds in VALUES.items():
        low, high = stats.ttest_1samp(of_seeds, 0).confidence_interval(0.95)
        mean, half = fedavg[metric], fedavg[f"{metric} half"]
        assert (mean - half, mean + half) == pytest.approx((low, high))
    assert (few["at"], few["accuracy"]) == (0, 40)
    assert math.isnan(few["accuracy half"])
    assert points(values, "start-loss").empty


@pytest.mark.parametrize("most", [1.0, 1000.0])
def test_every_point_is_within_the_axes(tmp_path: Path, most: float) -> None:
    """Also at 0, on an axis of magnitudes, and with more rows than there are colours."""
    sizes = [0.0, *(0.3 * most ** (at / 9) for at in range(10))]
    values = pd.concat([
        table(f"row {at}", protocol, {**VALUES, "step-size": [size] * 3})
        for at, size in enumerate(sizes)
        for protocol in ("printed", "ratio")
    ])  # fmt: skip
    figure = budget_figure(points(values, "step-size"), "step-size")
    accuracy, variance = figure.axes
    for panel, (low, high) in ((accuracy, (47.1, 56.9)), (variance, (65.2, 114.8))):
        assert panel.get_ylim()[0] <= low
        assert panel.get_ylim()[1] >= high
        assert panel.get_xlim()[0] < 0
        assert panel.get_xlim()[1] > max(sizes)
        assert (panel.get_xscale() == "symlog") == (most > 1)
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[-2:] == ["protocol printed", "protocol ratio"]
    assert texts[:2] == ["row 0", "row 1"]
    save(figure, tmp_path / "budget.png")
    assert (tmp_path / "budget.png").stat().st_size > 10_000
