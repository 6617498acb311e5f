"""The runs and rounds of a recipe, counted by hand, also without its data, and measured rounds."""

import math

import pytest

from coprefl_flwr.cli import main
from coprefl_flwr.recipes import plan as plans
from coprefl_flwr.recipes.execute import Executor
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.plan import hours, measured, plan_of
from coprefl_flwr.recipes.search import check_runs
from tests.common.data import write_domain
from tests.common.recipes import tiny_recipe, write_recipe

GAMMAS = [{"coprefl": {"gamma": [0, 0.5, 1]}}]
RECIPE_KEYS = {"reference": None}


@pytest.fixture
def personal_of(tmp_path):
    """Return a function that makes a recipe of personalised methods.

    The recipe has two clients, each with 4 classes of 4 samples.
    """
    for name in ("one", "two"):
        write_domain(tmp_path / f"{name}.npz", 6)
    settings = {
        "study": "personalised",
        "personal-datasets": f"{tmp_path}/one.npz {tmp_path}/two.npz",
        "rounds": 3,
        "train-per-class": 4,
        "test-per-class": 8,
        "batch-size": 8,
    }
    content = {"title": "Two", "source": "Nobody", "settings": settings, "select": "test"}

    def read(*methods):
        of = content | {"methods": list(methods), "metrics": ["accuracy"], "figures": []}
        return read_recipe(write_recipe(tmp_path / "personal.yaml", of))

    return read


def sent_in(store, run):
    """Return the bytes that a run in the store counted as sent."""
    rows = [row for stage in run.study.stages for row in store.result(stage)["rounds"]]
    return sum(row["client-bytes-down"] + row["client-bytes-up"] for row in rows)


def test_measured_bytes_are_those_that_runs_send(recipe_of, store):
    recipe = recipe_of({"tasks": 1}, methods=["fedavg", "cyclic:rounds=2+scaffold", "centralised"])
    runs = check_runs(recipe)
    assert not Executor(store)(runs)
    planned = [
        sum(rounds * measured(kind)[1] for kind, rounds in row.rounds.items())
        for row in plan_of(recipe).rows
    ]
    assert planned == [sent_in(store, run) for run in runs]


@pytest.mark.parametrize(
    ("keys", "runs", "rounds"),
    [
        # Three runs with one task each choose a value; two seeds with two tasks each report it.
        ({"seeds": [0, 1]}, 3 + 2, 3 * (3 + 2) + 2 * (3 + 2 * 2)),
        ({"seeds": {"data": 2, "training": 3}}, 3 + 6, 3 * (3 + 2) + 6 * (3 + 2 * 2)),
        ({"select": "test"}, 3, 3 * (3 + 2 * 2)),
        # A quarter of three rounds and of two rounds is one round. The remaining value needs no
        # further run to be chosen.
        ({"search_by": "halving"}, 3 + 1, 3 * (1 + 1) + 3 + 2 * 2),
    ],
)
def test_runs_and_rounds_of_a_searched_row_by_hand(recipe_of, keys, runs, rounds):
    (row,) = plan_of(recipe_of(methods=GAMMAS, **keys)).rows
    assert (row.runs, row.rounds.total()) == (runs, rounds)


def test_start_of_two_tables_is_counted_once(recipe_of):
    """Both tables have the start's three rounds; their two tasks have two and three rounds."""
    (row,) = plan_of(recipe_of({"task-rounds": [2, 3]}, methods=["fedavg"])).rows
    assert (row.runs, row.rounds.total()) == (2, 3 + 2 * 2 + 2 * 3)
    # Three rounds, each with two steps of 0.05.
    assert row.step_sizes == [pytest.approx(0.3)]


def test_plan_without_the_data_has_runs_rounds_and_step_sizes(recipe_of):
    settings = {"dataset": "/nowhere/images.npz"}
    methods = ["fedavg", {"epochs": {"method": "fedavg", "local-epochs": 2}}]
    plan = plan_of(recipe_of({**settings, "local-steps": ""}, methods=methods))
    steps, epochs = plan.rows
    assert (steps.runs, steps.rounds.total()) == (1, 3 + 2 * 2)
    assert steps.step_sizes == [pytest.approx(3 * 5 * 0.05)]
    assert all(map(math.isnan, epochs.step_sizes))
    (line,) = hours(plan)
    assert line.startswith("No seconds and megabytes: the data are not there, or do not fit: ")


def test_round_is_measured(recipe_of, personal_of):
    for recipe in (recipe_of(methods=["cyclic:rounds=2+fedavg"]), personal_of("fedpcl")):
        (row,) = plan_of(recipe).rows
        assert all(measured(kind)[0] > 0 for kind in row.rounds)


def test_plan_command_prints_the_runs_and_times(tiny_images, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plans, "measured", lambda _: (3600.0, 1e6))
    path = write_recipe(tmp_path / "tiny.yaml", tiny_recipe(tiny_images, seeds=[0, 1]))
    assert main(["plan", str(path), "--set", "rounds=5"]) == 0
    text = capsys.readouterr().out
    lines = {line.split("  ")[0].strip(): line.split() for line in text.splitlines()}
    assert max(map(len, text.splitlines())) <= 80
    assert lines["coprefl"][1:3] == ["4", str(2 * (5 + 2) + 2 * (5 + 2 * 2))]
    assert lines["random"][1:4] == ["2", "8", "0"]
    assert "- tasks: 3.6e+03 seconds, 1 MB" in text
    rounds = 2 * (5 + 2) + 2 * (5 + 2 * 2) + 8 + 2 * (5 + 2 * 2)
    sums = f"{rounds} hours with one worker, {rounds}.0 MB sent"
    assert f"All rounds: {sums}, without evaluations." in text
