"""What a recipe takes, counted by hand; that data need not be at hand, and how it is told."""

import math

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes import calibration, plan_command
from coprefl_flwr.recipes.calibration import Pace, paces
from coprefl_flwr.recipes.command_line import main
from coprefl_flwr.recipes.plan import Row, _Counter, plan_of
from coprefl_flwr.recipes.plan_command import _many, in_one_line, told, totals
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.runs import ModelStore
from coprefl_flwr.recipes.sweep import check_runs, contests
from coprefl_flwr.studies.budgets import cost
from coprefl_flwr.studies.efforts import Effort, effort, engine_of
from tests.tiny_recipe import keep, tiny_recipe, write_recipe


@pytest.fixture
def recipe_of(tiny_images, tmp_path):
    """Return a tiny recipe with some keys changed."""

    def read(settings=None, **keys):
        content = tiny_recipe(tiny_images, settings, **keys)
        return read_recipe(write_recipe(tmp_path / "recipe.yaml", content))

    return read


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "models")


def row_of(recipe, store, label):
    """Return one row of a recipe's plan."""
    (row,) = [row for row in plan_of(recipe, store).rows if row.label == label]
    return row


def sizes(recipe):
    """Return the mean samples of a client, and all test samples of a task, of the seed 0."""
    study = contests(recipe)[0].reported(recipe.entrants[0].candidates()[0])[0].study
    held = [len(one.train) for one in study.populations.population("pretrain").clients]
    tested = [len(one.test) for one in study.populations.population("task-0").clients]
    return sum(held) / len(held), sum(tested)


def test_a_row_by_hand(recipe_of, store):
    recipe = recipe_of(methods=["random", "fedavg"], reference=None, seeds=[0, 1])
    _, tested = sizes(recipe)
    # A task, two rounds: 3 clients take 2 steps of 8 samples, and are tested after each.
    task = Effort(2 * 3 * 2, 2 * 3 * 2 * 8, 2 * tested, 2 * (3 + 3), 2, 0, 2 * 400 + 3 * 150)
    random = row_of(recipe, store, "random")
    assert (random.deciding, random.reported) == (0, 2)
    assert random.total == (task * 2 + Effort(models=1, bytes=6000)) * 2
    # Three rounds of three participants, and a model.
    trained = Effort(3 * 3 * 2, 3 * 3 * 2 * 8, 0, 3 * 3, 3, 1, 6000 + 3 * 400)
    assert row_of(recipe, store, "fedavg").total == (task * 2 + trained) * 2


def test_coprefl_has_two_exchanges_and_its_query_sets(recipe_of, store):
    recipe = recipe_of({"tasks": 0}, methods=["coprefl"], select="test", metrics=["final"])
    samples, _ = sizes(recipe_of(methods=["coprefl"]))
    total = row_of(recipe, store, "coprefl").total
    assert total.answers == 3 * 3 * 2
    assert total.steps == 3 * 3 * 2
    query = samples - math.floor(0.8 * samples + 1e-9)
    assert total.gradients == pytest.approx(3 * (3 * 2 * 8 + 3 * query), rel=0.05)


def test_a_clients_state_counts_as_an_answer(recipe_of, store):
    recipe = recipe_of({"tasks": 0}, methods=["scaffold"], reference=None, metrics=["final"])
    assert row_of(recipe, store, "scaffold").total.answers == 3 * 3 * 2


def test_gradients_are_those_of_the_report(recipe_of):
    """There they are of the true partition; an iid one is as equal as the plan has it."""
    for run in check_runs(recipe_of(methods=["fedavg", "coprefl", "cyclic:rounds=2+fedavg"])):
        assert effort(run.main).gradients == pytest.approx(cost(run.main).gradients)


def test_searched_values(recipe_of, store):
    recipe = recipe_of(methods=[{"coprefl": {"gamma": [0, 0.5, 1]}}], seeds=[0, 1])
    row, plan = row_of(recipe, store, "coprefl"), plan_of(recipe, store)
    assert (row.deciding, row.reported, plan.mean) == (3, 2, True)
    alone = recipe_of(methods=[{"coprefl": {"gamma": 0.5}}], seeds=[0, 1], select="test")
    validated = row.total.steps - row_of(alone, store, "coprefl").total.steps
    assert validated == pytest.approx(3 * (3 * 3 * 2 + 2 * 3 * 2))  # One task each.
    # By the reported results: each is one.
    recipe = recipe_of(methods=[{"coprefl": {"gamma": [0, 0.5, 1]}}], select="test")
    row = row_of(recipe, store, "coprefl")
    assert (row.deciding, row.reported) == (0, 3)


