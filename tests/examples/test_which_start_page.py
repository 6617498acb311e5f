"""The page of the compared starts: from reports of startbench to tables, sentences and a figure."""

import math

import pandas as pd
import pytest
from scipy import stats

from tests.common.claims import made, made_up_run, starts, write_examples


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


def test_best_start_is_named_with_its_interval_and_cost(recipe, tmp_path):
    text = bench(recipe, tmp_path, {"random": -5.0, "coprefl": 3.0, "centralised": 20.0})
    units = pd.read_csv(tmp_path / "outputs" / "startbench-made-up-fresh" / "report" / "units.csv")
    seeds = units["unit"].str.extract(r"seed (\d+)")[0]
    means = units.groupby(["row", seeds])["accuracy"].mean()
    of = means.loc["coprefl"] - means.loc["fedavg"]
    low, high = stats.ttest_1samp(of, 0).confidence_interval()
    words = " ".join(text.split())
    interval = f"+{of.mean():.1f} [+{low:.1f}, +{high:.1f}]"
    assert f"use `coprefl`: {interval} points of accuracy against `fedavg`, for 2.0 times" in words
    assert "use `centralised`" not in words  # It sees all data.
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| coprefl |")]
    shown = interval.replace("[", r"\[").replace("]", r"\]")
    assert rows[0][1] == f"**{shown}** |"
    assert rows[1][1] == f"{means.loc['coprefl'].mean():.1f}<br>{shown}"
    assert (tmp_path / "docs" / "which_start.png").stat().st_size > 10_000


def test_diverged_start_has_means_over_the_other_seeds():
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
    assert "`scaffold` failed in 1 of 4 seeds" in starts.details(setting)


def test_start_at_the_accuracy_of_guessing_has_failed():
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


def test_task_that_never_reaches_the_target_counts_all_its_rounds():
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
