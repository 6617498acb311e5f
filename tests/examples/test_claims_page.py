"""The page of claims: from runs of recipes and their reports to a table of values and verdicts."""

import csv
import os

import pandas as pd
import pytest
import yaml
from markdown_it import MarkdownIt
from scipy import stats

from coprefl_flwr.recipes.command_line import main
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.runs import ModelStore
from coprefl_flwr.recipes.sweep import contests
from tests.common.claims import page
from tests.common.recipes import keep, result_file, tiny_recipe, write_recipe

SEEDS = [0, 1, 2, 3, 4]
RANDOM, FEDAVG = [40, 42, 38, 41, 40], [47, 50, 44, 48, 46]
MORE = {
    "claim": "FedAvg is better than | random",
    "source": "CoPreFL, AAAI text, Table 1(a)",
    "of": "fedavg",
    "against": "random",
    "metric": "accuracy",
    "says": "better",
    "printed": "78.96 75.3",
    "cause": "It learns.",
}
LESS = MORE | {"claim": "Random is better", "of": "random", "against": "fedavg"}
OPEN = {"claim": "On ImageNet too", "source": "CyclicFL, Table II", "open": "ImageNet"}


@pytest.fixture
def recipe(tiny_images, tmp_path):
    """A recipe file in a folder, with a file of claims beside it."""
    (tmp_path / "claims").mkdir()
    content = tiny_recipe(
        tiny_images, methods=["random", "fedavg"], reference="random", seeds=SEEDS
    )
    path = write_recipe(tmp_path / "claims" / "tiny.yaml", content)
    path.write_text("# Images of 4 x 4:\n# nobody's.\n\n# Not this.\n" + path.read_text())
    write_claims(path, [MORE, LESS, OPEN])
    return path


def write_claims(recipe, claims):
    recipe.with_name("claims.yaml").write_text(yaml.safe_dump({recipe.stem: claims}))


def run_of(path, out, accuracies, changes=(), extra="", protocol=""):
    """Keep results of a recipe as if it had been run: {label: an accuracy a seed}, two tasks."""
    found = read_recipe(path, changes, protocol=protocol)
    out.mkdir(parents=True)
    (out / "recipe.yaml").write_text(found.to_yaml() + extra)
    (out / "models.txt").write_text("../models\n")
    store = ModelStore(out.parent / "models")
    for contest in contests(found):
        values = accuracies[contest.entrant.label]
        runs = contest.reported(contest.entrant.candidates()[0])
        for run, value in zip(runs, values, strict=False):
            keep(store, run, [value - 1, value + 1])
    assert main(["report", str(out)]) == 0
    return store, found


def make(tmp_path, *options):
    """Make the page; return the exit status."""
    places = {"claims": tmp_path / "claims" / "claims.yaml", "outputs": tmp_path / "outputs"}
    places["page"] = tmp_path / "docs" / "claims.md"
    arguments = [word for name, place in places.items() for word in (f"--{name}", str(place))]
    return page.main([*arguments, *options])


def made(tmp_path):
    """Make the page; return it and the lines of its table of values."""
    assert make(tmp_path) == 0
    written = tmp_path / "docs" / "claims.md"
    with written.with_suffix(".csv").open(newline="") as file:
        return written.read_text(), list(csv.DictReader(file))


def rows_of(text):
    """Return the cells of each row of claims."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and "Verdict" not in line]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if len(row) == 6]


def test_a_page_of_verdicts(recipe, tmp_path):
    """Differences of seeds 7, 8, 6, 7, 6, against scipy's interval at 5 % / 2 (both claims)."""
    run_of(recipe, tmp_path / "outputs" / "tiny", {"random": RANDOM, "fedavg": FEDAVG})
    text, values = made(tmp_path)
    differences = [a - b for a, b in zip(FEDAVG, RANDOM, strict=True)]
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.975)
    more, less, imagenet = rows_of(text)
    assert more == [
        r"FedAvg is better than \| random", r"AAAI text, Table 1(a)<br>78.96 against 75.30",
        "as set", f"Accuracy %: +6.80 \\[+{low:.2f}, +{high:.2f}\\]<br>"
        "fedavg 47.00, random 40.20; 5 seeds", "**holds**", "It learns.",
    ]  # fmt: skip
    # Both have one p: the first of two equal ones is judged at 5 % / 2, the other at 5 %.
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert f"-6.80 \\[-{high:.2f}, -{low:.2f}\\]" in less[3]
    assert less[4] == "**does not hold**"
    assert imagenet == ["On ImageNet too", "Table II", "", "", "open", "Would need: ImageNet."]
    assert "over all 2 rows of this page" in text
    assert "| CoPreFL | 1 | 1 | 0 | 0 |" in text
    assert "| all | 1 | 1 | 0 | 1 |" in text
    assert "Images of 4 x 4: nobody's.\n" in text
    assert f"coprefl run {recipe}\n" in text
    html = MarkdownIt().enable("table").render(text)
    assert html.count("<table>") == 3  # Counts, and one for each paper.
    assert html.count("<h2>") == 2
    assert len(values) == 10
    assert values[0] == {
        "recipe": "tiny", "protocol": "as set", "table": "table", "row": "random",
        "metric": "accuracy", "seed": "0", "value": "40", "tasks": "2",
    }  # fmt: skip