def test_what_a_search_shares_is_counted_once(recipe_of, store):
    """The start that is chosen for one table is taken to be the other's."""
    search = [{"coprefl": {"gamma": [0, 0.5, 1]}}]
    row = row_of(recipe_of({"task-rounds": [2, 3]}, methods=search), store, "coprefl")
    start, tasks = 3 * 3 * 2, (2 + 3) * 3 * 2
    assert row.total.steps == pytest.approx(3 * (start + tasks) + start + 2 * tasks)
    assert (row.deciding, row.reported) == (6, 2)


def test_features_that_all_values_share_are_made_in_any_case(store):
    """Of four values one is chosen, any with a chance of a quarter; a row below needs the first."""
    row, counter = Row("x"), _Counter(store)
    known = {"features": Effort(forwards=80), **{f"{n}": Effort(steps=16) for n in range(4)}}
    counter.needs = lambda run: {key: lambda key=key: (None, known[key]) for key in run}
    groups = [[("features", f"{n}")] for n in range(4)]
    assert counter.share(row, groups, 1) == 1
    assert row.work[None] == Effort(forwards=80, steps=16)
    assert counter.add(row, [("features", "0")]) == 1
    assert row.work[None] == Effort(forwards=80, steps=16 + 12)
    assert counter.share(row, groups, 1) == 0


def test_halving(recipe_of, store):
    eight = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1]
    long = {"rounds": 8, "task-rounds": 8}
    recipe = recipe_of(long, methods=[{"coprefl": {"gamma": eight}}], search_by="halving")
    whole = recipe_of(long, methods=[{"coprefl": {"gamma": eight}}])
    row, other = row_of(recipe, store, "coprefl"), row_of(whole, store, "coprefl")
    assert (row.deciding, row.reported) == (8 + 2, 1)
    assert (other.deciding, other.reported) == (8, 1)
    # Eight quarters and two wholes in the place of eight.
    of_search = 8 * (8 * 3 * 2 + 8 * 3 * 2)
    assert other.total.steps - row.total.steps == pytest.approx(of_search / 2)
    two = recipe_of(long, search_by="halving")
    row = row_of(two, store, "coprefl")
    assert (row.deciding, row.reported) == (2, 1)  # The one that is left is chosen.


def test_what_two_rows_need_and_what_is_there_is_not_counted(recipe_of, store):
    recipe = recipe_of(methods=["fedavg", {"again": {"method": "fedavg:rounds=3"}}], reference=None)
    assert [row.reported for row in plan_of(recipe, store).rows] == [1, 0]
    recipe = recipe_of()
    for run in check_runs(recipe):
        keep(store, run, [90 if "gamma=1.0" in run.name else 10] * run.settings.tasks)
    plan = plan_of(recipe, store)
    assert plan.together.total == Effort()
    assert plan.done == 3 * (1 + 2) + 2 * (1 + 1)
    assert in_one_line(plan) == "0 runs to make, 0 gradients, 0 evaluations, 13 stages done before"


def test_data_need_not_be_at_hand(recipe_of, store):
    settings = {"dataset": "CIFAR100", "data-dir": "/nowhere", "model": "femnist-cnn"}
    settings |= {"partition": "dirichlet", "local-steps": "", "local-epochs": 2}
    recipe = recipe_of(settings, methods=["fedavg"], reference=None)
    total = row_of(recipe, store, "fedavg").total
    # All 60,000 samples but those of two classes and the server's 5 %, spread over six clients.
    held = 58_800 * 0.95 / 6
    assert total.gradients == pytest.approx(3 * 3 * 2 * held + 2 * (2 * 3 * 2 * 8), rel=1e-3)
    recipe = recipe_of({"dataset": "/nowhere/images.npz"}, methods=["fedavg"], reference=None)
    with pytest.raises(SettingsError, match=r"dataset '/nowhere/images.npz': the path does not"):
        plan_of(recipe, store)


