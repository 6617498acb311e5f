"""The page of measured claims: from reports of runs to tables, from tables to pages."""

import math
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt
from scipy import stats

from coprefl_flwr.cli import main
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.search import table_rows
from coprefl_flwr.studies.store import Store
from tests.common.claims import (
    FEDAVG,
    LESS,
    MAIN,
    MORE,
    RANDOM,
    figures,
    made,
    made_up_run,
    make,
    page,
    tables,
    write_claims,
    write_examples,
)
from tests.common.recipes import keep, result_file, write_recipe


@pytest.fixture
def recipe(tiny_images, tmp_path):
    return write_examples(tmp_path, tiny_images)


def run_of(path, out, accuracies, changes=(), extra="", protocol=""):
    """Store made-up results of a recipe with two tasks: {label: an accuracy for each seed}."""
    found = read_recipe(path, changes, protocol=protocol)
    out.mkdir(parents=True)
    (out / "recipe.yaml").write_text(found.to_yaml() + extra)
    (out / "models.txt").write_text("../models\n")
    store = Store(out.parent / "models")
    for table_row in table_rows(found):
        values = accuracies[table_row.row.label]
        runs = table_row.reported(table_row.trials()[0])
        for run, value in zip(runs, values, strict=False):
            keep(store, run, [value - 1, value + 1])
    assert main(["report", str(out)]) == 0
    return store, found


