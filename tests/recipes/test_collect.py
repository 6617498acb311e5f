"""From the store to a report: the place of every number, and missing results."""

import math
import os

import numpy as np
import pandas as pd
import pytest

from coprefl_flwr.recipes import collect as module
from coprefl_flwr.recipes.collect import collect
from coprefl_flwr.recipes.recipe import table_name
from coprefl_flwr.recipes.search import table_rows
from coprefl_flwr.report import text_tables, write_report
from coprefl_flwr.report.comparison import numbers, of_clients
from coprefl_flwr.report.tables import NONE
from coprefl_flwr.studies.results import problems
from coprefl_flwr.studies.store import write_result
from tests.common.recipes import keep, keep_losses, result_file


def keep_all(store, recipe, accuracy):
    """Put every run into the store; `accuracy` is called with start, seed and task."""
    for table_row in table_rows(recipe):
        for candidate in table_row.trials():
            deciding = table_row.selection_runs(candidate) if table_row.searched else []
            for run in [*deciding, *table_row.reported(candidate)]:
                tasks = range(run.settings.tasks)
                values = [accuracy(run.name, run.settings.seed, task) for task in tasks]
                keep(store, run, values)


def test_each_value_is_at_its_task_in_the_table(store, recipe_of):
    recipe = recipe_of(seeds=[0, 1])
    base = {"random": 20, "fedavg": 40, "coprefl:gamma=0.0": 50, "coprefl:gamma=1.0": 60}
    keep_all(store, recipe, lambda start, seed, task: base[start] + 2 * (seed % 7) + task)
    report = collect(recipe, store, {})
    (table,) = report.comparisons
    assert table.units == ["seed 0, task 0", "seed 0, task 1", "seed 1, task 0", "seed 1, task 1"]
    assert {row.name: row.values["accuracy"].tolist() for row in table.rows} == {
        "random": [20, 21, 22, 23],
        "fedavg": [40, 41, 42, 43],
        "coprefl:gamma=1.0": [60, 61, 62, 63],
    }
    assert all((row.values["variance"] == 0).all() for row in table.rows)
    assert (table.name, table.title, table.failed) == ("table", "A tiny comparison", [])
    assert (table.reference, table.tested_against.chosen) == ("coprefl", "gamma=1.0")
    # The tasks of two seeds are different tasks.
    rows = table.rows[0].client_rows
    assert list(rows["task"]) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(rows["start"]) == {"random"}
    assert list(table.rows[0].curves["task"]) == [0, 1, 2, 3]
    assert {start for row in table.rows for start in row.curves["start"]} == {
        "random", "fedavg", "coprefl",
    }  # fmt: skip


def test_missing_results_are_nan_and_listed(store, recipe_of, tmp_path):
    recipe = recipe_of(seeds=[0, 1], select="all")
    keep_all(store, recipe, lambda start, seed, task: 50)
    runs = {
        (run.name, run.settings.seed): run
        for table_row in table_rows(recipe)
        for candidate in table_row.trials()
        for run in table_row.reported(candidate)
    }
    result_file(store, runs["fedavg", 1], 0).unlink()
    for number in (0, 1):
        result_file(store, runs["coprefl:gamma=1.0", 0], number).unlink()
    report = collect(recipe, store, {runs["fedavg", 1].identity: "it rained"})
    (table,) = report.comparisons
    values = {row.name: np.isnan(row.values["accuracy"]).tolist() for row in table.rows}
    assert values == {
        "random": [False] * 4,
        "fedavg": [False, False, True, False],
        "coprefl:gamma=0.0": [False] * 4,
        "coprefl:gamma=1.0": [True, True, False, False],
    }
    assert table.failed == ["fedavg, seed 1: it rained", "coprefl:gamma=1.0, seed 0: not run yet"]
    assert "it rained" in write_report(report, tmp_path / "report").read_text()


