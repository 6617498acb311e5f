"""The sentences of a choice, from made-up results of two or three starts."""

from dataclasses import replace

import pandas as pd
import pytest

from coprefl_flwr.report import Report, ResultRow
from coprefl_flwr.report.columns import column
from coprefl_flwr.report.variance import more_draws
from coprefl_flwr.studies.choice import Choice, Dropped
from coprefl_flwr.studies.chosen import chosen_of
from tests.common.checks import refusal
from tests.common.comparisons import comparison

SEEDS = [f"seed {seed}" for seed in range(4)]
VALUES = {"a": [75.0, 75, 80, 82], "b": [70.0, 72, 74, 76], "c": [60.0, 60, 60, 60]}


def report(names, costs, measure="accuracy", **changes):
    rows = []
    for name in names:
        values = pd.DataFrame({measure: VALUES[name], "gradients": 1.0, "megabytes": costs[name]})
        worst = "worst-10%" if measure == "accuracy" else f"{measure}:worst-10%"
        rows.append(ResultRow(name, "", values.assign(**{worst: values[measure] - 10})))
    metrics = list(rows[0].values)
    parts = {"units": SEEDS, "rows": rows, "metrics": metrics, "paper": {}, "reference": names[-1]}
    return Report("", "", [], [comparison(measure=column(measure), **parts | changes)])


def chosen(
    found, costs, names=("a", "b"), dropped=(), problems=None, finalists=("a", "b"), **changes
):
    made = Choice((), finalists, tuple(names), range(4), found=found, dropped=dropped)
    both = report(names, costs, **changes), report(tuple(VALUES), costs | {"c": 0})
    return chosen_of(made, *both, problems or {}, {"a": 1200, "b": 30}, {})


def test_difference_that_was_found() -> None:
    """a minus b: 5, 3, 6, 6; mean 5, deviation √2, half width 3.18 √2 / 2."""
    answer = chosen(True, {"a": 20.0, "b": 10.0}).answer
    found = "Use `a`: +5.0 [2.7, 7.3] points against `b` over 4 draws that did not choose it; "
    assert answer.startswith(
        found + "against `b` the worst tenth of the clients gains 5.0 points; "
    )
    assert answer.endswith("it sends 20.0 megabytes, `b` 10.0.")


def test_reference_is_compared_too() -> None:
    costs = dict.fromkeys(VALUES, 10.0)
    answer = chosen(True, costs, names=("a", "b", "c")).answer
    assert "; +18.0 [12.3, 23.7] points against `c`; against `c` the worst tenth" in answer
    assert answer.endswith("it sends as many megabytes.")


def test_cheaper_start_is_taken_if_no_difference_was_found() -> None:
    result = chosen(False, {"a": 20.0, "b": 10.0})
    assert result.name == "b"
    both = "`b` and `a` (-5.0 [-7.3, -2.7] points over 4 draws that did not choose them)"
    first = f"No difference was found between {both}: take `b`, the cheaper of them; "
    assert result.answer.startswith(first)
    more = more_draws(2**0.5, 4, 1.0)
    assert f". {more:.0f} more seeds would find a difference of 1 point between b" in result.answer
    alike = chosen(False, {"a": 10.0, "b": 10.0})
    assert "take `a`, the better one in the mean; " in alike.answer


def test_untrained_start_costs_nothing() -> None:
    """The numbers of a start that was not trained are missing."""
    result = chosen(False, {"a": 20.0, "b": float("nan")})
    assert result.name == "b"
    assert "it sends 0.0 megabytes, `a` 20.0." in result.answer


def test_lower_losses_are_better() -> None:
    """The worst tenth of b has losses that are 5 lower."""
    costs = {"a": 1.0, "b": 1.0}
    result = chosen(True, costs, measure="loss", finalists=("b", "a"))
    assert result.answer.startswith("Use `b`: -5.00 [-7.25, -2.75] against `a`")
    assert "the worst tenth of the clients gains 5.00;" in result.answer


def test_starts_that_left_and_that_failed() -> None:
    left = (Dropped("c", 2, failed=True), Dropped("b", 3, failed=False))
    problems = {"c": "diverged: loss not finite"}
    result = chosen(False, {"a": 1.0, "b": 1.0}, dropped=left, problems=problems, finalists=("a",))
    assert result.answer == "Use `a`: the training of every other finalist failed."
    assert result.left == [
        "`c` left after 2 draws: failed (diverged: loss not finite)",
        "`b` left after 3 draws: behind",
        "Rounds that were run: `a` 1,200, `b` 30; 1,230 in all.",
    ]
    assert result.comparisons.notes == [result.answer, *result.left]
    one = replace(
        result.comparisons.comparisons[0], rows=result.comparisons.comparisons[0].rows[:1]
    )
    alone = replace(result, comparisons=replace(result.comparisons, comparisons=[one]))
    assert refusal(alone.plot) == "a is the only finalist: it is compared with none"


def test_table_has_every_candidate() -> None:
    """a minus b is 5 on the draws that compared them; c minus a is of the draws that selected."""
    table = chosen(True, {"a": 20.0, "b": 10.0}).table
    assert table["difference"].to_dict() == {"a": 0.0, "b": -5.0, "c": -18.0}
    assert table["accuracy"]["b"] == 73.0
    assert table["megabytes"]["a"] == pytest.approx(20.0)
