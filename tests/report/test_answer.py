"""The sentences of a report: the answers, and the summary of the settings."""

import math
from dataclasses import replace

import pytest
from scipy import stats

from coprefl_flwr.report import Report, ResultRow
from coprefl_flwr.report.answer import answers, set_up
from tests.common.comparisons import comparison, one_unit, result_row

SEEDS = [f"seed {seed}" for seed in range(4)]


def test_a_difference_has_its_interval_and_says_whether_it_is_decided() -> None:
    """fedavg minus coprefl: -5, -3, -6, -6 points; mean -5, std √2, half width 3.18 √2 / 2."""
    table = comparison(units=SEEDS, rows=comparison().rows[:2], paper={})
    first, other = answers(table)
    assert first == "coprefl:gamma=0.5 has the highest accuracy: 78.00 %."
    half = stats.t.ppf(0.975, 3) * 2**0.5 / 2
    assert half == pytest.approx(2.25, abs=0.005)
    interval = "95% confidence interval -7.25 to -2.75 (not corrected for several rows)"
    decided = "4 seeds; significant (Holm-corrected p = 0.006)."
    assert other == f"fedavg minus coprefl:gamma=0.5: -5.00 points, {interval}, {decided}"
    few = replace(table, units=["seed 0", "seed 0", "seed 1", "seed 1"])
    assert answers(few)[1].endswith("2 seeds; not significant (Holm-corrected p = 0.126).")


def test_many_rows_are_grouped_by_their_significance() -> None:
    """Seven rows differ by about a point from the reference, one by 9 and one by -9."""
    base, noise = [70.0, 71.0, 72.0, 73.0], [1.0, -0.9, 1.1, -1.3]
    rows = [result_row("coprefl", base, [1.0] * 4)]
    rows += [
        result_row(f"a{n}", [b + n / 100 * e for b, e in zip(base, noise, strict=True)], [1.0] * 4)
        for n in range(1, 8)
    ]
    far = {"high": 9.0, "low": -9.0}
    rows += [
        result_row(name, [b + d + e / 50 for b, e in zip(base, noise, strict=True)], [1.0] * 4)
        for name, d in far.items()
    ]
    lines = answers(comparison(units=SEEDS, rows=rows, paper={}))
    test = "(Holm-corrected p < 0.05)"
    assert lines == [
        "high has the highest accuracy: 80.50 %.",
        f"Significantly above coprefl {test}: high (+9.00 points).",
        f"Significantly below coprefl {test}: low (-9.00 points).",
        "Not significantly different from coprefl: a1, a2, a3, a4, a5, a6, a7.",
    ]
    single = [replace(row, values={m: v[:1] for m, v in row.values.items()}) for row in rows]
    few = answers(comparison(units=SEEDS[:1], rows=single, paper={}))
    assert [line.partition(":")[0] for line in few] == [
        "high has the highest accuracy",
        "Only one seed",
    ]


def test_one_seed_has_no_interval() -> None:
    lines = answers(one_unit())
    assert lines[-1].startswith("Only one seed: run several seeds")
    assert not any("95" in line for line in lines[:-1])


def test_only_complete_rows_have_the_highest_value() -> None:
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


def test_units_are_those_of_the_column() -> None:
    """Before, variances were in % and points, and the column "Worst 10 %" was called "worst 10"."""
    values = {"variance": [80.0, 71.0], "worst-10%": [10.0, 20.0]}
    said = {}
    for metric, (first, second) in values.items():
        rows = [ResultRow("a", "", {metric: [first]}), ResultRow("b", "", {metric: [second]})]
        table = comparison(units=SEEDS[:1], rows=rows, metrics=[metric], paper={}, reference="a")
        said[metric] = answers(table)[:2]
    assert said == {
        "variance": ["b has the lowest variance: 71.00 %².", "b minus a: -9.00 %²."],
        "worst-10%": ["b has the highest worst 10 %: 20.00 %.", "b minus a: +10.00 points."],
    }


def test_seeds_that_are_missing_are_not_only_one_seed() -> None:
    """Before, a recipe of three seeds, of which one is finished, was told to have several."""
    values = [80.0, math.nan, math.nan]
    rows = [result_row(name, values, values, unfinished="1 of 3 seeds") for name in "ab"]
    lines = answers(comparison(units=SEEDS[:3], rows=rows, paper={}, reference="a"))
    need = "confidence intervals and tests need two of the 3 seeds"
    assert lines == ["b minus a: +0.00 points.", f"Results of other seeds are missing: {need}."]


def test_costs_have_no_answer() -> None:
    rows = [replace(row, values={"models": [1.0]}) for row in one_unit().rows]
    assert answers(replace(one_unit(), metrics=["models"], rows=rows)) == []


def test_a_final_value_is_an_accuracy() -> None:
    rows = [replace(row, values={"final": [78.0]}) for row in one_unit().rows]
    first, *_ = answers(replace(one_unit(), metrics=["final"], rows=rows))
    assert first.endswith(" has the highest final accuracy: 78.00 %.")


def test_the_set_up_is_of_the_settings_that_are_there() -> None:
    settings = {"dataset": "glyphs", "clients": 50, "participants": [10, 20], "tasks": 2}
    report = Report("t", "", [], [one_unit()], settings=settings, defaults={"rounds": 20})
    assert set_up(report) == "glyphs, 50 clients (10 or 20 per round), 20 rounds; 2 tasks"
    assert set_up(Report("t", "", [], [one_unit()])) == ""
    seeded = replace(report, settings={}, provenance={"seeds": "0, 1"})
    assert set_up(seeded) == "20 rounds; seeds 0, 1"
    many = replace(seeded, provenance={"seeds": ", ".join(map(str, range(1000, 1020)))})
    assert set_up(many) == "20 rounds; 20 seeds (1000 to 1019)"
    none = replace(report, settings={"tasks": 0, "task-classes": 5, "task-rounds": 50})
    assert set_up(none) == "20 rounds"
    single = replace(report, settings={"tasks": 1, "task-clients": 1, "task-rounds": 1})
    assert set_up(single) == "20 rounds; 1 task, 1 client, 1 round"
