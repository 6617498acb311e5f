"""The runs of a recipe, and how searched values are chosen: from all, or by halving."""

import pytest

from coprefl_flwr.recipes.execute import run_rows
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.runs import Run, quarter
from coprefl_flwr.recipes.search import (
    best,
    check_runs,
    choose,
    table_rows,
)
from coprefl_flwr.report.tables import NONE
from tests.common.checks import Killed, files
from tests.common.recipes import (
    Witness,
    keep,
    keep_losses,
    result_file,
    tiny_recipe,
    write_recipe,
)
from tests.common.recipes import run as run_command

# ---- the runs of a recipe ------------------------------------------------------------------------


def classes(run):
    """Return the classes of the pre-training and of the tasks."""
    study = run.study
    task = next(stage for stage in study.stages if stage.task is not None)
    return run.main.clients.source.classes, task.tasks.source.classes


def test_validation_runs_have_a_separate_seed_and_separate_classes(recipe_of):
    recipe = recipe_of(seeds=[0, 1], validation_seed=(77,))
    reported, deciding = [], []
    for table_row in table_rows(recipe):
        for trial in table_row.trials():
            reported += table_row.reported(trial)
            deciding += table_row.selection_runs(trial) if table_row.searched else []
    used = {number for run in reported for number in classes(run)[1]}
    assert len(deciding) == 2
    for run in deciding:
        pretraining, downstream = classes(run)
        assert not used & set(downstream)
        assert not set(pretraining) & set(downstream)
        # The numbers of both kinds of classes are as in the reported runs.
        assert (len(pretraining), len(downstream)) == (6, 2)
        assert (run.settings.seed, run.settings.tasks) == (77, 1)
    assert {run.settings.seed for run in reported} == {0, 1}


def test_validation_classes_of_a_task_dataset_are_separate(recipe_of, tiny_images, tmp_path):
    other = tmp_path / "other.npz"
    other.write_bytes(tiny_images.read_bytes())
    recipe = recipe_of({"task-dataset": str(other), "pretraining-classes": "list:0-5"})
    (table_row,) = [table_row for table_row in table_rows(recipe) if table_row.searched]
    trial = table_row.trials()[0]
    (deciding,), (reported,) = table_row.selection_runs(trial), table_row.reported(trial)
    assert classes(deciding)[0] == classes(reported)[0]
    both = [set(classes(runs)[1]) for runs in (deciding, reported)]
    assert not both[0] & both[1]


# ---- what is chosen ------------------------------------------------------------------------------


def searched(recipe):
    (table_row,) = [table_row for table_row in table_rows(recipe) if table_row.searched]
    return table_row, table_row.trials()


def test_value_with_the_highest_mean_validation_accuracy_is_chosen(recipe_of, store):
    recipe = recipe_of(methods=[{"coprefl": {"gamma": [0, 0.5, 1]}}], validation_tasks=2)
    table_row, trials = searched(recipe)
    assert choose(store, table_row) is None
    for trial, validated, reported in zip(
        trials, [(60, 50), (10, 99), (54, 57)], [(1, 1), (99, 99), (50, 50)], strict=True
    ):
        keep(store, table_row.selection_runs(trial)[0], validated)
        keep(store, table_row.reported(trial)[0], reported)
    assert [trial.chosen for trial in table_row.shown(store)] == ["gamma=1.0"]
    # A value with an unfinished run is not chosen; of equal scores the first is chosen.
    result_file(store, table_row.selection_runs(trials[2])[0], 1).unlink()
    assert choose(store, table_row).chosen == "gamma=0.0"
    keep(store, table_row.selection_runs(trials[1])[0], (50, 60))
    assert choose(store, table_row).chosen == "gamma=0.0"


