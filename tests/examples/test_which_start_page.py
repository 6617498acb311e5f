"""The page of the compared starts: from reports of startbench to tables, sentences and a figure."""

import json
import math
import re

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from scipy import stats

from coprefl_flwr.report.tables import NONE
from tests.common.claims import made, made_up_run, starts, tables, write_examples


@pytest.fixture
def recipe(tiny_images, tmp_path):
    return write_examples(tmp_path, tiny_images)


def bench(recipe, tmp_path, worth=None, heads=("ncm",)):
    path = recipe.parents[1] / "startbench" / "made-up.yaml"
    for protocol in ("fresh", *heads, "tune"):
        out = tmp_path / "outputs" / f"startbench-made-up-{protocol}"
        made_up_run(out, path, protocol, worth if protocol == "fresh" else {"coprefl": 1})
    made(tmp_path)
    return (tmp_path / "docs" / "which-start.md").read_text()


def test_a_start_that_is_ahead_is_named_with_its_price(recipe, tmp_path):
    text = bench(recipe, tmp_path, {"random": -5.0, "coprefl": 3.0, "centralised": 20.0})
    units = pd.read_csv(tmp_path / "outputs" / "startbench-made-up-fresh" / "report" / "units.csv")
    seeds = units["unit"].str.extract(r"seed (\d+)")[0]
    means = units.groupby(["row", seeds])["accuracy"].mean()
    of = means.loc["coprefl"] - means.loc["fedavg"]
    low, high = stats.ttest_1samp(of, 0).confidence_interval()
    said = " ".join(text.split())
    interval = f"+{of.mean():.1f} [+{low:.1f}, +{high:.1f}]"
    assert f"use `coprefl`: {interval} points of accuracy against `fedavg`, for 2.0 times" in said
    assert "`coprefl` is better than random weights: +" in said
    assert re.search(r"reaches 60 % at least [\d.]+ \[[\d.]+, [\d.]+\] rounds sooner", said)
    assert "use `centralised`" not in said  # It sees all data.
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| coprefl |")]
    shown = interval.replace("[", r"\[").replace("]", r"\]")
    assert rows[0][1] == f"**{shown}** |"
    assert rows[1][1] == f"{means.loc['coprefl'].mean():.1f}<br>{shown}"
    assert "| made-up | fedavg | learning-rate=0.1 | 61.25 |" in text
    assert "- made up: head ridge." in text
    assert (tmp_path / "docs" / "which_start.png").stat().st_size > 10_000
    html = MarkdownIt().enable("table").render(text)
    assert html.count("<table>") == 3


def test_two_settings_have_a_table_each_and_a_table_of_both(recipe, tmp_path):
    first = recipe.parents[1] / "startbench" / "made-up.yaml"
    other = first.with_name("other.yaml")
    other.write_text(first.read_text().replace("made up", "made up too"))
    means, more = [], []
    for path, worth in ((first, {"coprefl": 3.0}), (other, {"coprefl": 9.0})):
        out = tmp_path / "outputs" / f"startbench-{path.stem}-fresh"
        made_up_run(out, path, "fresh", worth)
        units = pd.read_csv(out / "report" / "units.csv")
        of = units.groupby("row")["accuracy"].mean()
        means.append(of["coprefl"])
        more.append(of["coprefl"] - of["fedavg"])
    made(tmp_path)
    text = (tmp_path / "docs" / "which-start.md").read_text()
    assert "In 2 of 2 settings, `coprefl` is the best start, or is not clearly worse" in text
    assert "| Start | Made up | Made up too |" in text
    both, *each = [line for line in text.splitlines() if line.startswith("| coprefl |")]
    shown = [float(cell.strip("* ").split()[0]) for cell in both.split("|")[2:4]]
    assert shown == pytest.approx(more, abs=0.051)
    of_settings = [float(row.split(" | ")[1].partition("<br>")[0]) for row in each]
    assert of_settings == pytest.approx(means, abs=0.051)
    assert text.count("<summary>All results with made up") == 2
    assert MarkdownIt().enable("table").render(text).count("<table>") == 3
    assert (tmp_path / "docs" / "which_start.png").stat().st_size > 10_000


def test_where_no_start_is_ahead_the_page_says_so(recipe, tmp_path):
    said = " ".join(bench(recipe, tmp_path, {"random": -5.0}).split())
    assert "**Tasks with made up**: no start is shown to be better than `fedavg`." in said
    assert "`fedavg` is better than random weights: +" in said
    assert "- made up: no start is shown to be better than `fedavg`" in said
    assert "use `" not in said


def test_settings_without_tables_are_named_and_have_no_figures(recipe, tmp_path):
    made(tmp_path)
    text = (tmp_path / "docs" / "which-start.md").read_text()
    assert "- made up: not measured yet." in text
    assert "|" not in text
    assert not [*(tmp_path / "docs").glob("*.png")]


