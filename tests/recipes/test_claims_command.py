"""`coprefl claims`: from runs of recipes to a table of values, verdicts and a page."""

import csv
import math

import pytest
from markdown_it import MarkdownIt
from scipy import stats

from coprefl_flwr.recipes import gathering
from coprefl_flwr.recipes.collect import collect
from coprefl_flwr.recipes.command_line import main
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.runs import ModelStore
from coprefl_flwr.recipes.sweep import contests
from tests.tiny_recipe import keep, result_file, tiny_recipe, write_recipe

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
    """A recipe file in a folder, and its content."""
    (tmp_path / "claims").mkdir()
    content = tiny_recipe(
        tiny_images,
        methods=["random", "fedavg"],
        reference="random",
        seeds=SEEDS,
        claims=[MORE, LESS, OPEN],
    )
    path = write_recipe(tmp_path / "claims" / "tiny.yaml", content)
    path.write_text("# Images of 4 x 4:\n# nobody's.\n\n# Not this.\n" + path.read_text())
    return path


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
    return store, found


def made(tmp_path):
    """Make the page; return it and the lines of its table of values."""
    page = tmp_path / "docs" / "claims.md"
    arguments = ["claims", tmp_path / "claims", "--outputs", tmp_path / "outputs", "--page", page]
    assert main([str(one) for one in arguments]) == 0
    with page.with_suffix(".csv").open(newline="") as file:
        return page.read_text(), list(csv.DictReader(file))


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
        "recipe": "tiny", "protocol": "as set", "where": "", "row": "random",
        "metric": "accuracy", "seed": "0", "value": "40", "tasks": "2",
    }  # fmt: skip


def test_the_page_can_be_made_where_the_results_are_not(recipe, tmp_path):
    run_of(recipe, tmp_path / "outputs" / "tiny", {"random": RANDOM, "fedavg": FEDAVG})
    before = made(tmp_path)
    (tmp_path / "outputs").rename(tmp_path / "elsewhere")
    assert made(tmp_path) == before


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
    text, values = made(tmp_path)
    assert [one["seed"] for one in values if one["row"] == "fedavg"] == ["0", "1"]
    assert "Accuracy %: +7.50<br>fedavg 48.50, random 41.00; 2 seeds" in rows_of(text)[0][3]
    assert rows_of(text)[0][4:] == ["open", "It learns.<br>Would need: at least 3 seeds."]


def test_runs_of_other_settings_are_left_out(recipe, tmp_path, caplog):
    worth = {"random": RANDOM, "fedavg": FEDAVG}
    run_of(recipe, tmp_path / "outputs" / "few", worth, ["task-rounds=1"])
    run_of(recipe, tmp_path / "outputs" / "cut", worth, extra="scale: cut\n")
    other = write_recipe(tmp_path / "other.yaml", read_recipe(recipe).effective | {"title": "B"})
    run_of(other, tmp_path / "outputs" / "other", worth)
    assert made(tmp_path)[1] == []
    said = [record.message.partition("outputs/")[2] for record in caplog.records]
    assert "few is left out: it has another value of task-rounds than the recipe" in said
    assert "cut is left out: it was run at a small scale" in said
    assert len([line for line in said if "left out" in line]) == 2


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
    content = {**read_recipe(recipe).effective, "protocols": PROTOCOLS}
    write_recipe(recipe, content | {"claims": [MORE | {"cause": causes}, LESS, OPEN]})
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


def refused(tmp_path, capsys, folder=None):
    page, outputs = tmp_path / "claims.md", tmp_path / "outputs"
    arguments = ["claims", folder or tmp_path / "claims", "--outputs", outputs, "--page", page]
    assert main([str(one) for one in arguments]) == 1
    assert not page.exists()
    return capsys.readouterr().err


def test_what_is_refused(recipe, tmp_path, capsys):
    assert "there is no folder" in refused(tmp_path, capsys, tmp_path / "nowhere")
    assert "has no recipe with claims" in refused(tmp_path, capsys, tmp_path)
    (tmp_path / "claims.csv").write_text("a,b\n1,2\n")
    assert "its columns must be recipe, protocol, where" in refused(tmp_path, capsys)
    (recipe.parent / "again.yaml").write_text(recipe.read_text())
    assert "has the title too" in refused(tmp_path, capsys)


def test_a_start_that_never_came_to_its_loss_is_no_verdict(recipe, tmp_path, monkeypatch):
    """As `collect` says it of seed 3: the first task has the figure of the pre-training."""
    run_of(recipe, tmp_path / "outputs" / "tiny", {"random": RANDOM, "fedavg": FEDAVG})

    def collected(recipe, store, failed):
        report = collect(recipe, store, failed)
        stopped = [math.nan] * 10
        stopped[0], stopped[6] = 12.0, math.inf
        report.comparisons[0].measured[1].values["stopped-at"] = stopped
        return report

    monkeypatch.setattr(gathering, "collect", collected)
    text, values = made(tmp_path)
    assert [one["value"] for one in values if one["row"] == "fedavg"] == [
        "47", "50", "44", "inf", "46",
    ]  # fmt: skip
    more, _, _ = rows_of(text)
    assert more[3] == "Accuracy %<br>fedavg never, random 40.20; 5 seeds"
    assert more[5].endswith("Would need: a value that every seed reaches: 1 of 5 never did.")


def test_two_tables_of_a_recipe_can_be_compared(recipe, tmp_path):
    """FedAvg with 3 participants a round is better by 10, 11, 9, 10, 10 points.

    Std √(1 / 2), and t(4) at 5 % / 2 is 3.495: half the interval is 3.495 · √(1 / 10) = 1.105.
    """
    by_participants = {
        **MORE,
        "of": {"row": "fedavg", "where": {"participants": 3}},
        "against": {"row": "fedavg", "where": {"participants": 2}},
    }
    content = {
        **read_recipe(recipe, ["participants=[2, 3]"]).effective,
        "claims": [by_participants, LESS | {"where": {"participants": 3}}],
    }
    write_recipe(recipe, content)
    store, found = run_of(
        recipe, tmp_path / "outputs" / "tiny", {"random": RANDOM, "fedavg": FEDAVG}
    )
    for contest in contests(found):
        if contest.combination["participants"] == 3 and contest.entrant.label == "fedavg":
            runs = contest.reported(contest.entrant.candidates()[0])
            for run, value, off in zip(runs, FEDAVG, (10, 11, 9, 10, 10), strict=True):
                keep(store, run, [value + off] * 2)
    text, values = made(tmp_path)
    assert {one["where"] for one in values} == {"participants=2", "participants=3"}
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
    lines = [
        f"coprefl-pretraining,{protocol},,{row},{metric},{seed},{value + seed},2"
        for protocol in ("printed", "ratio")
        for row in ("random", "fedavg")
        for metric, value in {"accuracy": 50, "variance": 90, "step-size": 0.25}.items()
        for seed in SEEDS
    ]
    (tmp_path / "docs").mkdir()
    head = "recipe,protocol,where,row,metric,seed,value,tasks"
    (tmp_path / "docs" / "claims.csv").write_text("\n".join([head, *lines, ""]))
    text, _ = made(tmp_path)
    assert "![Accuracy and variance over the summed step size](claims_budget.png)" in text
    assert [file.name for file in (tmp_path / "docs").glob("*.png")] == ["claims_budget.png"]