def lines_of(text, cells):
    """Return the cells of each line in tables with this number of cells."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines]
    return [row for row in found if len(row) == cells and row[0] not in ("Claim", "Start")]


def explored(text):
    return lines_of(text, 5)


def judged(text):
    return [row for row in lines_of(text, 6) if not row[0].startswith("**")]


# ---- exploratory claims --------------------------------------------------------------------------


def test_an_exploratory_claim_has_a_plain_interval_and_no_verdict(recipe, tmp_path):
    """The differences of the five seeds are 7, 8, 6, 7 and 6."""
    run_of(recipe, tmp_path / "outputs" / "tiny", {"random": RANDOM, "fedavg": FEDAVG})
    text, stored = made(tmp_path)
    differences = [a - b for a, b in zip(FEDAVG, RANDOM, strict=True)]
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert explored(text) == [
        [r"FedAvg is better than \| random", r"AAAI text, Table 1(a)<br>78.96 against 75.30",
         "as set", f"Accuracy %: +6.80 \\[+{low:.2f}, +{high:.2f}\\] points<br>"
         "fedavg 47.00, random 40.20; 5 seeds", "It learns."],
        ["On ImageNet too", "Table II", "", "not measured", "Would need: ImageNet."],
    ]  # fmt: skip
    assert "Images of 4 x 4: nobody's.\n" in text
    assert f"coprefl run {recipe}\n" in text
    html = MarkdownIt().enable("table").render(text)
    assert html.count("<table>") == 2  # For the primary claims, and for the recipe's claims.
    assert "not measured yet" in text
    one = stored["tiny"]
    assert list(one.rows) == ["table", "row", "seed", "task", "metric", "value"]
    assert one.rows.iloc[:4].to_numpy().tolist() == [
        ["table", "random", seed, task, "accuracy", RANDOM[seed] - 1 + 2 * task]
        for seed in (0, 1)
        for task in (0, 1)
    ]
    assert one.about["machine"] == "An engine, 2 cores"
    assert one.about["versions"] == "torch 2.0"
    assert one.about["recipe"] == "claims/tiny"


def test_the_pages_can_be_made_where_the_results_are_not(recipe, tmp_path):
    """The stored tables are then used, and all files keep the same bytes."""
    run_of(recipe, tmp_path / "outputs" / "tiny", {"random": RANDOM, "fedavg": FEDAVG})
    text, _ = made(tmp_path)
    files = {path: path.read_bytes() for path in (tmp_path / "docs").rglob("*.*")}
    made(tmp_path)
    (tmp_path / "outputs").rename(tmp_path / "elsewhere")
    assert made(tmp_path)[0] == text
    assert {path: path.read_bytes() for path in (tmp_path / "docs").rglob("*.*")} == files


def test_means_of_earlier_runs_stand_until_there_is_a_table(recipe, tmp_path):
    """A seed counts if both rows have the same number of tasks."""
    lines = [
        f"tiny,as set,table,{row},accuracy,{seed},{value},{tasks if seed == 4 else 2}"
        for row, values, tasks in (("random", RANDOM, 2), ("fedavg", FEDAVG, 1))
        for seed, value in enumerate(values)
    ]
    (tmp_path / "docs").mkdir()
    head = "recipe,protocol,table,row,metric,seed,value,tasks"
    (tmp_path / "docs" / "claims.csv").write_text("\n".join([head, *lines, ""]))
    assert "fedavg 47.25, random 40.25; 4 seeds" in made(tmp_path)[0]
    run_of(recipe, tmp_path / "outputs" / "tiny", {"random": FEDAVG, "fedavg": FEDAVG})
    assert "fedavg 47.00, random 47.00; 5 seeds" in made(tmp_path)[0]


def test_a_seed_counts_where_both_rows_have_all_its_tasks(recipe, tmp_path):
    """FedAvg has seeds 0 to 2, and only one task of seed 2."""
    out = tmp_path / "outputs" / "tiny"
    store, found = run_of(recipe, out, {"random": RANDOM, "fedavg": FEDAVG[:3]})
    table_row = table_rows(found)[1]
    run = table_row.reported(table_row.trials()[0])[2]
    result_file(store, run, 1).unlink()
    assert main(["report", str(out)]) == 0
    text, stored = made(tmp_path)
    rows = stored["tiny"].rows
    assert rows[rows["row"] == "fedavg"]["seed"].unique().tolist() == [0, 1]
    # Two seeds have no interval.
    assert "+7.50 points<br>fedavg 48.50, random 41.00; 2 seeds" in explored(text)[0][3]


def test_runs_of_other_settings_are_left_out(recipe, tmp_path, capsys):
    worth = {"random": RANDOM, "fedavg": FEDAVG}
    run_of(recipe, tmp_path / "outputs" / "few", worth, ["task-rounds=1"])
    run_of(recipe, tmp_path / "outputs" / "cut", worth, extra="scale: cut\n")
    other = write_recipe(tmp_path / "other.yaml", read_recipe(recipe).effective | {"title": "B"})
    run_of(other, tmp_path / "outputs" / "other", worth)
    assert made(tmp_path)[1] == {}
    said = [line.partition("outputs/")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line for line in said if "left out" in line] == [
        f"cut is left out: it differs from {recipe} in scale",
        f"few is left out: it differs from {recipe} in task-rounds",
    ]


def test_a_table_whose_recipe_was_changed_is_left_out(recipe, tmp_path, capsys):
    """The table is kept, because the recipe may be changed back."""
    run_of(recipe, tmp_path / "outputs" / "tiny", {"random": RANDOM, "fedavg": FEDAVG})
    text, _ = made(tmp_path)
    shutil.rmtree(tmp_path / "outputs")
    before = recipe.read_text()
    recipe.write_text(before.replace("task-rounds: 2", "task-rounds: 3"))
    assert make(tmp_path, "--check") == 1
    assert "table tiny is left out" in capsys.readouterr().err
    assert "not measured" in explored(made(tmp_path)[0])[0][3]
    recipe.write_text(before)
    assert made(tmp_path)[0] == text


def test_a_report_from_before_the_last_run_is_left_out(recipe, tmp_path, capsys):
    out = tmp_path / "outputs" / "tiny"
    run_of(recipe, out, {"random": RANDOM, "fedavg": FEDAVG})
    changed = (out / "report" / "units.csv").stat().st_mtime + 1
    os.utime(out / "recipe.yaml", (changed, changed))
    assert made(tmp_path)[1] == {}
    problem = f"its report is missing or older than its run: coprefl report {out}"
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(("select", "row"), [("test", "fedavg"), ("all", "fedavg:mu=0.1")])
def test_a_row_is_named_by_its_label_where_no_other_row_has_it(recipe, tmp_path, select, row):
    """The first of two values of FedProx's mu is better: it is the only row, or one of two rows."""
    searched = {"fedavg": {"method": "fedprox", "mu": [0.1, 0.2]}}
    content = {"methods": ["random", searched], "select": select}
    write_recipe(recipe, read_recipe(recipe).effective | content)
    write_claims(recipe, [MORE | {"of": row}])
    out = tmp_path / "outputs" / "tiny"
    store, found = run_of(recipe, out, {"random": RANDOM, "fedavg": FEDAVG})
    fedprox = table_rows(found)[1]
    for run in fedprox.reported(fedprox.trials()[1]):
        keep(store, run, [20, 22])
    assert main(["report", str(out)]) == 0
    text, stored = made(tmp_path)
    assert {*stored["tiny"].rows["row"]} >= {"random", row}
    assert f"{row} 47.00, random 40.20; 5 seeds" in text
    if select == "test":  # The values that were tried, from the report's table of the search.
        heading, first, second = stored["tiny"].about["trials"][:3]
        assert heading == ["Method", "Values", "Accuracy %", "Chosen"]
        assert first == ["fedavg", "mu=0.1", "47.00", "chosen"]
        assert second == ["fedavg", "mu=0.2", "21.00", "no"]