def test_a_start_whose_training_diverged_has_means_over_the_other_seeds():
    """In seed 2, scaffold failed; while runs are not done, only seeds with all starts count."""
    rows = [
        {"table": "table", "row": row, "seed": seed, "task": 0, "metric": "accuracy",
         "value": 50.0 + seed + 5 * number}
        for number, row in enumerate(("random", "fedavg", "scaffold"))
        for seed in range(4)
        if (row, seed) != ("scaffold", 2)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    values = starts.values_of(frame, {}, 10)
    assert [*values.index] == [0, 1, 2, 3]
    assert [*starts.with_all_starts(values).index] == [0, 1, 3]
    setting = starts.Setting("made up", "fedavg", ["random", "fedavg", "scaffold"], values)
    assert setting.mean("scaffold", "accuracy") == pytest.approx(60 + 4 / 3)
    assert setting.less("scaffold", "accuracy").mean == pytest.approx(5)
    said = starts.details(setting)
    assert "`scaffold` failed in 1 of 4 seeds: its training diverged at the chosen rate" in said
    assert "`fedavg` failed" not in said


def test_a_start_that_ends_at_guessing_has_failed():
    """Random weights are not trained, so they cannot fail."""
    columns = [(row, one) for row in ("random", "fedavg") for one in ("accuracy", "ncm")]
    index = pd.MultiIndex.from_tuples(columns)
    values = pd.DataFrame([[14, 30, 15, 20], [14, 30, 90, 80]], [7, 8], index, float)
    setting = starts.Setting(
        "made up", "fedavg", ["random", "fedavg"], starts.without_failures(values, 15.0)
    )
    assert [setting.failures(row) for row in setting.rows] == [0, 1]
    assert setting.mean("fedavg", "accuracy") == 90
    assert setting.mean("fedavg", "ncm") == 80
    assert values.notna().all(axis=None)  # The given values are not changed.


def test_a_task_that_never_came_to_the_target_counts_with_all_its_rounds():
    """A round sends 2 MB; one of three tasks reached the target, after 4 rounds."""
    rounds, sent = [4.0, math.inf, math.inf], [8.0, math.inf, math.inf]
    rows = [
        {"table": "table", "row": "fedavg", "seed": 7, "task": task, "metric": metric, "value": v}
        for metric, values in {"rounds-to-60%": rounds, "megabytes-to-60%": sent,
                               "accuracy": [61, 50, 52]}.items()
        for task, v in enumerate(values)
    ]  # fmt: skip
    found = starts.values_of(pd.DataFrame(rows), {}, rounds=10)["fedavg"].loc[7]
    assert found["rounds-to"] == pytest.approx((4 + 10 + 10) / 3)
    assert found["megabytes-to"] == pytest.approx((8 + 20 + 20) / 3)
    assert found["reached"] == pytest.approx(100 / 3)


def test_a_later_search_replaces_the_choice_of_an_earlier_search():
    def search(protocol, *rows):
        trials = [["Method", "Values", "Accuracy %", "Chosen"], *rows]
        about = {"recipe": "startbench/glyphs", "protocol": protocol, "trials": trials}
        return tables.Stored(about, pd.DataFrame())

    fedavg = ["fedavg", "learning-rate=0.1", "60.00", "chosen"]
    late = ["scaffold", "learning-rate=0.3", "9.00", "chosen"]
    stable = ["scaffold", "learning-rate=0.05", "58.00", "chosen"]
    stored = {"a": search("tune-scaffold", stable), "b": search("tune", fedavg, late)}
    other = search("tune", fedavg)
    other.about["recipe"] = "startbench/unseen-people"
    stored["c"] = other
    for given in (stored, dict(reversed(stored.items()))):
        assert starts.chosen(given) == [
            ["glyphs", "fedavg", "learning-rate=0.1", "60.00"],
            ["glyphs", "scaffold", "learning-rate=0.05", "58.00"],
            ["unseen-people", "fedavg", "learning-rate=0.1", "60.00"],
        ]


def test_the_provenance_of_a_table_is_that_of_its_report(recipe, tmp_path):
    bench(recipe, tmp_path)
    about = json.loads((tmp_path / "docs" / "tables" / "about.json").read_text())
    found = about["startbench-made-up-tune"]
    assert found["machine"] == "An engine | made up, 2 cores"
    assert (found["commit"], found["date"]) == ("0123abcd", "2026-01-01 to 2026-01-02")
    assert found["trials"][2] == ["fedavg", "learning-rate=0.2", "40.00", NONE, "dropped"]
    assert len(found["settings"]) == 16
    assert found["settings"] != about["startbench-made-up-fresh"]["settings"]