def test_unfinished_report_states_the_number_of_seeds(store, recipe_of):
    """Before, it had dashes, and numbers of one seed next to numbers of three seeds."""
    recipe = recipe_of(seeds=[0, 1, 2], methods=["random", "fedavg", "cyclic"], reference="random")
    wanted = {"random": 3, "fedavg": 1, "cyclic": 0}
    for table_row in table_rows(recipe):
        for run in table_row.reported(table_row.trials()[0])[: wanted[table_row.row.label]]:
            keep(store, run, [50, 60] if run.name == "fedavg" else [40, 50])
    (table,) = collect(recipe, store, {}).comparisons
    lines = text_tables(table).splitlines()
    names = ("random", "FedAvg", "Cyclic")
    random, fedavg, cyclic = (
        next(line for line in lines if line.startswith(name)) for name in names
    )
    assert "seeds" not in random
    assert fedavg.split()[:8] == ["FedAvg", "(1", "of", "3", "seeds)", "55.00", "±", "7.07"]
    assert cyclic.split() == ["Cyclic", "(0", "of", "3", "seeds)", NONE, NONE]


def test_long_values_are_shortened_in_file_names(store, recipe_of, tmp_path):
    """Before, the report could not be written after all runs: "File name too long"."""
    assert table_name({"model": "a" * 94}) == f"model={'a' * 94}"
    assert table_name({"model": "сеть.py:Net"}) == "model=сеть.py-Net"
    assert len(table_name({"model": "網" * 90}).encode()) < 120
    layers = {"data-dir": ["a" * 300, "a" * 301]}
    recipe = recipe_of(layers, methods=["random"], reference=None, figures=["curves"])
    report = collect(recipe, store, {})
    assert [len(table.name) for table in report.comparisons] == [109, 109]
    assert write_report(report, tmp_path / "report").exists()


def test_each_combination_has_a_table_with_its_paper(store, recipe_of):
    paper = {
        "columns": ["accuracy"],
        "tables": [
            {"table": "1(b)", "where": {"task-method": "fedprox:mu=1"}, "rows": {"fedavg": 7}}
        ],
    }
    recipe = recipe_of(
        {"task-method": ["fedavg", "fedprox:mu=1"]},
        methods=["random", "fedavg"], reference="fedavg", paper=paper,
    )  # fmt: skip
    report = collect(recipe, store, {})
    assert [(table.name, table.title) for table in report.comparisons] == [
        ("task-method=fedavg", "task-method = fedavg"),
        ("task-method=fedprox-mu=1", "task-method = fedprox:mu=1"),
    ]
    assert [table.source for table in report.comparisons] == ["", "Nobody, 2026, Table 1(b)"]
    assert [table.paper for table in report.comparisons] == [
        {},
        {"fedavg": {"accuracy": (7.0, None)}},
    ]
    assert report.settings["task-method"] == ["fedavg", "fedprox:mu=1"]
    assert report.settings["rounds"] == 3


def pretraining(recipe_of, **keys):
    """Return a recipe without tasks: two labels of one start, and another start."""
    methods = [
        "fedavg",
        {"again": {"method": "fedavg"}},
        {"Cyclic+FedAvg": {"method": "cyclic:rounds=1+fedavg:rounds=2"}},
    ]
    metrics = ["final", "best", "best-round", "catches-up", "models"]
    content = {"methods": methods, "metrics": metrics, "reference": "fedavg", **keys}
    return recipe_of({"tasks": 0, "test-every": 1}, **content)


def test_pretraining_metrics_are_those_of_its_tests(store, recipe_of):
    """In seed 1, the chain never reaches the accuracy of FedAvg."""
    recipe = pretraining(recipe_of, seeds=[0, 1])
    chain = "cyclic:rounds=1+fedavg:rounds=2"
    tested = {
        ("fedavg", 0): [30, 50, 40],
        ("fedavg", 1): [29, 49, 39],
        (chain, 0): [20, 50, 60],
        (chain, 1): [20, 30, 30],
    }
    for table_row in table_rows(recipe):
        for run in table_row.reported(table_row.trials()[0]):
            keep(store, run, tested=tested[str(run.settings.method), run.settings.seed])
    (table,) = collect(recipe, store, {}).comparisons
    assert table.units == ["seed 0", "seed 1"]
    fedavg, again, cyclic = (row.values.to_dict("list") for row in table.rows)
    assert fedavg["final"] == again["final"] == [40, 39]
    assert fedavg["best"] == [50, 49]
    assert fedavg["best-round"] == [2, 2]
    assert all(map(math.isnan, fedavg["catches-up"]))
    assert cyclic["catches-up"] == [2, math.inf]
    # A start with two labels was trained once: three rounds of four models.
    assert fedavg["models"] == again["models"] == [12.0, 12.0]
    assert [row.switch for row in table.rows] == [0, 0, 1]
    assert list(table.rows[0].rounds["seed"]) == ["seed 0"] * 3 + ["seed 1"] * 3
    assert list(table.rows[0].rounds["round"]) == [1, 2, 3, 1, 2, 3]


