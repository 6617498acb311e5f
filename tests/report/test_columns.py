"""The columns of tables: titles, better directions, and the columns of a measure."""

import math

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.columns import ColumnSpec, column, of_measure

HEADINGS = {"metric:mae": ("MAE", "lower"), "metric:recall": ("Recall %", "higher")}


@pytest.mark.parametrize(
    ("metric", "title", "better", "unit"),
    [
        ("loss", "Loss", "lower", ""),
        ("loss:worst-10%", "Worst 10 %: Loss", "lower", ""),
        ("loss:variance", "Variance: Loss", "lower", ""),
        ("metric:mae", "MAE", "lower", ""),
        ("metric:mae:best-10%", "Best 10 %: MAE", "lower", ""),
        ("metric:recall:worst-20%", "Worst 20 %: Recall %", "higher", " %"),
        ("metric:recall:variance", "Variance: Recall %²", "lower", " %²"),
        ("metric:recall:std-clients", "Std over clients: Recall %", "lower", " %"),
        ("metric:variance", "variance", "higher", ""),
        ("worst-10%", "Worst 10 %", "higher", " %"),
    ],
)
def test_column_of_a_statistic_has_the_direction_of_its_metric(metric, title, better, unit):
    spec = column(metric, HEADINGS)
    assert (spec.title, spec.better, spec.unit) == (title, better, unit)


def test_unknown_statistic_names_the_nearest():
    for metric in ("loss:worst-15%", "metric:mae:worst-15%"):
        with pytest.raises(SettingsError, match=rf"{metric}: unknown statistic .*worst-10%"):
            column(metric)


def test_columns_of_the_accuracy_are_those_of_the_measure_where_there_are_no_classes():
    names = ["accuracy", "variance", "variance-beyond", "worst-10%", "loss", "final", "models"]
    assert of_measure(names, "accuracy") == names
    assert of_measure(names, "loss") == [
        "loss", "loss:variance", "loss:worst-10%", "final-loss", "models"
    ]  # fmt: skip
    assert of_measure(names, "metric:mae")[:3] == [
        "metric:mae", "metric:mae:variance", "metric:mae:worst-10%"
    ]  # fmt: skip


def test_small_numbers_have_three_digits():
    """0.0316 needs four decimals; numbers above 1 have two, as in the papers."""
    loss = column("loss")
    assert loss.places([0.0316, 0.002, math.nan, math.inf]) == 4
    assert [loss.places(of) for of in ([3.2, 0.1], [250.0], [0.0], [])] == [2, 2, 2, 2]
    assert ColumnSpec("Accuracy %").places([0.001]) == 2


def test_titles_in_sentences_and_on_axes():
    names = {"MAE": "MAE", "Mean error": "mean error", "Accuracy %": "accuracy", "F1": "F1"}
    assert {title: ColumnSpec(title).name for title in names} == names
    assert [ColumnSpec(title).axis for title in ("Accuracy %", "MAE")] == ["Accuracy (%)", "MAE"]
