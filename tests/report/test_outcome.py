"""The report of a study or of a Python result, from frames in memory and from a folder."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.columns import ColumnSpec
from coprefl_flwr.report.comparison import numbers
from coprefl_flwr.report.frames import OF_A_ROUND, ROW, frame
from coprefl_flwr.report.outcome import Outcome, report_of
from tests.common.comparisons import two_starts, without_classes
from tests.common.figures import curve_rows

SENT = {"weights-sent": 1234567, "numbers-sent": 2000}


def personalised(domains: str = "aabb", seed: int = 0, **methods: list[int]) -> Outcome:
    """Return results of clients with ten test samples; `methods` states how many are correct."""
    rows: list[dict[str, Any]] = [
        {"start": method, "task": 0, "client": client, "n": 10, "correct": right, "loss": 1.0,
         "domain": domains[client]}
        for method, correct in methods.items()
        for client, right in reversed(list(enumerate(correct)))
    ]  # fmt: skip
    rounds = [
        {"phase": "personalised", "start": method, "task": None, "round": at, "loss": 1 / at} | SENT
        for method in methods
        for at in (1, 2)
    ]
    return Outcome(pd.DataFrame(rows), frame(rounds), {"seed": seed})


def values(outcome: Outcome, *more: Outcome) -> dict[str, dict[str, list[float]]]:
    """Return {start: {column: one value per unit}} of the report."""
    (table,) = report_of([outcome, *more]).comparisons
    return {row.name: row.values.to_dict("list") for row in table.rows}


def test_personalised_metrics_by_hand() -> None:
    """solo has 90, 70, 50, 30 %: mean 60, deviations 30, 10, 10, 30, variance 2000 / 4.

    The worst 40 % are ceil(1.6) = 2 clients, (30 + 50) / 2. fedpcl has 60 % for all clients.
    """
    by_start = values(personalised(solo=[9, 7, 5, 3], fedpcl=[6, 6, 6, 6]))
    assert by_start["solo"] == {
        "accuracy": [60.0], "worst-10%": [30.0], "worst-20%": [30.0], "worst-40%": [40.0],
        "best-10%": [90.0], "std-clients": [math.sqrt(500)], "accuracy@a": [80.0],
        "accuracy@b": [40.0], "weights-sent": [1234567], "numbers-sent": [2000],
    }  # fmt: skip
    assert by_start["fedpcl"]["std-clients"] == [0.0]
    assert "accuracy@a" not in values(personalised("aaaa", a=[6] * 4))["a"]


def test_runs_of_several_seeds_are_units_of_one_comparison() -> None:
    runs = [personalised("aaaa", seed, a=[right] * 4) for seed, right in ((0, 6), (3, 7))]
    (table,) = report_of(runs).comparisons
    assert list(table.units) == ["seed 0", "seed 3"]
    assert values(*runs)["a"]["accuracy"] == [60.0, 70.0]
    assert list(table.rows[0].client_rows["task"]) == [0] * 4 + [1] * 4


def test_runs_with_other_methods_are_refused() -> None:
    with pytest.raises(SettingsError, match="the runs must have the same methods"):
        report_of([personalised(a=[1, 2, 3, 4]), personalised(b=[1, 2, 3, 4])])


def test_runs_with_other_settings_or_the_same_seed_are_never_pooled() -> None:
    """Before, they were averaged."""

    def run(seed: int, **about: Any) -> Outcome:
        outcome = personalised(seed=seed, a=[1, 2, 3, 4])
        return Outcome(outcome.rows, outcome.rounds, {**outcome.about, **about})

    set_up = {"settings": {"rounds": 5, "seed": 0}, "defaults": {"alpha": 0.5}}
    same = {"settings": {"alpha": 0.5, "seed": 1}, "defaults": {"rounds": 5}}
    assert report_of([run(0, **set_up), run(1, **same)]).provenance["seeds"] == "0, 1"
    with pytest.raises(
        SettingsError, match="the runs have seed 3; seed 0; seed 3: name one run of each"
    ):
        report_of([run(3), run(0), run(3)])
    for settings in ({"alpha": 0.5, "rounds": 50}, {"alpha": 0.5}):
        message = "the runs differ in rounds: name runs that differ only in the seed"
        with pytest.raises(SettingsError, match=message):
            report_of([run(0, **set_up), run(1, settings=settings)])


def starts() -> Outcome:
    about = {
        "title": "T", "seed": 5, "starts": ["random", "coprefl"], "chained": {"coprefl": [2]},
        "costs": {"coprefl": {"step-size": 1.5}}, "troubles": {"coprefl": "diverged"},
        "warnings": ["2 replies were left out."], "made": {"machine": "An engine"},
        "settings": {"rounds": 8}, "command": "flwr run . --run-config rounds=8",
    }  # fmt: skip
    return Outcome(pd.DataFrame(two_starts()), frame(curve_rows(["coprefl"])), about)


def test_pretraining_metrics_are_values_of_the_first_task() -> None:
    by_start = values(starts())
    assert by_start["random"]["accuracy"] == [70.0, 90.0]
    assert by_start["coprefl"]["rounds"] == pytest.approx([8, math.nan], nan_ok=True)
    assert by_start["coprefl"]["step-size"] == pytest.approx([1.5, math.nan], nan_ok=True)
    report = report_of([starts()])
    (of_table,) = report.comparisons
    assert list(of_table.units) == ["seed 5, task 0", "seed 5, task 1"]
    assert [list(row.problems) for row in of_table.rows] == [[], ["diverged"]]
    rounds = of_table.rows[1].rounds
    assert list(rounds["round"][rounds["chained"]]) == [2]
    assert set(of_table.rows[1].curves["phase"]) == {"downstream"}
    assert report.warnings == ["coprefl: diverged.", "2 replies were left out."]


def test_report_of_a_folder_has_the_same_bytes(tmp_path: Path) -> None:
    page = starts().write(tmp_path)
    assert page == tmp_path / "report" / "report.html"
    before = {path: path.read_bytes() for path in page.parent.rglob("*.*")}
    assert page.with_name("figures") / "table-curves.png" in before
    assert "An engine" in page.read_text(encoding="utf-8")
    assert "<code>flwr run . --run-config rounds=8</code>" in page.read_text(encoding="utf-8")
    again = Outcome.read(tmp_path)
    assert again.about == starts().about
    again.write(tmp_path)
    assert {path: path.read_bytes() for path in page.parent.rglob("*.*")} == before


def test_metrics_of_the_user_keep_their_titles(tmp_path: Path) -> None:
    rows = pd.DataFrame(two_starts()).assign(**{"metric:top3": 0.5})
    about = {"columns": {"metric:top3": ("Top three", "lower")}}
    page = Outcome(rows, frame([], OF_A_ROUND), about).write(tmp_path)
    assert ">Top three</th>" in page.read_text(encoding="utf-8")
    (comparison,) = report_of([Outcome.read(tmp_path)]).comparisons
    assert comparison.column("metric:top3") == ColumnSpec("Top three", "lower", None)


def test_run_without_tasks_and_rounds_has_a_report(tmp_path: Path) -> None:
    """Random weights without tasks give neither rows of clients nor rows of rounds."""
    empty = Outcome(frame([], ROW), frame([], OF_A_ROUND), {"starts": ["random"]})
    assert "random" in empty.write(tmp_path).read_text(encoding="utf-8")
    assert Outcome.read(tmp_path).starts == ["random"]


def without(**about: Any) -> Outcome:
    """Return results without classes: random has higher losses than coprefl, idle the highest."""
    rows = [
        record
        for start, loss in (("random", 0.5), ("coprefl", 0.25), ("idle", 0.75))
        for task in range(2)
        for record in without_classes(start, task, [loss] * 3 + [2 * loss], mae=[1.0] * 4)
    ]
    rounds = frame([{"phase": "pretraining", "start": "coprefl", "round": 1, "server-loss": 0.5}])
    about = {"starts": ["random", "coprefl", "idle"], **about}
    return Outcome(pd.DataFrame(rows), rounds.assign(task=None), about)


def test_table_without_classes_is_of_the_first_metric_of_the_user(tmp_path: Path) -> None:
    outcome = without(columns={"metric:mae": ("MAE", "lower")})
    (table,) = report_of([outcome]).comparisons
    assert table.metrics == [
        "metric:mae", *(f"metric:mae:{of}" for of in ("variance", "worst-10%", "worst-20%")),
        "metric:mae:worst-30%", "rounds", "final-loss", "best-loss", "best-round", "models",
        "megabytes",
    ]  # fmt: skip
    page = outcome.write(tmp_path).read_text(encoding="utf-8")
    assert ">Worst 10 %: MAE</th>" in page
    assert Outcome.read(tmp_path).measure == outcome.measure


def test_table_without_classes_and_metrics_is_of_the_loss() -> None:
    """random: 0.5, 0.5, 0.5, 1 in each task: mean 0.625, worst 1, variance 3 / 64."""
    outcome = without()
    outcome = Outcome(outcome.rows.drop(columns="metric:mae"), outcome.rounds, outcome.about)
    by_start = values(outcome)
    assert by_start["random"]["loss"] == [0.625, 0.625]
    assert by_start["random"]["loss:worst-10%"] == [1.0, 1.0]
    assert by_start["random"]["loss:variance"] == pytest.approx([3 / 64] * 2)
    problem = "did not learn: 0.938 (random: 0.625)"
    assert outcome.problems == {"idle": problem}
    (table,) = report_of([outcome]).comparisons
    assert [list(row.problems) for row in table.rows] == [[], [], [problem]]


def test_tested_starts_without_tasks_and_classes_are_compared_by_the_test_loss() -> None:
    outcome = Outcome(frame([], ROW), without().rounds, {"starts": ["coprefl"], "tasks": 0})
    assert values(outcome)["coprefl"]["final-loss"] == [0.5]


def test_draws_and_training_seeds_of_studies_are_units_of_one_comparison() -> None:
    """solo minus a is 2, 4 in draw 0 and 6, 8 in draw 1, of ten samples: means 30 and 70 %."""

    def run(draw: int, seed: int, right: int) -> Outcome:
        outcome = personalised("aaaa", seed, a=[1] * 4, solo=[right] * 4)
        settings = {"data-seed": draw, "seed": seed}
        return Outcome(outcome.rows, outcome.rounds, {"settings": settings, **settings})

    runs = [run(0, 5, 3), run(0, 6, 5), run(1, 5, 7), run(1, 6, 9)]
    report = report_of(runs)
    (table,) = report.comparisons
    assert table.units[:2] == ["draw 0, seed 5", "draw 0, seed 6"]
    assert table.draws == ["draw 0", "draw 0", "draw 1", "draw 1"]
    found = numbers(table).set_index(["row", "metric"]).loc["solo", "accuracy"]
    assert (found["difference"], found["pairs"], found["n"]) == (50.0, 2, 4)
    assert found["difference-std"] == pytest.approx(math.sqrt(2) * 20)
    with pytest.raises(SettingsError, match="the runs have draw 0, seed 5; draw 0, seed 5: name"):
        report_of([runs[0], runs[0]])
    without = personalised("aaaa", 7, a=[1] * 4, solo=[3] * 4)
    mixed = Outcome(without.rows, without.rounds, {"settings": {}, "seed": 7})
    with pytest.raises(SettingsError, match="the runs differ in data-seed: name runs"):
        report_of([runs[0], mixed])