def test_the_page_can_be_made_where_the_results_are_not(recipe, tmp_path):
    run_of(recipe, tmp_path / "outputs" / "tiny", {"random": RANDOM, "fedavg": FEDAVG})
    before = made(tmp_path)
    (tmp_path / "outputs").rename(tmp_path / "elsewhere")
    assert made(tmp_path) == before


def test_a_check_writes_nothing_and_tells_another_page(recipe, tmp_path, capsys):
    run_of(recipe, tmp_path / "outputs" / "tiny", {"random": RANDOM, "fedavg": FEDAVG})
    assert make(tmp_path, "--check") == 1
    assert not (tmp_path / "docs").exists()
    made(tmp_path)
    assert make(tmp_path, "--check") == 0
    written = tmp_path / "docs" / "claims.md"
    written.write_text(written.read_text().replace("+6.80", "+6.90"))
    assert make(tmp_path, "--check") == 1
    assert "is not the page that" in capsys.readouterr().out
    assert "+6.90" in written.read_text()


def test_what_was_not_run_is_open(recipe, tmp_path):
    text, values = made(tmp_path)
    assert values == []
    assert [row[4] for row in rows_of(text)] == ["open"] * 3
    assert "Would need: to be run, as it was not yet." in text
    assert "| CoPreFL | 0 | 0 | 0 | 2 |" in text


def test_a_seed_counts_where_both_rows_have_all_its_tasks(recipe, tmp_path):
    """FedAvg has seeds 0 to 3, and of seed 3 one task: two of three seeds are no verdict."""
    out = tmp_path / "outputs" / "tiny"
    store, found = run_of(recipe, out, {"random": RANDOM, "fedavg": FEDAVG[:3]})
    contest = contests(found)[1]
    run = contest.reported(contest.entrant.candidates()[0])[2]
    result_file(store, run, 1).unlink()
    assert main(["report", str(out)]) == 0
    text, values = made(tmp_path)
    assert [one["seed"] for one in values if one["row"] == "fedavg"] == ["0", "1"]
    assert "Accuracy %: +7.50<br>fedavg 48.50, random 41.00; 2 seeds" in rows_of(text)[0][3]
    assert rows_of(text)[0][4:] == ["open", "It learns.<br>Would need: at least 3 seeds."]


def test_a_seed_counts_where_both_rows_have_as_many_tasks(recipe, tmp_path):
    lines = [
        f"tiny,as set,table,{row},accuracy,{seed},{value},{tasks if seed == 4 else 2}"
        for row, values, tasks in (("random", RANDOM, 2), ("fedavg", FEDAVG, 1))
        for seed, value in enumerate(values)
    ]
    (tmp_path / "docs").mkdir()
    head = ",".join(page.COLUMNS)
    (tmp_path / "docs" / "claims.csv").write_text("\n".join([head, *lines, ""]))
    assert "fedavg 47.25, random 40.25; 4 seeds" in made(tmp_path)[0]


def test_runs_of_other_settings_are_left_out(recipe, tmp_path, capsys):
    worth = {"random": RANDOM, "fedavg": FEDAVG}
    run_of(recipe, tmp_path / "outputs" / "few", worth, ["task-rounds=1"])
    run_of(recipe, tmp_path / "outputs" / "cut", worth, extra="scale: cut\n")
    other = write_recipe(tmp_path / "other.yaml", read_recipe(recipe).effective | {"title": "B"})
    run_of(other, tmp_path / "outputs" / "other", worth)
    assert made(tmp_path)[1] == []
    said = [line.partition("outputs/")[2] for line in capsys.readouterr().err.splitlines()]
    left_out = [line for line in said if "left out" in line]
    assert left_out == [
        f"cut is left out: it has another scale than {recipe}",
        f"few is left out: it has another task-rounds than {recipe}",
    ]


def test_a_report_from_before_the_last_run_is_left_out(recipe, tmp_path, capsys):
    out = tmp_path / "outputs" / "tiny"
    run_of(recipe, out, {"random": RANDOM, "fedavg": FEDAVG})
    changed = (out / "report" / "units.csv").stat().st_mtime + 1
    os.utime(out / "recipe.yaml", (changed, changed))
    assert made(tmp_path)[1] == []
    assert f"it has no report since its last run: coprefl report {out}" in capsys.readouterr().err


