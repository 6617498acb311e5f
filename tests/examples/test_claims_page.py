"""The page of measured claims: from reports of runs to tables, from tables to pages."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from coprefl_flwr.recipes.load import read_recipe
from tests.common.claims import (
    MAIN,
    MORE,
    made,
    made_up_run,
    make,
    tables,
    write_claims,
    write_examples,
)
from tests.common.recipes import write_recipe


@pytest.fixture
def recipe(tiny_images, tmp_path):
    return write_examples(tmp_path, tiny_images)


def run_of(path, tmp_path, name="run", worth=4.0, changes=()):
    """Write the report of a made-up run, and return the file of its numbers."""
    out = tmp_path / "outputs" / name
    made_up_run(out, path, worth={"fedavg": worth}, changes=changes)
    return out / "report" / "units.csv"


def primary(recipe):
    return recipe.parent / "primary" / "first.yaml"


def means_of(units):
    """Return the means of rows and seeds over their tasks."""
    data = pd.read_csv(units)
    seeds = data["unit"].str.extract(r"seed (\d+)")[0].rename("seed")
    return data.groupby(["row", seeds])[["accuracy", "variance"]].mean()


def lines_of(text, cells):
    """Return the cells of each line in tables with this number of cells."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines]
    found = [row for row in found if len(row) == cells and row[0] not in ("Claim", "Start")]
    return [row for row in found if not row[0].startswith("**")]


# ---- exploratory claims --------------------------------------------------------------------------


def test_exploratory_claim_has_an_interval_without_a_verdict(recipe, tmp_path):
    means = means_of(run_of(recipe, tmp_path))["accuracy"]
    text, _ = made(tmp_path)
    differences = means["fedavg"] - means["random"]
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    measured, other = lines_of(text, 5)
    assert measured[1:] == [
        "AAAI text, Table 1(a)<br>78.96 against 75.30", "as set",
        f"Accuracy %: +{differences.mean():.2f} \\[+{low:.2f}, +{high:.2f}\\] points<br>"
        f"fedavg {means['fedavg'].mean():.2f}, random {means['random'].mean():.2f}; 5 seeds",
        "It learns.",
    ]  # fmt: skip
    assert other[3:] == ["not measured", "Would need: ImageNet."]
    (tmp_path / "outputs").rename(tmp_path / "elsewhere")
    assert made(tmp_path)[0] == text  # It is made from the stored tables.


def test_only_seeds_with_all_tasks_of_both_rows_count(recipe, tmp_path):
    """One task of seed 2 of FedAvg is missing."""
    units = run_of(recipe, tmp_path, changes=["seeds=[0, 1, 2]"])
    means = means_of(units)["accuracy"]
    data = pd.read_csv(units)
    missing = (data["row"] == "fedavg") & (data["unit"] == "seed 2, task 1")
    data[~missing].to_csv(units, index=False)
    difference = (means["fedavg"] - means["random"]).iloc[:2].mean()
    cell = lines_of(made(tmp_path)[0], 5)[0][3]
    assert f"+{difference:.2f} points<br>" in cell  # Two seeds have no interval.
    assert "; 2 seeds" in cell


def test_runs_with_other_settings_are_left_out(recipe, tmp_path, capsys):
    run_of(recipe, tmp_path, "few", changes=["task-rounds=1"])
    other = write_recipe(tmp_path / "other.yaml", read_recipe(recipe).effective | {"title": "B"})
    run_of(other, tmp_path, "other")
    assert made(tmp_path)[1] == {}
    assert f"few is left out: it differs from {recipe} in task-rounds" in capsys.readouterr().err


def test_seeds_of_several_folders_are_counted_once(recipe, tmp_path):
    for name, seeds in (("a", "[0, 1, 2]"), ("b", "[2, 3, 4]")):
        run_of(recipe, tmp_path, name, changes=[f"seeds={seeds}"])
    text, stored = made(tmp_path)
    assert [*stored] == ["a", "b"]
    assert "; 5 seeds" in lines_of(text, 5)[0][3]


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        ("claims.yaml: tiny", {"of": "fedavq"}, "unknown row 'fedavq': did you mean 'fedavg'?"),
        ("claims.yaml: tiny", {"table": "alpha=0.1"}, "unknown table 'alpha=0.1'"),
        ("primary.yaml: CoPreFL", {"says": "hihger"}, "unknown says 'hihger': did you mean"),
        ("primary.yaml: CoPreFL", {"margin": 0}, "a margin is above 0"),
    ],
)
def test_wrong_claim_is_refused(recipe, tmp_path, capsys, place, change, message):
    of_primary = place.startswith("primary")
    write_claims(
        recipe, [MORE if of_primary else MORE | change], [MAIN | change if of_primary else MAIN]
    )
    assert make(tmp_path) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert place in line
    assert message in line
    assert not (tmp_path / "docs").exists()


# ---- primary claims ------------------------------------------------------------------------------


def test_primary_claims_have_verdicts_intervals_and_a_figure(recipe, tmp_path):
    """Verdicts use the seeds' means over two tasks; for variances, logarithms, shown as a ratio."""
    means = means_of(run_of(primary(recipe), tmp_path))
    text, _ = made(tmp_path)
    fedavg, random = means.loc["fedavg"], means.loc["random"]
    points = fedavg["accuracy"] - random["accuracy"]
    ratios = np.log(fedavg["variance"]) - np.log(random["variance"])
    accuracy, variance = lines_of(text, 6)
    low, high = stats.ttest_1samp(points, 0).confidence_interval()
    assert accuracy[2:] == [
        f"+{points.mean():.2f}\u00a0\\[+{low:.2f},\u00a0+{high:.2f}\\] points<br>"
        f"fedavg {fedavg['accuracy'].mean():.2f}<br>random {random['accuracy'].mean():.2f}",
        "1", "12", "**holds**",
    ]  # fmt: skip
    low, high = np.exp(stats.ttest_1samp(ratios, 0).confidence_interval())
    ratio = f"factor {math.exp(ratios.mean()):.2f}\u00a0\\[{low:.2f},\u00a0{high:.2f}\\]<br>"
    assert variance[2].startswith(ratio)
    assert (tmp_path / "docs" / "claims_forest.png").stat().st_size > 10_000


def test_primary_claim_has_no_verdict_before_all_its_seeds(recipe, tmp_path):
    run_of(primary(recipe), tmp_path, changes=["seeds=[1000, 1001, 1002, 1003, 1004]"])
    assert [row[4:] for row in lines_of(made(tmp_path)[0], 6)] == [
        ["5", "5 of 12 seeds so far"]
    ] * 2


def test_check_writes_nothing_and_finds_a_changed_page_or_table(recipe, tmp_path):
    run_of(primary(recipe), tmp_path)
    assert make(tmp_path, "--check") == 1
    assert not (tmp_path / "docs").exists()
    text, stored = made(tmp_path)
    assert make(tmp_path, "--check") == 0
    written = tmp_path / "docs" / "claims.md"
    written.write_text(text + "More.\n")
    assert make(tmp_path, "--check") == 1
    assert written.read_text() == text + "More.\n"
    made(tmp_path)
    stored["run"].rows["value"] += 0.1
    tables.write(tmp_path / "docs" / "tables", stored)
    assert make(tmp_path, "--check") == 1