def test_files_may_lie_elsewhere(recipe, tmp_path, tiny_images):
    """The same data under another path belongs to the recipe."""
    worth = {"random": RANDOM, "fedavg": FEDAVG}
    run_of(recipe, tmp_path / "outputs" / "tiny", worth)
    moved = tmp_path / "moved" / tiny_images.name
    moved.parent.mkdir()
    moved.write_bytes(tiny_images.read_bytes())
    recipe.write_text(recipe.read_text().replace(str(tiny_images), str(moved)))
    assert [*made(tmp_path)[1]] == ["tiny"]


def test_seeds_of_several_folders_count_once(recipe, tmp_path):
    worth = {"random": RANDOM, "fedavg": FEDAVG}
    for name, seeds in (("a", "[0, 1, 2]"), ("b", "[2, 3, 4]")):
        run_of(recipe, tmp_path / "outputs" / name, worth, [f"seeds={seeds}"])
    text, stored = made(tmp_path)
    assert [*stored] == ["a", "b"]
    assert "; 5 seeds" in explored(text)[0][3]


def test_protocols_are_lines_of_a_claim(recipe, tmp_path):
    """Each protocol has its cause and its command."""
    protocols = {
        "printed": {"because": "as the paper has it"},
        "ratio": {"because": "rates that train", "settings": {"learning-rate": 5.0}},
    }
    causes = {"printed": "Nothing moves.", "ratio": "It learns."}
    write_recipe(recipe, {**read_recipe(recipe).effective, "protocols": protocols})
    write_claims(recipe, [MORE | {"cause": causes}])
    same = {"random": RANDOM, "fedavg": [one + 1 for one in RANDOM]}
    outputs = tmp_path / "outputs"
    run_of(recipe, outputs / "a", {"random": RANDOM, "fedavg": FEDAVG}, protocol="ratio")
    run_of(recipe, outputs / "b", same, protocol="printed")
    text, _ = made(tmp_path)
    first, second = explored(text)
    ours = "Accuracy %: +1.00 points<br>fedavg 41.20, random 40.20; 5 seeds"
    assert first[2:] == ["printed", ours, "Nothing moves."]
    assert (second[:3], second[4]) == (["", "", "ratio"], "It learns.")
    assert f"coprefl run {recipe} --protocol printed\n" in text
    assert "\n- `printed`: as the paper has it\n" in text


def test_a_start_that_never_came_to_its_loss_has_no_difference(recipe, tmp_path):
    """The report has an infinity for seed 3, in the first task, which has pre-training metrics."""
    out = tmp_path / "outputs" / "tiny"
    run_of(recipe, out, {"random": RANDOM, "fedavg": FEDAVG})
    units = pd.read_csv(out / "report" / "units.csv")
    units.loc[units["unit"] == "seed 0, task 0", "stopped-at"] = 12.0
    late = (units["unit"] == "seed 3, task 0") & (units["row"] == "fedavg")
    units.loc[late, "stopped-at"] = float("inf")
    units.to_csv(out / "report" / "units.csv", index=False)
    text, _ = made(tmp_path)
    assert explored(text)[0][3] == "Accuracy %: <br>fedavg never, random 40.20; 5 seeds"