def test_select_test_chooses_on_reported_results_of_all_seeds(recipe_of, store):
    recipe = recipe_of(seeds=[0, 1], select="test", methods=[{"coprefl": {"gamma": [0, 1]}}])
    table_row, trials = searched(recipe)
    for trial, accuracies in zip(trials, [(90, 10), (60, 60)], strict=True):
        assert table_row.selection_runs(trial) == table_row.reported(trial)
        for run, accuracy in zip(table_row.reported(trial), accuracies, strict=True):
            keep(store, run, (accuracy, accuracy))
    assert choose(store, table_row).chosen == "gamma=1.0"
    # If a seed is missing, the mean of the other seeds would be over other tasks.
    result_file(store, table_row.reported(trials[1])[1], 0).unlink()
    assert choose(store, table_row).chosen == "gamma=0.0"


def test_select_all_shows_every_value_and_chooses_none(recipe_of, store):
    recipe = recipe_of(select="all", reference="coprefl:gamma=1.0")
    rows = table_rows(recipe)
    shown = [trial.chosen for table_row in rows for trial in table_row.shown(store)]
    assert shown == ["", "", "gamma=0.0", "gamma=1.0"]
    assert not any(table_row.searched for table_row in rows)


def test_reported_runs_are_made_for_the_chosen_value_alone(recipe_of, store):
    recipe, calls = recipe_of(seeds=[0, 1]), []

    def make(runs):
        calls.append([(run.name, run.settings.seed) for run in runs])
        for run in runs:
            keep(store, run, [90 if "gamma=1.0" in run.name else 10] * run.settings.tasks)
        return {}

    assert run_rows(table_rows(recipe), store, make) == {}
    names = ["coprefl:gamma=0.0", "coprefl:gamma=1.0"]
    others = [(name, seed) for name in ("random", "fedavg") for seed in (0, 1)]
    assert calls == [[*others, *((name, 100) for name in names)], [(names[1], 0), (names[1], 1)]]


# ---- halving -------------------------------------------------------------------------------------

EIGHT = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1]
HALVED = {"methods": [{"coprefl": {"gamma": [0, 1]}}], "search_by": "halving"}


@pytest.fixture
def halving_recipe(tiny_images, tmp_path):
    """Return a function that makes a tiny recipe with some keys changed.

    It has eight rounds, and eight rounds in tasks.
    """

    def read(settings=None, **keys):
        rounds = {"rounds": 8, "task-rounds": 8} | (settings or {})
        content = tiny_recipe(tiny_images, rounds, **{"search_by": "halving", **keys})
        return read_recipe(write_recipe(tmp_path / "recipe.yaml", content))

    return read


def test_halving_trial_has_a_quarter_of_all_rounds_rounded_up():
    assert [quarter(n) for n in (0, 1, 4, 5, 50)] == [0, 1, 1, 2, 13]
    config = {"rounds": 50, "task-rounds": 9, "clients": 30}
    for method, short in (
        ("coprefl:gamma=0.5", "coprefl:gamma=0.5"),
        ("cyclic:rounds=10+fedavg:learning-rate=0.1,rounds=40",
         "cyclic:rounds=3+fedavg:learning-rate=0.1,rounds=10"),
    ):  # fmt: skip
        trial = Run.of(config, method, 3).shortened().settings
        assert (str(trial.method), trial.rounds, trial.task_rounds) == (short, 13, 3)
        assert (trial.seed, trial.clients, trial.tasks) == (3, 30, 3)
    personal = {"study": "personalised", "rounds": 30}
    trial = Run.of(personal, "fedpcl:rounds=20", 0).shortened().settings
    assert str(trial.method) == "fedpcl:rounds=5"


def test_best_quarter_of_the_trials_is_kept_and_at_least_one():
    nan = float("nan")
    assert best("abcdefgh", [1, 9, 3, nan, 9, 8, 2, 0]) == ["b", "e"]
    assert best("abc", [1, 2, 2]) == ["b"]  # Of equal scores the first.
    assert best("ab", [nan, nan]) == []
    assert best("abcdefgh", [nan, nan, 5, *[nan] * 5]) == ["c"]