def test_landscape_is_measured_only_for_its_figure(store, recipe_of, monkeypatch):
    calls = []
    grid = pd.DataFrame(np.ones((3, 3)), [-1, 0, 1], [-1, 0, 1])
    monkeypatch.setattr(module, "loss_around", lambda _, run: calls.append(run.key) or grid)
    plain = pretraining(recipe_of)
    for table_row in table_rows(plain)[1:]:
        keep(store, table_row.reported(table_row.trials()[0])[0], tested=(1, 2))
    collect(plain, store, {})
    assert calls == []
    (table,) = collect(pretraining(recipe_of, figures=["landscape"]), store, {}).comparisons
    assert [row.landscape is grid for row in table.rows] == [True] * 3


def test_starts_that_did_not_learn_are_listed_as_warnings(store, recipe_of, tmp_path):
    """They are no better than the row `random`; the losses are those of another scale."""
    methods = ["random", "fedavg", {"slow": {"method": "fedavg", "learning-rate": 1e-6}},
               {"fast": {"method": "fedavg", "learning-rate": 1e6}},
               {"chain": {"method": "cyclic"}}]  # fmt: skip
    recipe = recipe_of(methods=methods, reference="fedavg")
    losses = [(), (9.0, 8.5, 7.5), (9.0, 8.99, 8.98), (9.5, 1.96e31), (9.0, 12.5)]
    tasks = [[60, 70], [70, 80], [65, 65], [61, 70], [90, 90]]
    for table_row, of_row, accuracies in zip(table_rows(recipe), losses, tasks, strict=True):
        for run in table_row.reported(table_row.trials()[0]):
            keep(store, run, accuracies, losses=of_row)
    report = collect(recipe, store, {})
    (table,) = report.comparisons
    assert [len(row.problems) for row in table.rows] == [0, 0, 1, 1, 0]
    assert report.warnings == [
        "slow, seed 0: did not learn: 65.00 % (random: 65.00 %).",
        "fast, seed 0: diverged: loss 1.96e+31 (first round: 9.500).",
    ]
    assert report.warnings[1] in write_report(report, tmp_path / "report").read_text()
    assert list(table.rows[4].rounds["chained"]) == [True, True]


def test_replies_left_out_are_counted(store, recipe_of):
    recipe = recipe_of(methods=["fedavg"], reference=None)
    (run,) = table_rows(recipe)[0].reported(recipe.rows[0].trials()[0])
    keep(store, run, [60, 70])
    lost = {"replies-asked": 6, "replies-left-out": 2}
    rounds = [{"round": 1, "loss": 1.0, **lost}, {"round": 2, "loss": 1.0}]
    rounds.append({"round": 3, "loss": 1.0, "replies-asked": 3, "replies-left-out": 1})
    write_result(store.folder(run.main), [], [{"phase": "pretraining"} | row for row in rounds])
    assert collect(recipe, store, {}).warnings == [
        "fedavg, seed 0: 3 of 9 replies were left out in 2 of the 3 rounds."
    ]


def test_search_table_has_every_value(store, recipe_of):
    recipe = recipe_of()
    keep_all(store, recipe, lambda start, seed, task: 60 if start.endswith("1.0") else 50)
    (table,) = collect(recipe, store, {}).comparisons
    assert [
        (entry.label, entry.values, entry.score, entry.chosen) for entry in table.search_entries
    ] == [
        ("coprefl", "gamma=0.0", 50.0, False),
        ("coprefl", "gamma=1.0", 60.0, True),
    ]
    assert collect(recipe_of(select="all"), store, {}).comparisons[0].search_entries == []