def test_two_tables_of_a_recipe_can_be_compared(recipe, tmp_path):
    """FedAvg with 3 participants per round is better by 10, 11, 9, 10, 10 points.

    The std is √(1 / 2), and t(4) at 5 % is 2.776: half the interval is 2.776 · √(1 / 10) = 0.878.
    """
    of_both = ["participants=3", "participants=2"]
    write_recipe(recipe, read_recipe(recipe, ["participants=[2, 3]"]).effective)
    write_claims(recipe, [MORE | {"against": "fedavg", "table": of_both},
                          MORE | {"table": "participants=3"}])  # fmt: skip
    out = tmp_path / "outputs" / "tiny"
    store, found = run_of(recipe, out, {"random": RANDOM, "fedavg": FEDAVG})
    for table_row in table_rows(found):
        if table_row.combination["participants"] == 3 and table_row.row.label == "fedavg":
            runs = table_row.reported(table_row.trials()[0])
            for run, value, off in zip(runs, FEDAVG, (10, 11, 9, 10, 10), strict=True):
                keep(store, run, [value + off] * 2)
    assert main(["report", str(out)]) == 0
    both, one = explored(made(tmp_path)[0])
    assert both[2:4] == [
        "as set", r"Accuracy %: +10.00 \[+9.12, +10.88\] points<br>fedavg (participants=3) 57.00, "
        "fedavg (participants=2) 47.00; 5 seeds",
    ]  # fmt: skip
    assert one[2] == "as set<br>participants=3"
    assert "fedavg 57.00, random 40.20; 5 seeds" in one[3]


WRONG = [
    ({"of": "fedavq"}, "unknown row 'fedavq': did you mean 'fedavg'?"),
    ({"table": "alpha=0.1"}, "unknown table 'alpha=0.1'"),
    ({"table": ["table"]}, "argument"),
    ({"metric": "acuracy"}, "unknown metric 'acuracy': did you mean 'accuracy'?"),
    ({"causes": "?"}, "unexpected keyword argument 'causes'"),
]
WRONG_PRIMARY = [
    *WRONG,
    ({"says": "hihger"}, "unknown says 'hihger': did you mean 'higher'?"),
    ({"scale": "lag"}, "unknown scale 'lag': did you mean 'log'?"),
    ({"margin": 0}, "a margin is above 0"),
    ({"margin": 0.8, "scale": "log"}, "a factor above 1"),
    ({"recipe": "frist"}, "unknown recipe 'primary/frist': did you mean 'primary/first'?"),
]


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        *(("claims.yaml: tiny", *one) for one in WRONG),
        *(("primary.yaml: CoPreFL", *one) for one in WRONG_PRIMARY),
    ],
)
def test_a_wrong_claim_is_one_line(recipe, tmp_path, capsys, place, change, message):
    own = place.startswith("primary")
    write_claims(recipe, [MORE | ({} if own else change)], [MAIN | (change if own else {})])
    assert make(tmp_path) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert place in line
    assert message in line
    assert not (tmp_path / "docs").exists()


# ---- primary claims ------------------------------------------------------------------------------


def first_run(recipe, tmp_path, changes=(), **more):
    path = recipe.parent / "primary" / "first.yaml"
    out = tmp_path / "outputs" / "primary-first"
    shutil.rmtree(out, ignore_errors=True)
    made_up_run(out, path, changes=changes, **more)
    return pd.read_csv(out / "report" / "units.csv")