@pytest.mark.parametrize(("select", "row"), [("test", "fedavg"), ("all", "fedavg:mu=0.1")])
def test_a_row_is_named_by_its_label_where_no_other_row_has_it(recipe, tmp_path, select, row):
    """Of FedProx with two values of mu, the first is better: the only row, or one of two."""
    searched = {"fedavg": {"method": "fedprox", "mu": [0.1, 0.2]}}
    content = {"methods": ["random", searched], "select": select}
    write_recipe(recipe, read_recipe(recipe).effective | content)
    write_claims(recipe, [MORE | {"of": row}])
    out = tmp_path / "outputs" / "tiny"
    store, found = run_of(recipe, out, {"random": RANDOM, "fedavg": FEDAVG})
    fedprox = contests(found)[1]
    for run in fedprox.reported(fedprox.entrant.candidates()[1]):
        keep(store, run, [20, 22])
    assert main(["report", str(out)]) == 0
    text, values = made(tmp_path)
    assert {one["row"] for one in values} >= {"random", row}
    assert f"{row} 47.00, random 40.20; 5 seeds" in text


def test_files_may_lie_elsewhere(recipe, tmp_path, tiny_images):
    """The same data under another path is the recipe's."""
    worth = {"random": RANDOM, "fedavg": FEDAVG}
    run_of(recipe, tmp_path / "outputs" / "tiny", worth)
    moved = tmp_path / "moved" / tiny_images.name
    moved.parent.mkdir()
    moved.write_bytes(tiny_images.read_bytes())
    recipe.write_text(recipe.read_text().replace(str(tiny_images), str(moved)))
    assert len(made(tmp_path)[1]) == 10


def test_seeds_of_several_folders_count_once(recipe, tmp_path):
    worth = {"random": RANDOM, "fedavg": FEDAVG}
    for name, seeds in (("a", "[0, 1, 2]"), ("b", "[2, 3, 4]")):
        run_of(recipe, tmp_path / "outputs" / name, worth, [f"seeds={seeds}"])
    _, values = made(tmp_path)
    assert sorted(int(one["seed"]) for one in values if one["row"] == "fedavg") == SEEDS


PROTOCOLS = {
    "printed": {"because": "as the paper has it"},
    "ratio": {"because": "rates that train", "rates": 100},
    "epochs": {"because": "the other reading", "settings": {"local-steps": 4}},
}


def test_protocols_are_rows_and_replace_only_themselves(recipe, tmp_path):
    """What a protocol changed is no other recipe; each has its row, its cause and its command."""
    causes = {"printed": "Nothing moves.", "ratio": "It learns."}
    write_recipe(recipe, {**read_recipe(recipe).effective, "protocols": PROTOCOLS})
    write_claims(recipe, [MORE | {"cause": causes}, LESS, OPEN])
    worth = {"random": RANDOM, "fedavg": FEDAVG}
    same = {"random": RANDOM, "fedavg": [one + 1 for one in RANDOM]}
    outputs = tmp_path / "outputs"
    run_of(recipe, outputs / "a", worth, protocol="ratio")
    run_of(recipe, outputs / "b", same, protocol="printed")
    # Not as its protocol has it.
    run_of(recipe, outputs / "c", worth, ["learning-rate=0.3"], protocol="epochs")
    text, values = made(tmp_path)
    assert [(one["protocol"], one["row"]) for one in values[::5]] == [
        ("printed", "random"), ("printed", "fedavg"), ("ratio", "random"), ("ratio", "fedavg"),
    ]  # fmt: skip
    first, second, *_ = rows_of(text)
    assert (first[0] != "", first[2], first[5].partition("<")[0]) == (
        True,
        "printed",
        "Nothing moves.",
    )
    assert (second[:3], second[5]) == (["", "", "ratio"], "It learns.")
    assert f"coprefl run {recipe} --protocol printed\n" in text
    assert "\n- `printed`: as the paper has it\n" in text
    assert "\n- `epochs`: the other reading\n" in text
    # Without the one's results its values stay.
    (outputs / "b").rename(tmp_path / "b")
    assert made(tmp_path) == (text, values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"of": "fedavq"}, "unknown row 'fedavq': did you mean 'fedavg'?"),
        ({"table": "alpha=0.1"}, "unknown table 'alpha=0.1'"),
        ({"table": ["table"]}, "argument"),
        ({"metric": "acuracy"}, "unknown metric 'acuracy': did you mean 'accuracy'?"),
        ({"says": "beter"}, "unknown says 'beter': did you mean 'better'?"),
        ({"says": "equal", "metric": "variance"}, "equal needs a margin"),
        ({"metric": "rounds"}, "no way of rounds is better"),
        ({"causes": "?"}, "unexpected keyword argument 'causes'"),
    ],
)
def test_a_wrong_claim_is_one_line(recipe, tmp_path, capsys, change, message):
    content = read_recipe(recipe).effective
    write_recipe(recipe, content | {"metrics": ["accuracy", "variance", "rounds"]})
    write_claims(recipe, [MORE | change])
    assert make(tmp_path) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "claims.yaml: tiny" in line
    assert message in line
    assert not (tmp_path / "docs").exists()


