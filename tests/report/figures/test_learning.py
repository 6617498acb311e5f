"""The histogram of accuracies, learning curves, and runs that switch to another method."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.report import ResultRow, figures
from coprefl_flwr.report.columns import column
from coprefl_flwr.report.figures import learning
from coprefl_flwr.report.figures.learning import smoothing_window, switch
from coprefl_flwr.report.figures.style import colours
from coprefl_flwr.report.frames import frame
from tests.common.comparisons import comparison, loss_row, result_row, row, without_classes
from tests.common.figures import curve, curve_rows


def bins(values: list[float]) -> tuple[list[float], float]:
    """Return the edges of the histogram's bars, and the percentage of clients in all bars."""
    clients = [row("a", 0, c, round(v * 10**4), n=10**6) for c, v in enumerate(values)]
    bars = figures.accuracy_figure(pd.DataFrame(clients)).axes[0].patches
    ends = [bars[0].get_x(), *(bar.get_x() + bar.get_width() for bar in bars)]
    return ends, sum(bar.get_height() for bar in bars)


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        ([90, 99], list(range(89, 100))),
        ([100], list(range(90, 101))),
        ([0], list(range(11))),
        ([0, 100], list(range(0, 101, 5))),
    ],
)
def test_bins_have_round_edges_and_include_every_client(
    values: list[float], edges: list[float]
) -> None:
    found, percentage = bins(values)
    assert found == pytest.approx(edges)
    assert percentage == pytest.approx(100)


def test_curves_show_means_with_bands_of_standard_deviations() -> None:
    """Round 1 has 60 and 64: mean 62, sample std √8; a loss that is not finite is not drawn."""
    rows = [
        curve("downstream", "a", 0, 2, 70),
        curve("downstream", "a", 0, 1, 60),
        curve("downstream", "a", 1, 1, 64),
        curve("pretraining", "a", None, 1, float("nan")),
        curve("pretraining", "a", None, 2, 3.0),
    ]
    before, tasks = figures.learning_figure(frame(rows)).axes
    assert tasks.lines[0].get_xydata().tolist() == [[1, 62], [2, 70]]
    (band,) = tasks.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((62 - 8**0.5, 62 + 8**0.5))
    assert before.lines[0].get_xydata().tolist() == [[2, 3.0]]


def test_title_of_curves_counts_seeds_or_runs_of_crossed_seeds() -> None:
    for seeds, text in (([0, 1], "over 2 seeds"), (["draw 0, seed 0", "draw 0, seed 1"], "2 runs")):
        rows = [curve("pretraining", "a", None, 1, 3.0) | {"seed": seed} for seed in seeds]
        (panel,) = figures.learning_figure(frame(rows)).axes
        assert panel.texts[0].get_text().endswith(text)


def test_losses_of_a_chain_have_their_panel() -> None:
    rows = curve_rows(["fedavg", "cyclic"])
    for record in rows:
        record["chained"] = record["phase"] == "pretraining" and record["start"] == "cyclic"
    averaged, chain, tasks = figures.learning_figure(frame(rows)).axes
    assert [panel.get_title(loc="left") for panel in (averaged, chain, tasks)] == [
        "Pre-training", "Pre-training in a chain", "Downstream tasks",
    ]  # fmt: skip
    assert [len(panel.lines) for panel in (averaged, chain, tasks)] == [1, 1, 2]


def test_diverged_start_makes_the_loss_axis_logarithmic() -> None:
    rows = curve_rows(["fedavg", "burst"])
    for record in rows:
        record["loss"] *= 1e30 if record["start"] == "burst" else 1
    before, _ = figures.learning_figure(frame(rows)).axes
    assert before.get_yscale() == "log"
    alone, _ = figures.learning_figure(frame(curve_rows(["fedavg"]))).axes
    assert alone.get_yscale() == "linear"


@pytest.mark.parametrize(
    ("rounds", "window"),
    [
        (range(1, 1001), 41),
        (range(1, 83), 41),
        (range(1, 82), 0),  # 41 rounds are more than half of them
        (range(2, 1001, 2), 19),  # 41 rounds contain 20 tested rounds
        (range(10, 1001, 10), 5),
        (range(1, 5), 0),
        ([], 0),
    ],
)
def test_smoothing_window_is_41_rounds_and_at_most_half_of_them(rounds: range, window: int) -> None:
    assert smoothing_window(rounds) == window