def test_primary_claims_have_verdicts_intervals_and_a_figure(recipe, tmp_path):
    """Verdicts use the seeds' means over two tasks; for variances, logarithms, shown as a ratio."""
    units = first_run(recipe, tmp_path, worth={"fedavg": 4.0})
    text, _ = made(tmp_path)
    seeds = units["unit"].str.extract(r"seed (\d+)")[0]
    means = units.groupby(["row", seeds])[["accuracy", "variance"]].mean()
    points = means.loc["fedavg"]["accuracy"] - means.loc["random"]["accuracy"]
    ratios = np.log(means.loc["fedavg"]["variance"]) - np.log(means.loc["random"]["variance"])
    low, high = stats.ttest_1samp(points, 0).confidence_interval()
    accuracy, variance = judged(text)
    both = {
        metric: "<br>".join(
            f"{row} {means.loc[row][metric].mean():.2f}" for row in ("fedavg", "random")
        )
        for metric in ("accuracy", "variance")
    }
    assert accuracy == [
        "FedAvg is more accurate", "78.96 against 75.30<br>Table 1",
        f"+{points.mean():.2f}\u00a0\\[+{low:.2f},\u00a0+{high:.2f}\\] points<br>"
        f"{both['accuracy']}", "1", "12", "**holds**",
    ]  # fmt: skip
    low, high = np.exp(stats.ttest_1samp(ratios, 0).confidence_interval())
    assert variance[2:4] == [
        f"factor {math.exp(ratios.mean()):.2f}\u00a0\\[{low:.2f},\u00a0{high:.2f}\\]<br>"
        f"{both['variance']}",
        "factor 1.25",
    ]  # fmt: skip
    assert '<img src="claims_forest.png"' in text
    assert (tmp_path / "docs" / "claims_forest.png").stat().st_size > 10_000


def test_a_primary_claim_waits_for_all_its_seeds(recipe, tmp_path):
    first_run(recipe, tmp_path, ["seeds=[1000, 1001, 1002, 1003, 1004]"], worth={"fedavg": 9.0})
    text, _ = made(tmp_path)
    assert [row[4:] for row in judged(text)] == [["5", "5 of 12 seeds so far"]] * 2


def test_an_open_claim_says_how_many_seeds_it_would_take(recipe, tmp_path):
    write_claims(recipe, [MORE], [MAIN | {"margin": 0.5}, LESS])
    first_run(recipe, tmp_path, seed=4)
    (word,) = [row[5] for row in judged(made(tmp_path)[0]) if "accurate" in row[0]]
    assert re.fullmatch(r"open: some \d+ seeds would find a difference of the margin"
                        "(; the interval is narrower than twice the margin)?", word)  # fmt: skip


@pytest.mark.parametrize("page_of", ["claims.md", "which-start.md"])
def test_a_check_writes_nothing_and_tells_another_page(recipe, tmp_path, capsys, page_of):
    first_run(recipe, tmp_path, worth={"fedavg": 4.0})
    assert make(tmp_path, "--check") == 1
    assert not (tmp_path / "docs").exists()
    made(tmp_path)
    assert make(tmp_path, "--check") == 0
    written = tmp_path / "docs" / page_of
    other = re.sub(r"measured yet|\+3", "+4", written.read_text(), count=1)
    written.write_text(other)
    capsys.readouterr()
    assert make(tmp_path, "--check") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{written} differs from the page that")
    assert written.read_text() == other


def test_another_value_in_a_table_is_another_page(recipe, tmp_path):
    first_run(recipe, tmp_path, worth={"fedavg": 4.0})
    _, stored = made(tmp_path)
    changed = stored["primary-first"].rows
    changed.loc[changed["row"] == "fedavg", "value"] += 0.1
    tables.write(tmp_path / "docs" / "tables", stored)
    assert make(tmp_path, "--check") == 1


def test_the_forest_shows_what_lies_beyond_it_as_arrows(recipe, tmp_path):
    claims = [page.Claim("A", "x", "c", "s", short=str(at), margin=1.0) for at in range(3)]
    values = [(0.2, 0.1, 0.3), (30.0, 28.0, 32.0), (-9.0, -15.0, -3.0)]
    known = [
        (claim, page.Verdict("holds", *of_claim, 20))
        for claim, of_claim in zip(claims, values, strict=True)
    ]
    (panel,) = figures.forest(known).axes
    assert panel.get_xlim() == (-figures.MOST, figures.MOST)
    panel.figure.canvas.draw()
    arrows = [line for line in panel.lines if line.get_marker() in "<>"]
    assert sorted(float(line.get_xdata()[0]) for line in arrows) == [-10.0, 10.0]