def test_halving_chooses_the_best_of_the_validation_runs_to_the_end(halving_recipe, store):
    recipe = halving_recipe(methods=[{"coprefl": {"gamma": EIGHT}}], seeds=[0, 1])
    calls = []
    early = dict(zip(EIGHT, [10, 20, 80, 30, 40, 70, 50, 60], strict=True))
    late = {0.2: 55, 0.5: 65}

    def make(runs):
        calls.append([])
        for run in runs:
            gamma = float(run.name.partition("=")[2])
            short = run.settings.rounds == 2
            calls[-1].append((gamma, run.settings.seed, run.settings.rounds))
            assert run.settings.task_rounds == run.settings.rounds
            keep(store, run, [(early if short else late)[gamma]] * run.settings.tasks)
        return {}

    assert run_rows(table_rows(recipe), store, make) == {}
    assert calls == [
        [(gamma, 100, 2) for gamma in EIGHT],
        [(0.2, 100, 8), (0.5, 100, 8)],
        [(0.5, 0, 8), (0.5, 1, 8)],
    ]
    (table_row,) = table_rows(recipe)
    assert choose(store, table_row).chosen == "gamma=0.5"
    # All runs that may be needed are checked before.
    assert len(check_runs(recipe)) == 8 + 8 + 2 * 8


def test_halving_by_test_drops_failed_trials(halving_recipe, store):
    recipe = halving_recipe(select="test", methods=[{"coprefl": {"gamma": [0, 0.5, 1]}}])
    calls = []

    def make(runs):
        calls.append([(run.name, run.settings.rounds) for run in runs])
        for run in runs:
            if "gamma=1.0" not in run.name:
                keep(store, run, [90 if "gamma=0.5" in run.name else 10] * 2)
        return {}

    run_rows(table_rows(recipe), store, make)
    names = [f"coprefl:gamma={gamma}" for gamma in ("0.0", "0.5", "1.0")]
    assert calls == [[(name, 2) for name in names], [(names[1], 8)], [(names[1], 8)]]
    assert [trial.chosen for trial in table_rows(recipe)[0].shown(store)] == ["gamma=0.5"]


def test_killed_halving_ends_with_the_same_bytes(tiny_images, tmp_path, monkeypatch, capsys):
    """One of two values remains: it is chosen without a validation run to the end."""
    settings = {"rounds": 4, "task-rounds": 4, "tasks": 1}
    content = tiny_recipe(tiny_images, settings, **HALVED)
    path = write_recipe(tmp_path / "tiny.yaml", content)

    whole = Witness()
    assert run_command(path, tmp_path / "whole" / "out", whole, monkeypatch) == 0
    # Two trials, each with one round and one task of one round; then the reported run.
    assert sorted(number for _, population, number in whole.rounds() if population == "pretrain") \
        == [1, 1, 1, 2, 3, 4]  # fmt: skip
    assert len([1 for _, population, _ in whole.rounds() if population != "pretrain"]) == 2 * 1 + 4
    table = (tmp_path / "whole/out/report/tables/table-search.md").read_text()
    _, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
    fates = {line.strip("|").split("|")[-1].strip(" *_") for line in rows}
    assert fates == {"chosen", "dropped"}
    assert all(line.strip("|").split("|")[3].strip() == NONE for line in rows)
    # Killed in a trial, and again in the reported run: the files are the same, and a further run
    # sends nothing.
    for stop in (("train", "coprefl", "task-0", 1), ("train", "coprefl", "pretrain", 3)):
        with pytest.raises(Killed):
            run_command(path, tmp_path / "killed" / "out", Witness(stop), monkeypatch)
    assert run_command(path, tmp_path / "killed" / "out", Witness(), monkeypatch) == 0
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    again = Witness()
    assert run_command(path, tmp_path / "killed" / "out", again, monkeypatch) == 0
    assert again.seen == []


# ---- studies whose targets are no classes --------------------------------------------------------