def test_switch_figure_shows_raw_and_smoothed_curves_and_the_switch() -> None:
    """A cubic goes through the filter unchanged; noise does not."""
    numbers = np.arange(1, 101)
    cubic, noisy = 50 + 1e-5 * (numbers - 50.0) ** 3, 50.0 + (-1.0) ** numbers
    rows = [
        result_row(
            name, [1.0], [1.0], switch=switch,
            rounds=pd.DataFrame({"round": numbers, "seed": 0, "server-accuracy": values}),
        )
        for name, switch, values in (("fedavg", 0, cubic), ("cyclic+fedavg", 30, noisy))
    ]  # fmt: skip
    figure, caption = switch(comparison(rows=rows))
    assert "order 3 over 41 rounds" in caption
    (panel,) = figure.axes
    raw, raw_noisy, smooth, smooth_noisy, dotted = panel.lines
    np.testing.assert_allclose(raw.get_ydata(), cubic)
    np.testing.assert_allclose(smooth.get_ydata(), cubic, atol=1e-9)
    np.testing.assert_allclose(raw_noisy.get_ydata(), noisy)
    assert np.ptp(np.asarray(smooth_noisy.get_ydata())[20:-20]) < 0.2
    assert list(dotted.get_xdata()) == [30, 30]
    assert dotted.get_linestyle() == ":"
    shown = colours(["fedavg", "cyclic+fedavg"])
    assert smooth.get_color() == shown["fedavg"][0]
    assert dotted.get_color() == shown["cyclic+fedavg"][0]
    assert raw.get_alpha() < 0.5


def test_histogram_of_losses_has_the_highest_mean_as_its_dotted_line() -> None:
    rows = without_classes("a", 0, [0.02, 0.04]) + without_classes("b", 0, [0.05, 0.07])
    figure = figures.accuracy_figure(pd.DataFrame(rows))
    first, second = figure.axes
    means = [[float(line.get_xdata()[0]) for line in panel.lines] for panel in (first, second)]
    assert means == [pytest.approx([0.03, 0.06]), pytest.approx([0.06, 0.06])]
    assert sum(bar.get_height() for bar in first.patches) == pytest.approx(100)
    assert [text.get_text() for text in first.texts] == ["mean 0.03, variance 0.0001"]
    assert figure._supxlabel.get_text() == "Loss of a client"


def test_figure_of_a_metric_of_the_user_says_so() -> None:
    rows = pd.DataFrame(without_classes("a", 0, [0.1, 0.2], mae=[1.0, 3.0]))
    headings = {"metric:mae": ("MAE", "lower")}
    made = comparison(
        rows=[ResultRow("a", "", pd.DataFrame(), rows)], headings=headings,
        measure=column("metric:mae", headings),
    )  # fmt: skip
    figure, caption = learning.accuracies(made)
    assert caption.startswith("MAE of the tasks' clients, pooled over tasks. Line: mean; dotted")
    assert "highest mean" in caption
    assert figure._supxlabel.get_text() == "MAE of a client"
    lost = replace(made.rows[0], client_rows=rows.assign(**{"metric:mae": math.nan}))
    assert learning.accuracies(replace(made, rows=[lost])) is None


def test_curves_without_classes_are_of_the_test_loss_and_the_measure() -> None:
    rows = [
        {"phase": "pretraining", "start": "a", "round": 1, "loss": 9.0, "server-loss": 2.0},
        {"phase": "downstream", "start": "a", "task": 0, "round": 1, "evaluate-client-loss": 0.5},
        {"phase": "downstream", "start": "a", "task": 1, "round": 1, "evaluate-client-loss": 0.7},
    ]
    before, tasks = figures.learning_figure(frame(rows), column("loss")).axes
    assert (before.get_ylabel(), tasks.get_ylabel()) == ("Test loss", "Loss")
    assert before.lines[0].get_xydata().tolist() == [[1, 2.0]]
    assert tasks.lines[0].get_xydata().tolist() == [[1, pytest.approx(0.6)]]


def test_switch_figure_of_test_losses() -> None:
    tested = pd.DataFrame({"round": [1, 2], "seed": 0, "server-loss": [0.4, 0.2]})
    figure, caption = switch(comparison(rows=[loss_row("a", [0.1], rounds=tested, switch=1)]))
    assert figure.axes[0].get_ylabel() == "Test loss"
    assert caption.startswith("Test loss by round")
