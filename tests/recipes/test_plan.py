"""The costs of a recipe, counted by hand, even if a published dataset is not downloaded."""

import math

import pytest

from coprefl_flwr.cli import main
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes import command_line
from coprefl_flwr.recipes.execute import Executor
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.plan import pace, plan_of, plan_text, totals
from coprefl_flwr.recipes.search import check_runs
from coprefl_flwr.strategies import FedAvg
from coprefl_flwr.studies.costs import Counts
from tests.common.data import write_domain
from tests.common.recipes import keep, tiny_recipe, write_recipe

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


def row_of(recipe, store, label):
    """Return one row of a recipe's plan."""
    (row,) = [row for row in plan_of(recipe, store).rows if row.label == label]
    return row


def sent_in(store, run):
    """Return the bytes that a run in the store counted as sent."""
    rows = [row for stage in run.study.stages for row in store.result(stage)["rounds"]]
    return sum(row["client-bytes-down"] + row["client-bytes-up"] for row in rows)


# Three clients take two steps of 8 samples in each of three rounds. Each client has 28 samples, of
# which 6 are for queries.
@pytest.mark.parametrize(
    ("method", "gradients"),
    [("fedavg", 3 * 3 * 16), ("coprefl", 3 * 3 * (16 + 6)), ("cyclic", 3 * 3 * 16)],
)
def test_counts_of_a_pretraining_by_hand(recipe_of, store, method, gradients):
    recipe = recipe_of({"tasks": 0}, methods=[method], metrics=["final"], seeds=[0, 1])
    row = row_of(recipe, store, method)
    assert (row.deciding, row.reported) == (0, 2)
    assert (row.counts.steps, row.counts.gradients) == (2 * 18, pytest.approx(2 * gradients, 0.02))


def test_counts_of_fedpcl_by_hand(personal_of, store):
    row = row_of(personal_of("fedpcl"), store, "fedpcl")
    # Two clients train in three rounds, each an epoch of 16 samples in batches of 8.
    assert (row.reported, row.counts.steps, row.counts.gradients) == (1, 2 * 3 * 2, 2 * 3 * 16)
    # Prototypes of all 16 samples in each round, and the test at the end. Pixels are the features.
    assert row.counts.outputs == 2 * (3 * 16 + 32)


STARTS = ["fedavg", "coprefl", "cyclic:rounds=2+fedavg", "scaffold", "centralised", "random"]
STARTS += [{"rates": {"method": "fedmeta", "variant": "meta-sgd"}}]


def test_plan_has_the_bytes_that_runs_send_and_leaves_out_finished_runs(recipe_of, store):
    """All arrays of this network are trained. With buffers, a gradient is smaller than a model."""
    settings = {"tasks": 1, "model": "tests.common.networks:plain_network"}
    recipe = recipe_of(settings, methods=STARTS)
    planned = [row.counts.sent for row in plan_of(recipe, store).rows]
    runs = check_runs(recipe)
    assert not Executor(store)(runs)
    assert planned == [sent_in(store, run) for run in runs]
    assert plan_of(recipe, store).together.counts == Counts()
    assert "14 stages are already done" in totals(recipe, store)


def test_plan_of_personalised_methods_has_the_bytes_that_runs_send(personal_of, store):
    recipe = personal_of("fedavg", "fedproto", "fedrep", "solo", "fedpcl")
    *planned, fedpcl = [row.counts.sent for row in plan_of(recipe, store).rows]
    runs = check_runs(recipe)
    assert not Executor(store)(runs)
    *sent, of_fedpcl = [sent_in(store, run) for run in runs]
    assert planned == sent
    # In the first of FedPCL's three rounds there are no prototypes of other clients.
    assert of_fedpcl < fedpcl < 3 / 2 * of_fedpcl


def test_run_of_two_rows_is_planned_once(recipe_of, store):
    recipe = recipe_of(methods=["fedavg", {"again": {"method": "fedavg:rounds=3"}}])
    assert [row.reported for row in plan_of(recipe, store).rows] == [1, 0]