def test_value_is_chosen_by_the_first_metric_and_its_direction(recipe_of, store, tmp_path):
    """gamma=1.0 has the lower error, and the higher loss."""
    file = tmp_path / "errors.py"
    file.write_text("def mae(outputs, targets):\n    return 1.0\n\n\nmae.better = 'lower'\n")
    settings, metrics = {"client-metrics": f"{file}:mae"}, ["metric:mae", "metric:mae:worst-10%"]
    recipe = recipe_of(settings, methods=[{"coprefl": {"gamma": [0, 1]}}], metrics=metrics)
    table_row, trials = searched(recipe)
    for trial, loss, error in zip(trials, (0.1, 0.2), (2.0, 1.0), strict=True):
        keep_losses(store, table_row.selection_runs(trial)[0], [loss], metric=error)
    assert choose(store, table_row).chosen == "gamma=1.0"


def test_halving_keeps_the_lowest_losses(halving_recipe, store):
    recipe = halving_recipe(methods=[{"coprefl": {"gamma": EIGHT}}], seeds=[0])
    table_row, trials = searched(recipe)
    for at, trial in enumerate(trials):
        keep_losses(store, table_row.short_runs(trial)[0], [abs(at - 5.1)])
    assert table_row.finalists(store) == [trials[5], trials[6]]


def test_value_is_chosen_by_the_last_test_where_there_are_no_tasks(recipe_of, store):
    """The highest accuracy is chosen, or else the lowest loss."""
    recipe = recipe_of(
        {"tasks": 0}, select="test", methods=[{"coprefl": {"gamma": [0, 1]}}], metrics=["final"]
    )
    table_row, trials = searched(recipe)
    for trial, tested in zip(trials, [(80, 20), (10, 30)], strict=True):
        keep(store, table_row.reported(trial)[0], tested=tested)
    assert choose(store, table_row).chosen == "gamma=1.0"
    for trial, tested in zip(trials, [(0.1, 0.8), (0.9, 0.3)], strict=True):
        keep_losses(store, table_row.reported(trial)[0], tested=tested)
    assert choose(store, table_row).chosen == "gamma=1.0"
    keep_losses(store, table_row.reported(trials[1])[0], tested=(0.2, None))  # It diverged.
    assert choose(store, table_row).chosen == "gamma=0.0"


# ---- draws ---------------------------------------------------------------------------------------


def test_runs_of_a_draw_have_the_same_clients_and_tasks_for_every_training_seed(recipe_of):
    recipe = recipe_of(seeds={"data": 2, "training": 2}, methods=["fedavg"], reference="fedavg")
    (table_row,) = table_rows(recipe)
    runs = table_row.reported(table_row.trials()[0])
    seeds = [(run.settings.draw, run.settings.seed) for run in runs]
    assert seeds == [(0, 0), (0, 1), (1, 0), (1, 1)]
    clients = [run.main.clients.identity() for run in runs]
    assert clients[0] == clients[1] != clients[2] == clients[3]
    assert len({key for run in runs for key in run.keys}) == 4 * 3
    # The runs of a list of seeds share the results of equal seeds of both kinds.
    plain = recipe_of(seeds=[0, 1], methods=["fedavg"], reference="fedavg")
    (table_row,) = table_rows(plain)
    of_list = table_row.reported(table_row.trials()[0])
    assert [run.keys for run in of_list] == [runs[0].keys, runs[3].keys]


def test_validation_runs_have_classes_that_no_draw_has(recipe_of):
    recipe = recipe_of(seeds={"data": [1, 2], "training": 2}, validation_seed=(77,))
    (table_row,) = [table_row for table_row in table_rows(recipe) if table_row.searched]
    trial = table_row.trials()[0]
    (deciding,), reported = table_row.selection_runs(trial), table_row.reported(trial)
    assert (deciding.settings.seed, deciding.settings.data_seed) == (77, None)
    used = {number for run in reported for number in classes(run)[1]}
    assert not used & {*classes(deciding)[1]}
    assert {run.settings.draw for run in reported} == {1, 2}