def test_a_method_that_says_nothing_is_named(recipe_of, store):
    recipe = recipe_of(methods=["fedavg"], reference=None)
    plan = plan_of(recipe, store)
    ((engine, one),) = plan.rows[0].work.items()
    plan.rows[0].work[engine] = one + Effort(gradients=math.nan)
    known = dict.fromkeys(plan.rows[0].work, Pace(1, 1, 1, 1, 1))
    assert plan.unknown == ["fedavg"]
    assert math.isnan(plan.rows[0].seconds(known))
    assert "Not known because of fedavg: a method does not say" in told(recipe, plan)
    assert in_one_line(plan).startswith("1 runs to make, an unknown number of gradients, ")


def test_no_plan_keeps_a_recipe_from_being_run(recipe_of, store, monkeypatch):
    """Whatever goes wrong with it, it is told in a line."""
    monkeypatch.setattr(plan_command, "plan_of", lambda *given: {}["the sizes"])
    assert totals(recipe_of(), store) == "what it takes is not known (KeyError: 'the sizes')"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999.4, "999"), (999.7, "1 k"), (1234, "1.23 k"), (999_700, "1 M"), (2e16, "20 P")],
)
def test_numbers_in_three_digits(number, text):
    assert _many(number) == text


def test_each_precision_has_a_pace_of_its_own(recipe_of, store, monkeypatch):
    """What is measured computes in it; float32 is not named."""
    used, (train, test) = [], (calibration.local_sgd, calibration.evaluate)

    def trained(model, samples, training, **more):
        used.append(training.precision)
        return train(model, samples, training, **more)

    def tested(model, batches, precision):
        used.append(precision)
        return test(model, batches, precision=precision)

    monkeypatch.setattr(calibration, "local_sgd", trained)
    monkeypatch.setattr(calibration, "evaluate", tested)
    methods = ["fedavg", {"short": {"method": "fedavg", "precision": "bf16"}}]
    plan = plan_of(recipe_of(methods=methods, reference=None), store)
    names = {}
    for engine in plan.together.work:
        used.clear()
        paces([engine], 0.01)
        names[engine.name] = set(used)
    about = "tests.tiny_study:network, 1x6x6, batches of 8"
    assert names == {about: {"float32"}, f"{about}, bf16": {"bf16"}}


def test_a_pace_is_measured(recipe_of):
    recipe = recipe_of(methods=["fedavg"], reference=None)
    (run,) = check_runs(recipe)
    engine = engine_of(run.main)
    (pace,) = paces([engine], 0.2).values()
    assert min(pace.gradient, pace.forward, pace.round) > 0
    assert pace.answer >= 0
    assert pace.model == sum(p.nbytes for p in run.study.network().state_dict().values())
    # 2 gradients, 3 outputs, 5 answers, 7 rounds; 11 models and 13 bytes.
    effort = Effort(1, 2, 3, 5, 7, 11, 13)
    assert Pace(0.1, 0.01, 0.001, 0.0001, 10).seconds(effort) == pytest.approx(0.2357)
    assert Pace(0, 0, 0, 0, 10).bytes(effort) == 123


def test_the_command(tiny_images, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plan_command, "paces", lambda engines: paces(engines, 0.2))
    path = write_recipe(tmp_path / "tiny.yaml", tiny_recipe(tiny_images, seeds=[0, 1]))
    command = ["plan", str(path), "--out", str(tmp_path / "out"), "--workers", "4"]
    assert main([*command, "--set", "rounds=5"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    lines = {line.split("  ")[0].strip(): line.split() for line in text.splitlines()}
    assert lines["coprefl"][1:4] == ["2", "+", "2"]
    assert lines["together"][1:4] == ["2", "+", "6"]
    assert "with 4 workers on as many cores" in text
    assert not (tmp_path / "out").exists()
    assert main([*command, "--workers", "0"]) == 1
    assert capsys.readouterr().err == (
        "coprefl: --workers 0: must be a whole number, at least 1 and at most 10000\n"
    )