@pytest.mark.parametrize(
    ("keys", "runs", "steps"),
    [
        # Three runs with one task each choose a value; two seeds with two tasks each report it.
        ({"seeds": [0, 1]}, (3, 2), 3 * (18 + 12) + 2 * (18 + 2 * 12)),
        ({"select": "test"}, (0, 3), 3 * (18 + 2 * 12)),
        # A quarter of three rounds and of two rounds is one round. The remaining value needs no
        # further run to be chosen.
        ({"search_by": "halving"}, (3, 1), 3 * (6 + 6) + 18 + 2 * 12),
        ({"search_by": "optuna", "search_trials": 2}, (2, 1), 2 * (18 + 12) + 18 + 2 * 12),
    ],
)
def test_counts_of_a_searched_row_by_hand(recipe_of, store, keys, runs, steps):
    if keys.get("search_by") == "optuna":
        pytest.importorskip("optuna")
    row = row_of(recipe_of(methods=GAMMAS, **keys), store, "coprefl")
    assert ((row.deciding, row.reported), row.counts.steps) == (runs, steps)


def test_plan_of_a_finished_search_has_no_runs_left(recipe_of, store):
    """The store has the runs that choose a value, and the reported run of the best value."""
    recipe = recipe_of(methods=GAMMAS)
    for run in check_runs(recipe):
        best = "gamma=0.5" in run.name
        if run.settings.seed == recipe.validation_seed or best:
            keep(store, run, [90 if best else 10] * run.settings.tasks)
    assert totals(recipe, store).startswith("0 runs to execute, ")


def test_plan_needs_no_download_of_published_data(recipe_of, store):
    settings = {"dataset": "CIFAR100", "data-dir": "/nowhere", "model": "femnist-cnn"}
    settings |= {"partition": "dirichlet", "local-steps": "", "local-epochs": 2}
    counts = row_of(recipe_of(settings, methods=["fedavg"]), store, "fedavg").counts
    # All 60,000 samples except two classes, spread over six clients.
    samples = 58_800 / 6
    assert counts.gradients == pytest.approx(3 * 3 * 2 * samples + 2 * (2 * 3 * 2 * 8), rel=1e-3)
    recipe = recipe_of({"dataset": "/nowhere/images.npz"}, methods=["fedavg"])
    with pytest.raises(SettingsError, match=r"dataset '/nowhere/images.npz': the path does not"):
        plan_of(recipe, store)
    assert totals(recipe, store).startswith("the costs are not known (")


def test_costs_of_a_method_that_states_none_are_a_dash(recipe_of, store, monkeypatch):
    monkeypatch.setattr(FedAvg, "actions", ("train.query",))
    recipe = recipe_of(methods=["fedavg"])
    of = plan_of(recipe, store)
    assert math.isnan(of.together.counts.gradients)
    text = plan_text(recipe, of, dict.fromkeys(of.computing, (1, 1)))
    assert "A dash: a method does not state" in text


def test_pace_of_a_round_is_measured(recipe_of, personal_of, store):
    for recipe in (recipe_of(methods=["fedavg"]), personal_of("fedpcl")):
        paces = [pace(computing) for computing in plan_of(recipe, store).computing.values()]
        assert paces
        assert all(min(seconds) > 0 for seconds in paces)


def test_plan_command_prints_the_runs_and_times(tiny_images, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command_line, "pace", lambda of: (3600.0, 0.0))
    path = write_recipe(tmp_path / "tiny.yaml", tiny_recipe(tiny_images, seeds=[0, 1]))
    command = ["plan", str(path), "--out", str(tmp_path / "out"), "--workers", "4"]
    assert main([*command, "--set", "rounds=5"]) == 0
    text = capsys.readouterr().out
    lines = {line.split("  ")[0].strip(): line.split() for line in text.splitlines()}
    assert max(map(len, text.splitlines())) <= 80
    assert lines["coprefl"][1:4] == ["2", "+", "2"]
    assert lines["random"][-1] == f"{2 * 2 * 2 * 3 * 16}"  # An hour for each gradient.
    assert lines["total"][1:4] == ["2", "+", "6"]
    assert "with 4 workers on 4 cores" in text
    assert not (tmp_path / "out").exists()
