import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from coprefl_flwr.report.figures import save
from tests.common.claims import budgets

budget_figure, points = budgets.budget_figure, budgets.points

VALUES = {"accuracy": [50.0, 52.0, 54.0], "variance": [90.0, 100.0, 80.0]}

OTHER = {"accuracy": [40.0, 43.0, 39.0], "variance": [50.0, 90.0, 70.0]}


def table(row: str, protocol: str, values: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """The table's rows of one row: {metric: a value a seed}."""
    about = {"recipe": "r", "protocol": protocol, "row": row}
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
        table("late", "ratio", dict.fromkeys([*VALUES, "step-size"], [math.inf] * 3)),
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


def test_what_all_rows_of_a_seed_share_is_no_spread() -> None:
    """Of two rows each has the interval of their difference, over the root of 2."""
    values = pd.concat([
        table("fedavg", "ratio", {**VALUES, "step-size": [25.0] * 3}),
        table("coprefl", "ratio", {**OTHER, "step-size": [75.0] * 3}),
    ])  # fmt: skip
    for one in points(values, "step-size").to_dict("records"):
        for metric, of_seeds in VALUES.items():
            apart = [(a - b) / 2**0.5 for a, b in zip(of_seeds, OTHER[metric], strict=True)]
            low, high = stats.ttest_1samp(apart, 0).confidence_interval(0.95)
            assert one[f"{metric} half"] == pytest.approx((high - low) / 2)


@pytest.mark.parametrize("most", [1.0, 1000.0])
def test_every_point_is_within_the_axes(tmp_path: Path, most: float) -> None:
    """Also at 0, on an axis of magnitudes, and with more rows than there are colours."""
    sizes = [0.0, *(0.3 * most ** (at / 9) for at in range(10))]
    values = pd.concat([
        table(f"row {at}", protocol, {**(OTHER if at % 2 else VALUES), "step-size": [size] * 3})
        for at, size in enumerate(sizes)
        for protocol in ("printed", "ratio")
    ])  # fmt: skip
    found = points(values, "step-size")
    figure = budget_figure(found, "step-size")
    for panel, metric in zip(figure.axes, VALUES, strict=True):
        mean, half = found[metric], found[f"{metric} half"]
        assert half.min() > 1
        assert panel.get_ylim()[0] <= (mean - half).min()
        assert panel.get_ylim()[1] >= (mean + half).max()
        assert panel.get_xlim()[0] < 0
        assert panel.get_xlim()[1] > max(sizes)
        assert (panel.get_xscale() == "symlog") == (most > 1)
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[-2:] == ["protocol printed", "protocol ratio"]
    assert texts[:2] == ["row 0", "row 1"]
    save(figure, tmp_path / "budget.png")
    assert (tmp_path / "budget.png").stat().st_size > 10_000