def test_report_has_the_provenance_without_folders(store, recipe_of, tmp_path):
    """The provenance is about the results, not the report; folders of a user's files are hidden."""
    net = tmp_path / "secret" / "net.py"
    net.parent.mkdir()
    net.write_text("from tests.common.networks import network\n")
    recipe = recipe_of({"model": f"{net}:network"}, methods=["fedavg"], reference=None, seeds=[3])
    (run,) = table_rows(recipe)[0].reported(recipe.rows[0].trials()[0])
    keep(store, run, [60, 70])
    for file in (store.folder(stage) / "result.json" for stage in run.study.stages):
        os.utime(file, (86_400 * 365, 86_400 * 365))
    both = [f"{net}:network", "tests.common.networks:network"]
    compared = collect(recipe_of({"model": both}, methods=["fedavg"], reference=None), store, {})
    assert compared.comparisons[0].title == "model = net.py:network"
    report = collect(recipe, store, {})
    assert report.provenance == {
        "versions": "torch 2.0",
        "commit of the package": "not recorded, as the package did not run from a git checkout",
        "machine": "An engine, 2 cores",
        "date (UTC)": "1971-01-01",
        "seeds": "3",
    }
    assert report.settings["model"] == "net.py:network"
    assert report.defaults["min-replies"] == 1
    assert "local-steps = 2" in report.methods["fedavg"]
    page = write_report(report, tmp_path / "report").read_text()
    assert "An engine, 2 cores" in (tmp_path / "report" / "provenance.md").read_text()
    assert "secret" not in page


def test_without_the_row_random_no_start_is_called_idle(store, recipe_of):
    """The loss stays at that of guessing, ln 6, which another loss could have too."""
    recipe = recipe_of(methods=["fedavg"], reference=None)
    (run,) = table_rows(recipe)[0].reported(recipe.rows[0].trials()[0])
    keep(store, run, [10, 10], losses=[1.792, 1.792])
    assert collect(recipe, store, {}).warnings == []
    keep(store, run, [10, 10], losses=[1.792, 20.0])
    problem = "diverged: loss 20.000 (first round: 1.792)"
    assert problems(run.study, store) == {run.main: problem}


def test_gamma_of_a_row_is_that_of_the_phase_that_has_one(store, recipe_of):
    methods = [
        "fedavg",
        "coprefl",
        {"ours": {"method": "coprefl-std", "gamma": 0.2}},
        {"after": {"method": "cyclic:rounds=1+coprefl:rounds=2,gamma=1"}},
    ]
    recipe = pretraining(recipe_of, methods=methods)
    for table_row in table_rows(recipe):
        keep(store, table_row.reported(table_row.trials()[0])[0], tested=(1, 2))
    (table,) = collect(recipe, store, {}).comparisons
    none, *gammas = [row.gamma for row in table.rows]
    assert math.isnan(none)
    assert gammas == [0.5, 0.2, 1.0]


def test_failed_validation_run_is_listed(store, recipe_of):
    recipe = recipe_of()
    keep_all(store, recipe, lambda start, seed, task: 50)
    (table_row,) = [table_row for table_row in table_rows(recipe) if table_row.searched]
    (lost,) = table_row.selection_runs(table_row.trials()[0])
    for file in store.folder(lost.main).rglob("*.*"):
        file.unlink()
    (table,) = collect(recipe, store, {lost.identity: "no memory"}).comparisons
    assert table.failed == [f"{lost.name}, seed 100: no memory"]


def test_rounds_of_all_phases_are_counted(store, recipe_of):
    recipe = recipe_of(methods=["random", "cyclic:rounds=1+fedavg"], reference="random")
    random, cyclic = (row.reported(row.trials()[0])[0] for row in table_rows(recipe))
    keep(store, random, [40, 50])
    keep(store, cyclic, [60, 70], tested=[30] * 4)
    rows = collect(recipe, store, {}).comparisons[0].rows
    assert [row.values["rounds"].iloc[0] for row in rows] == [0, 4]


