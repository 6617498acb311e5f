"""The page of measured claims: from reports of runs to tables, from tables to pages."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.common.claims import made, made_up_run, write_examples


@pytest.fixture
def recipes(tiny_images, tmp_path):
    return write_examples(tmp_path, tiny_images)


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


def test_exploratory_claim_has_an_interval_without_a_verdict(recipes, tmp_path):
    means = means_of(made_up_run(tmp_path / "outputs" / "run", recipes[0]))["accuracy"]
    text = made(tmp_path)
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
    assert made(tmp_path) == text  # It is made from the stored tables.


def test_primary_claims_have_verdicts_intervals_and_a_figure(recipes, tmp_path):
    """Verdicts use the seeds' means over two tasks; for variances, logarithms, shown as a ratio."""
    means = means_of(made_up_run(tmp_path / "outputs" / "run", recipes[1]))
    text = made(tmp_path)
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
