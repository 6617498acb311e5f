"""The recipes in examples/ can be read at both scales, and start to run at the small scale."""

import functools

import pytest

from coprefl_flwr.recipes import load
from coprefl_flwr.recipes.execute import attempt
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import TableRow, table_rows
from coprefl_flwr.studies.store import Store
from tests.common.simulation import ROOT

FOLDER = ROOT / "examples" / "recipes"
RECIPES = sorted(path.name for path in FOLDER.glob("*.yaml"))
PAGE = (FOLDER / "README.md").read_text()
PERSONALISED = [name for name in RECIPES if name.startswith("fedpcl")]
ALL_ROWS = ("coprefl-table-1b.yaml", "cyclic-table-2.yaml")
"""Recipes whose rows together contain most methods."""

SHARED_CLASSES = "coprefl-table-4.yaml"
"""The recipe of CIFAR-100 whose two phases share classes."""

ON_CIFAR100 = sorted(
    path.name for path in FOLDER.glob("coprefl-*.yaml") if ": CIFAR100\n" in path.read_text()
)

FAST = {
    "coprefl-table-1a.yaml",  # scenario I, a search
    "coprefl-table-1b.yaml",  # scenario II, data on the server
    "coprefl-table-24-photo.yaml",  # domains
    "cyclic-table-2.yaml",  # schedules, tested after each round
    "cyclic-table-1-shakespeare.yaml",  # text
    "fedpcl-table-2.yaml",  # personalised, several datasets
    "fedpcl-figure-2a.yaml",  # personalised, label shift
}
"""Recipes of each kind of study and data, which every run of the tests starts; `make test-all`
starts all."""

LEAST = ["rounds=1", "participants=2", "local-steps=1", "seeds=[0]"]
LEAST_TASKS = ["tasks=1", "task-rounds=1", "task-clients=2", "task-local-steps=1"]


@functools.cache
def read(name, changes=(), scale=""):
    """Return a recipe, which is read once."""
    return load.read_recipe(FOLDER / name, changes, scale or load.FULL)


def started(names):
    """Return the names of recipes as parameters; those that are not in FAST are marked slow."""
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_read_at_both_scales(name):
    full, small = read(name), read(name, scale="small")
    assert full.source.startswith(("CoPreFL", "CyclicFL", "FedPCL"))
    assert [row.label for row in small.rows] == [row.label for row in full.rows]
    for table_row in [*table_rows(full), *table_rows(small)]:  # Its studies fit, without the data.
        for trial in table_row.trials():
            assert table_row.reported(trial)[0].study.stages
    # The small scale has no backbones.
    assert set(full.compared) - set(small.compared) <= {"backbones"}
    # Every table that the paper printed is compared with one of our tables, but not at small scale.
    found = [full.paper_table(combination) for combination in full.combinations()]
    compared = sorted((table.table, str(table.where)) for table in found if table)
    assert compared == sorted((table.table, str(table.where)) for table in full.paper)
    assert small.paper == ()


@pytest.mark.parametrize("name", [name for name in ON_CIFAR100 if name != SHARED_CLASSES])
def test_classes_of_cifar100_are_those_of_park_et_al(name):
    """Earlier, each seed drew 20 classes, although the code of Park et al. lists them."""
    listed, drawn = (load.read_recipe(FOLDER / name, protocol=one) for one in ("", "drawn"))
    small = read(name, scale="small")
    assert listed.protocol == "listed"
    assert listed.settings["downstream-classes"] == ("list:80-99",)
    assert drawn.settings == {**listed.settings, "downstream-classes": ("20",)}
    assert drawn.paper == listed.paper
    assert small.settings["downstream-classes"] == ("20",)
    for recipe in (listed, drawn, small):  # The pre-training has all other classes: 0 to 79.
        assert "pretraining-classes" not in recipe.settings


def test_shared_classes_are_of_the_same_split():
    settings = read(SHARED_CLASSES).settings
    assert settings["pretraining-classes"] == ("list:0-79",)
    assert settings["downstream-classes"] == ("list:70-89",)  # Ten of both parts.


@pytest.mark.parametrize("name", RECIPES)
def test_numbers_of_runs_on_the_page_are_those_of_the_recipe(name):
    """A pre-training is counted by all settings except the settings of tasks, a task by all."""
    recipe = read(name)
    deciding, reported = Counted(), Counted()
    for table_row in table_rows(recipe):
        trials = table_row.trials()
        if table_row.validated:
            of_validation = table_row.combination | {"tasks": recipe.validation_tasks}
            for one in trials:
                deciding.add(Run.of(of_validation, one.method, *recipe.validation_seed))
        # If a row is searched on validation tasks, only one of its values is reported.
        for one in trials[:1] if table_row.validated else trials:
            for run in table_row.reported(one):
                reported.add(run)
    pairs = [(len(deciding.models), len(reported.models))]
    if reported.tasks:
        pairs.append((len(deciding.tasks), len(reported.tasks)))
    counted = [f"{before} + {then}" if before else f"{then}" for before, then in pairs]
    assert cells_of(name)[4:] == counted


def cells_of(name):
    """Return the cells of a recipe's row on the page."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| [{name[:-5]}](")]
    return [cell.strip() for cell in line.split("|")[1:-1]]


class Counted:
    """The different models and tasks of some runs."""

    def __init__(self):
        self.models, self.tasks = set(), set()

    def add(self, run):
        """Count a run; a random start is not trained, and a personalised study has no tasks."""
        found = {key: str(value) for key, value in run.settings.to_config().items()}
        if found["method"] != "random":
            self.models.add(frozenset(i for i in found.items() if not i[0].startswith("task")))
        for task in range(run.settings.tasks if found["study"] == "starts" else 0):
            self.tasks.add((frozenset(found.items()), task))


@pytest.mark.parametrize("name", started(PERSONALISED))
def test_personalised_recipe_runs_two_rounds(name, tmp_path):
    recipe = read(name, ("rounds=2",), "small")
    store = Store(tmp_path)
    for table_row in table_rows(recipe)[: None if name == "fedpcl-table-2.yaml" else 1]:
        run = table_row.reported(table_row.trials()[0])[0]
        assert attempt(run, store) == ""
        assert store.done(run.study.stages)
        assert len(store.result(run.main)["rounds"]) == 2


@pytest.mark.parametrize("name", started(sorted({*RECIPES} - {*PERSONALISED})))
def test_recipe_runs_one_round(name, tmp_path):
    """Run one round of the pre-training and of a task, on data in the package."""
    tasks = read(name).settings["tasks"][0]
    changes = LEAST + (LEAST_TASKS if tasks else [])
    recipe = read(name, tuple(changes), "small")
    trained = [row for row in recipe.rows if row.method != "random"]
    store = Store(tmp_path)
    for row in trained if name in ALL_ROWS else trained[:1]:
        table_row = TableRow(recipe, recipe.combinations()[0], row)
        run = table_row.reported(row.trials()[0])[0]
        assert attempt(run, store) == ""
        assert store.done(run.study.stages)
        assert len(store.result(run.main)["rounds"]) == run.main.rounds
        assert len(run.client_stages) == run.settings.tasks
        for stage in run.client_stages:
            assert [row["client"] for row in store.result(stage)["rows"]] == [0, 1]
