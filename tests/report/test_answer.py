"""The sentences of a report: the answers, and the summary of the settings."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from scipy import stats

from coprefl_flwr.report import Report, ResultRow, text_tables
from coprefl_flwr.report.answer import answers, set_up
from coprefl_flwr.report.variance import more_draws
from tests.common.comparisons import comparison, losses, one_unit, result_row

SEEDS = [f"seed {seed}" for seed in range(4)]


def test_difference_has_an_interval_and_its_significance() -> None:
    """fedavg minus coprefl: -5, -3, -6, -6 points; mean -5, std √2, half width 3.18 √2 / 2."""
    table = comparison(units=SEEDS, rows=comparison().rows[:2], paper={})
    first, _, other = answers(table)
    assert first == "coprefl:gamma=0.5 has the highest accuracy: 78.00 %."
    half = stats.t.ppf(0.975, 3) * 2**0.5 / 2
    assert half == pytest.approx(2.25, abs=0.005)
    interval = "95% confidence interval -7.25 to -2.75 (not corrected for several rows)"
    of_four = "4 seeds; significant (Holm-corrected p = 0.006)."
    assert other == f"fedavg minus coprefl:gamma=0.5: -5.00 points, {interval}, {of_four}"
    few = replace(table, units=["seed 0", "seed 0", "seed 1", "seed 1"])
    assert "95% confidence interval -17.71 to +7.71" in answers(few)[2]  # t(1) is 12.706.
    assert answers(few)[2].endswith("2 seeds; not significant (Holm-corrected p = 0.126).")


def test_draws_that_would_find_the_margin() -> None:
    """The differences of the two rows have the deviation √2 over 4 seeds."""
    table = comparison(units=SEEDS, rows=comparison().rows[:2], paper={})
    between, std = "between coprefl:gamma=0.5 and fedavg with a power of", 2**0.5
    count = more_draws(std, 4, 1.0)
    of_test = "80% (paired t-test at 5%; roughly, from 4 seeds)."
    one = f"{count} more seeds would find a difference of 1 point {between} {of_test}"
    assert answers(table)[1] == one
    enough = f"The 4 seeds find a difference of 8 points {between} at least 80%."
    assert answers(replace(table, margin=8))[1] == enough
    many = "More than 996 more seeds would find a difference of 0.01 points"
    assert answers(replace(table, margin=0.01))[1].startswith(many)
    assert more_draws(std, 4, 4.0) == 1
    last = "1 more seed would find a difference of 4 points"
    assert answers(replace(table, margin=4))[1].startswith(last)
    # A loss has no margin that fits all users.
    assert not any("power" in line for line in answers(losses()))
    assert "find a difference of 0.01 between" in answers(losses(margin=0.01))[1]


def test_highest_value_is_of_a_complete_row() -> None:
    """Before, a row with one of three seeds, or one that diverged, could be named."""
    rows = [
        result_row("fedavg", [80.0, 81.0, 60.0], [1.0] * 3),
        result_row("qffl", [82.0, 83.0, 62.0], [1.0] * 3),
        result_row("coprefl", [95.0, math.nan, math.nan], [1.0] * 3, unfinished="1 of 3 seeds"),
        result_row("moon", [96.0, 97.0, 98.0], [1.0] * 3, problems=["seed 0: diverged"]),
    ]
    table = comparison(units=SEEDS[:3], rows=rows, paper={}, reference="fedavg")
    some = "Of the rows with all seeds and without †, "
    assert answers(table)[0] == f"{some}qffl has the highest accuracy: 75.67 %."
    assert answers(replace(table, rows=rows[1:], reference="qffl"))[0].startswith("coprefl minus")


def test_answer_uses_the_unit_of_the_metric() -> None:
    """Before, variances were in % and points, and the column "Worst 10 %" was called "worst 10"."""
    values = {"variance": [80.0, 71.0], "worst-10%": [10.0, 20.0]}
    by_metric = {}
    for metric, (first, second) in values.items():
        rows = [
            ResultRow("a", "", pd.DataFrame({metric: [first]})),
            ResultRow("b", "", pd.DataFrame({metric: [second]})),
        ]
        table = comparison(units=SEEDS[:1], rows=rows, metrics=[metric], paper={}, reference="a")
        by_metric[metric] = answers(table)[:2]
    assert by_metric == {
        "variance": ["b has the lowest variance: 71.00 %².", "b minus a: -9.00 %²."],
        "worst-10%": ["b has the highest worst 10 %: 20.00 %.", "b minus a: +10.00 points."],
    }


def test_set_up_summarises_the_given_settings() -> None:
    settings = {"dataset": "glyphs", "clients": 50, "participants": [10, 20], "tasks": 2}
    report = Report("t", "", [], [one_unit()], settings=settings, defaults={"rounds": 20})
    line = "dataset = glyphs; clients = 50; participants = 10, 20; rounds = 20; tasks = 2"
    assert set_up(report) == line
    seeded = replace(report, settings={}, provenance={"seeds": "0, 1"})
    assert set_up(seeded) == "rounds = 20; seeds = 0, 1"


def test_missing_seeds_are_reported_as_missing() -> None:
    """Before, a recipe of three seeds, of which one is finished, was told to have several."""
    values = [80.0, math.nan, math.nan]
    rows = [result_row(name, values, values, unfinished="1 of 3 seeds") for name in "ab"]
    lines = answers(comparison(units=SEEDS[:3], rows=rows, paper={}, reference="a"))
    need = "confidence intervals and tests need two of the 3 seeds"
    assert lines == ["b minus a: +0.00 points.", f"Results of other seeds are missing: {need}."]


def test_answer_names_the_lowest_loss() -> None:
    """coprefl minus fedavg: -30, -29, -33, -30 thousandths; std √3, half width 3.18 √3 / 2."""
    first, other = answers(losses())
    assert first == "coprefl has the lowest loss: 0.0318."
    interval = "-0.0305, 95% confidence interval -0.0333 to -0.0277"
    assert other.startswith(f"coprefl minus fedavg: {interval} (not corrected")
    assert other.endswith("significant (Holm-corrected p < 0.001).")


def test_sentences_are_about_draws_if_data_and_training_have_separate_seeds() -> None:
    """The differences are 4, 6 in draw 0 and 5, 7 in draw 1: the means of draws are 5 and 6."""
    units = [f"draw {draw}, seed {seed}" for draw in (0, 1) for seed in (0, 1)]
    rows = [
        result_row("a", [50.0] * 4, [1.0] * 4),
        result_row("b", [54.0, 56.0, 55.0, 57.0], [1.0] * 4),
    ]
    table = comparison(units=units, rows=rows, reference="a", paper={}, failed=[])
    lines = answers(table)
    assert lines[2].startswith("b minus a: +5.50 points, 95% confidence interval")
    assert "(not corrected for several rows), 2 draws;" in lines[2]
    text = text_tables(table)
    assert "over 2 draws with 2 training seeds each" in " ".join(text.split())
    assert "over the draws that both rows have, each by its mean over its" in " ".join(text.split())
    few = replace(table, units=[f"draw 0, seed {seed}" for seed in range(4)])
    assert answers(few)[-1].startswith("Only one draw: run several draws to get")
    assert "Only one draw: no significance test." in " ".join(text_tables(few).split())
