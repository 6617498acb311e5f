"""The recipes in examples/: each can be read at both scales, and begins to run at the small one."""

import pytest

from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.runs import ModelStore
from coprefl_flwr.recipes.sweep import Contest, contests, make
from coprefl_flwr.rounds.progress import Progress
from tests.simulation import ROOT

FOLDER = ROOT / "examples" / "recipes"
RECIPES = sorted(path.name for path in FOLDER.glob("*.yaml"))
PERSONALISED = [name for name in RECIPES if name.startswith("fedpcl")]
ALL_ROWS = ("coprefl-table-1b.yaml", "cyclic-table-2.yaml")
"""Recipes whose rows together are most methods."""

LEAST = ["rounds=1", "participants=2", "local-steps=1", "seeds=[0]"]
LEAST_TASKS = ["tasks=1", "task-rounds=1", "task-clients=2", "task-local-steps=1"]


@pytest.mark.parametrize("name", RECIPES)
def test_it_can_be_read(name):
    full, small = read_recipe(FOLDER / name), read_recipe(FOLDER / name, (), "small")
    assert full.source.startswith(("CoPreFL", "CyclicFL", "FedPCL"))
    assert [row.label for row in small.entrants] == [row.label for row in full.entrants]
    # Backbones are none at the small scale, and what the paper has of several stands beside once.
    assert set(full.compared) - set(small.compared) <= {"backbones"}
    # Every table that the paper printed stands beside one of ours, at both scales.
    for recipe in (full, small):
        found = [recipe.paper_table(combination) for combination in recipe.combinations()]
        beside = sorted((table.table, str(table.where)) for table in found if table)
        assert beside == sorted((table.table, str(table.where)) for table in recipe.paper)
    printed = [table.table for table in full.paper]
    if "backbones" in full.compared:
        printed = printed[: max(1, len(small.paper))] if printed else []
    assert [table.table for table in small.paper] == printed
    assert name in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", PERSONALISED)
def test_a_personalised_one_begins_to_run(name, tmp_path):
    recipe = read_recipe(FOLDER / name, ["rounds=2"], "small")
    store = ModelStore(tmp_path)
    for contest in contests(recipe)[: None if name == "fedpcl-table-2.yaml" else 1]:
        run = contest.reported(contest.entrant.candidates()[0])[0]
        make(run, store, Progress(0))
        assert store.done(run)
        assert len(store.result(run.main)["rounds"]) == 2


@pytest.mark.parametrize("name", sorted({*RECIPES} - {*PERSONALISED}))
def test_it_begins_to_run(name, tmp_path):
    """A round of the pre-training and of a task, on embedded data."""
    tasks = read_recipe(FOLDER / name).settings["tasks"][0]
    changes = LEAST + (LEAST_TASKS if tasks else [])
    recipe = read_recipe(FOLDER / name, changes, "small")
    trained = [row for row in recipe.entrants if row.method != "random"]
    store = ModelStore(tmp_path)
    for row in trained if name in ALL_ROWS else trained[:1]:
        contest = Contest(recipe, recipe.combinations()[0], row)
        run = contest.reported(row.candidates()[0])[0]
        make(run, store, Progress(0))
        assert store.done(run)
        assert len(store.result(run.main)["rounds"]) == run.main.rounds
        assert len(run.measured) == run.settings.tasks
        for stage in run.measured:
            assert [row["client"] for row in store.result(stage)["rows"]] == [0, 1]