def test_table_without_classes_is_of_the_loss(store, recipe_of, tmp_path):
    """The columns of the accuracy become those of the loss, and the lowest loss is the best."""
    recipe = recipe_of(
        methods=["random", {"coprefl": {"gamma": [0.0, 1.0]}}], reference="random",
        metrics=["accuracy", "variance-beyond", "worst-10%", "loss:best-10%"],
    )  # fmt: skip
    random, coprefl = table_rows(recipe)
    keep_losses(store, random.reported(random.trials()[0])[0], [0.04, 0.06])
    for trial, loss in zip(coprefl.trials(), (0.3, 0.2), strict=True):
        keep_losses(store, coprefl.selection_runs(trial)[0], [loss])
        keep_losses(store, coprefl.reported(trial)[0], [0.02, 0.08])
    report = collect(recipe, store, {})
    (table,) = report.comparisons
    assert table.metrics[:3] == ["loss", "loss:worst-10%", "loss:best-10%"]
    assert [row.name for row in table.rows] == ["random", "coprefl:gamma=1.0"]
    assert table.rows[0].values["loss"].tolist() == [0.04, 0.06]
    assert report.warnings == ["coprefl:gamma=1.0, seed 0: did not learn: 0.0500 (random: 0.0500)."]
    assert any("chosen by the mean loss on" in note for note in report.notes)
    write_report(report, tmp_path / "report")
    search = (tmp_path / "report/tables/table-search.md").read_text()
    assert "| coprefl | gamma=1.0 | 0.200 | **chosen** |" in search


def test_crossed_seeds_are_paired_by_draw(store, recipe_of, tmp_path):
    """fedavg minus random, in two tasks: 10 and 14 with draw 0, 22 and 30 with draw 1.

    The draws' means are 12 and 26: the difference is 19, with deviation sqrt(2) * 7.
    """
    more = {(0, 3): 10, (0, 4): 14, (1, 3): 22, (1, 4): 30}
    recipe = recipe_of(
        seeds={"data": 2, "training": [3, 4]}, methods=["random", "fedavg"], reference="random",
        figures=["curves"], margin=2,
    )  # fmt: skip

    def runs():
        for table_row in table_rows(recipe):
            for run in table_row.reported(table_row.trials()[0]):
                yield run, (run.settings.draw, run.settings.seed)

    for run, seeds in runs():
        base = 20 + 3 * seeds[0] + (more[seeds] if run.name == "fedavg" else 0)
        keep(store, run, [base, base + 1], losses=[1.0, 0.9] * (run.name == "fedavg"))
    report = collect(recipe, store, {})
    (table,) = report.comparisons
    assert table.units[:3] == [
        "draw 0, seed 3, task 0", "draw 0, seed 3, task 1", "draw 0, seed 4, task 0",
    ]  # fmt: skip
    found = numbers(table).set_index(["row", "metric"]).loc["fedavg", "accuracy"]
    assert (found["difference"], found["pairs"], found["n"]) == (19.0, 2, 8)
    assert found["difference-std"] == pytest.approx(math.sqrt(2) * 7)
    assert report.provenance["seeds"] == "data [0, 1], training [3, 4]"
    clients = of_clients(table).set_index(["start", "draw", "seed", "task", "client"])["value"]
    assert clients["fedavg", 1, 4, 1, 0] == 20 + 3 + 30 + 1
    assert len(clients) == 2 * 2 * 2 * 2 * 2
    page = " ".join(write_report(report, tmp_path / "report").read_text().split())
    assert "2 draws with 2 training seeds each" in page
    assert "<h3>Where the differences come from</h3>" in page
    assert "more draws would find a difference of 2 points between FedAvg and random" in page
    assert (tmp_path / "report" / "figures" / "table-curves.png").exists()
    # One training seed of a draw is missing: the draw's mean is that of the other.
    lost = next(run for run, seeds in runs() if run.name == "fedavg" and seeds == (1, 4))
    result_file(store, lost, 0).unlink()
    result_file(store, lost, 1).unlink()
    (table,) = collect(recipe, store, {}).comparisons
    found = numbers(table).set_index(["row", "metric"]).loc["fedavg", "accuracy"]
    assert (found["difference"], found["pairs"]) == ((12 + 22) / 2, 2)
    assert table.failed == ["fedavg, draw 1, seed 4: not run yet"]
    assert table.rows[1].unfinished == "3 of 4 seeds"