def test_what_is_no_table_of_values_is_refused(recipe, tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "claims.csv").write_text("a,b\n1,2\n")
    assert make(tmp_path) == 1
    assert "its columns must be recipe, protocol, table" in capsys.readouterr().err


def test_a_start_that_never_came_to_its_loss_is_no_verdict(recipe, tmp_path):
    """As a report says it of seed 3: the first task has the figure of the pre-training."""
    out = tmp_path / "outputs" / "tiny"
    run_of(recipe, out, {"random": RANDOM, "fedavg": FEDAVG})
    units = pd.read_csv(out / "report" / "units.csv")
    units.loc[units["unit"] == "seed 0, task 0", "stopped-at"] = 12.0
    late = (units["unit"] == "seed 3, task 0") & (units["row"] == "fedavg")
    units.loc[late, "stopped-at"] = float("inf")
    units.to_csv(out / "report" / "units.csv", index=False)
    text, values = made(tmp_path)
    assert [one["value"] for one in values if one["row"] == "fedavg"] == [
        "47", "50", "44", "inf", "46",
    ]  # fmt: skip
    more, _, _ = rows_of(text)
    assert more[3] == "Accuracy %<br>fedavg never, random 40.20; 5 seeds"
    assert more[5].endswith("Would need: a value that every seed reaches: 1 of 5 never did.")
    # The table that was written can be read again.
    (tmp_path / "outputs").rename(tmp_path / "elsewhere")
    assert made(tmp_path) == (text, values)


def test_two_tables_of_a_recipe_can_be_compared(recipe, tmp_path):
    """FedAvg with 3 participants a round is better by 10, 11, 9, 10, 10 points.

    Std √(1 / 2), and t(4) at 5 % / 2 is 3.495: half the interval is 3.495 · √(1 / 10) = 1.105.
    """
    of_both = ["participants=3", "participants=2"]
    write_recipe(recipe, read_recipe(recipe, ["participants=[2, 3]"]).effective)
    write_claims(
        recipe, [MORE | {"against": "fedavg", "table": of_both}, LESS | {"table": "participants=3"}]
    )
    out = tmp_path / "outputs" / "tiny"
    store, found = run_of(recipe, out, {"random": RANDOM, "fedavg": FEDAVG})
    for contest in contests(found):
        if contest.combination["participants"] == 3 and contest.entrant.label == "fedavg":
            runs = contest.reported(contest.entrant.candidates()[0])
            for run, value, off in zip(runs, FEDAVG, (10, 11, 9, 10, 10), strict=True):
                keep(store, run, [value + off] * 2)
    assert main(["report", str(out)]) == 0
    text, values = made(tmp_path)
    assert {one["table"] for one in values} == {"participants=2", "participants=3"}
    more, less = rows_of(text)
    assert more[2:5] == [
        "as set", r"Accuracy %: +10.00 \[+8.89, +11.11\]<br>fedavg (participants=3) 57.00, "
        "fedavg (participants=2) 47.00; 5 seeds", "**holds**",
    ]  # fmt: skip
    assert less[2] == "as set<br>participants=3"
    assert "random 40.20, fedavg 57.00; 5 seeds" in less[3]


def test_figures_of_what_there_are_columns_of(recipe, tmp_path):
    """A table of values with the summed step size, from elsewhere; no start's loss in it."""
    pictured = recipe.with_name("coprefl-pretraining.yaml")
    recipe.rename(pictured)
    write_claims(pictured, [MORE])
    lines = [
        f"coprefl-pretraining,{protocol},table,{row},{metric},{seed},{value + seed},2"
        for protocol in ("printed", "ratio")
        for row in ("random", "fedavg")
        for metric, value in {"accuracy": 50, "variance": 90, "step-size": 0.25}.items()
        for seed in SEEDS
    ]
    (tmp_path / "docs").mkdir()
    head = "recipe,protocol,table,row,metric,seed,value,tasks"
    (tmp_path / "docs" / "claims.csv").write_text("\n".join([head, *lines, ""]))
    text, _ = made(tmp_path)
    assert "![Accuracy and variance over the summed step size](claims_budget.png)" in text
    assert [file.name for file in (tmp_path / "docs").glob("*.png")] == ["claims_budget.png"]
