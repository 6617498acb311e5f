"""A recipe's runs: made once, chosen on other tasks, the same however often they were stopped."""

import itertools
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from coprefl_flwr.cli import main
from coprefl_flwr.federation import run as rounds_run
from coprefl_flwr.federation.checkpoint import write_checkpoint
from coprefl_flwr.files import LOCKS, SUMS
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.recipes import sweep
from coprefl_flwr.recipes.sweep import (
    InProcess,
    check_runs,
    choose,
    contests,
    run_recipe,
)
from coprefl_flwr.studies.store import Store
from tests.chaos.forked import Kill, forked
from tests.common.checks import Killed, files
from tests.common.recipes import Witness, keep, result_file, run, tiny_recipe, write_recipe


@pytest.fixture(scope="module")
def tiny_file(tiny_images, tmp_path_factory):
    """The tiny recipe's file."""
    return write_recipe(
        tmp_path_factory.mktemp("recipe") / "tiny.yaml", tiny_recipe(tiny_images, seeds=[0, 1])
    )


@pytest.fixture(scope="module")
def whole(tiny_file, tmp_path_factory):
    """A recipe that was run and left alone: its folder, and what was sent."""
    folder, witness = tmp_path_factory.mktemp("whole"), Witness()
    with pytest.MonkeyPatch.context() as patch:
        assert run(tiny_file, folder / "out", witness, patch) == 0
    return folder, witness


# ---- which runs there are ------------------------------------------------------------------------


def classes(run):
    """Return the classes of the pre-training and of the tasks."""
    study = run.study
    task = next(stage for stage in study.stages if stage.task is not None)
    return run.main.clients.source.classes, task.tasks.source.classes


def test_validation_runs_have_a_seed_and_classes_of_their_own(recipe_of):
    recipe = recipe_of(seeds=[0, 1], validation_seed=77)
    reported, deciding = [], []
    for contest in contests(recipe):
        for candidate in contest.entrant.candidates():
            reported += contest.reported(candidate)
            deciding += contest.deciding(candidate) if contest.searched else []
    taken = {number for one in reported for number in classes(one)[1]}
    assert len(deciding) == 2
    for one in deciding:
        pretraining, downstream = classes(one)
        assert not taken & set(downstream)
        assert not set(pretraining) & set(downstream)
        # As many as elsewhere of both.
        assert (len(pretraining), len(downstream)) == (6, 2)
        assert (one.settings.seed, one.settings.tasks) == (77, 1)
    assert {one.settings.seed for one in reported} == {0, 1}


def test_validation_classes_of_another_dataset(recipe_of, tiny_images, tmp_path):
    other = tmp_path / "other.npz"
    other.write_bytes(tiny_images.read_bytes())
    recipe = recipe_of({"task-dataset": str(other), "pretraining-classes": "list:0-5"})
    (contest,) = [contest for contest in contests(recipe) if contest.searched]
    candidate = contest.entrant.candidates()[0]
    (deciding,), (reported,) = contest.deciding(candidate), contest.reported(candidate)
    assert classes(deciding)[0] == classes(reported)[0]
    both = [set(classes(one)[1]) for one in (deciding, reported)]
    assert not both[0] & both[1]


def test_a_run_that_two_tables_need_is_one(recipe_of):
    recipe = recipe_of({"task-rounds": [2, 3], "task-evaluate-every": 1}, select="test")
    runs = check_runs(recipe)
    assert len(runs) == 2 * (1 + 1 + 2)
    assert len({one.key for one in runs}) == 1 + 1 + 2
    alike = recipe_of(methods=["fedavg", {"again": {"method": "fedavg:rounds=3"}}], reference=None)
    assert len(check_runs(alike)) == 1


# ---- what is chosen ------------------------------------------------------------------------------


def searched(recipe):
    (contest,) = [contest for contest in contests(recipe) if contest.searched]
    return contest, contest.entrant.candidates()


def test_the_highest_mean_accuracy_on_validation_tasks_is_chosen(recipe_of, tmp_path):
    recipe = recipe_of(methods=[{"coprefl": {"gamma": [0, 0.5, 1]}}], validation_tasks=2)
    contest, candidates = searched(recipe)
    store = Store(tmp_path / "models")
    assert choose(store, contest) is None
    for candidate, validated, reported in zip(
        candidates, [(60, 50), (10, 99), (54, 57)], [(1, 1), (99, 99), (50, 50)], strict=True
    ):
        keep(store, contest.deciding(candidate)[0], validated)
        keep(store, contest.reported(candidate)[0], reported)
    assert [one.chosen for one in contest.shown(store)] == ["gamma=1.0"]
    # A run that was not finished is not chosen; of equals the first is.
    result_file(store, contest.deciding(candidates[2])[0], 1).unlink()
    assert choose(store, contest).chosen == "gamma=0.0"
    keep(store, contest.deciding(candidates[1])[0], (50, 60))
    assert choose(store, contest).chosen == "gamma=0.0"


def test_test_chooses_on_what_is_reported_over_all_seeds(recipe_of, tmp_path):
    recipe = recipe_of(seeds=[0, 1], select="test", methods=[{"coprefl": {"gamma": [0, 1]}}])
    contest, candidates = searched(recipe)
    store = Store(tmp_path / "models")
    for candidate, accuracies in zip(candidates, [(90, 10), (60, 60)], strict=True):
        assert contest.deciding(candidate) == contest.reported(candidate)
        for one, accuracy in zip(contest.reported(candidate), accuracies, strict=True):
            keep(store, one, (accuracy, accuracy))
    assert choose(store, contest).chosen == "gamma=1.0"
    # Where a seed is missing, the others' mean would be of other tasks.
    result_file(store, contest.reported(candidates[1])[1], 0).unlink()
    assert choose(store, contest).chosen == "gamma=0.0"


def test_without_tasks_the_last_test_decides(recipe_of, tmp_path):
    recipe = recipe_of(
        {"tasks": 0}, select="test", methods=[{"coprefl": {"gamma": [0, 1]}}], metrics=["final"]
    )
    contest, candidates = searched(recipe)
    store = Store(tmp_path / "models")
    for candidate, tested in zip(candidates, [(80, 20), (10, 30)], strict=True):
        keep(store, contest.reported(candidate)[0], tested=tested)
    assert choose(store, contest).chosen == "gamma=1.0"


def test_where_all_are_shown_nothing_is_chosen(recipe_of, tmp_path):
    recipe = recipe_of(select="all", reference="coprefl:gamma=1.0")
    shown = [one.chosen for contest in contests(recipe) for one in contest.shown(Store(tmp_path))]
    assert shown == ["", "", "gamma=0.0", "gamma=1.0"]
    assert not any(contest.searched for contest in contests(recipe))


def test_only_what_was_chosen_is_run_for_the_report(recipe_of, tmp_path):
    recipe = recipe_of(seeds=[0, 1])
    store, made = Store(tmp_path / "models"), []

    def make(runs):
        made.append([(one.name, one.settings.seed) for one in runs])
        for one in runs:
            keep(store, one, [90 if "gamma=1.0" in one.name else 10] * one.settings.tasks)
        return {}

    assert run_recipe(recipe, store, make) == {}
    names = ["coprefl:gamma=0.0", "coprefl:gamma=1.0"]
    others = [(name, seed) for name in ("random", "fedavg") for seed in (0, 1)]
    assert made == [[*others, *((name, 100) for name in names)], [(names[1], 0), (names[1], 1)]]


def test_reported_runs_do_not_depend_on_what_was_not_chosen(recipe_of):
    """A run is a function of its settings."""
    many = recipe_of(methods=[{"coprefl": {"gamma": [0, 0.5, 1]}}], seeds=[0, 1])
    alone = recipe_of(methods=[{"coprefl": {"gamma": 0.5}}], seeds=[0, 1], select="test")
    contest, candidates = searched(many)
    (other,) = contests(alone)
    before = contest.reported(candidates[1])
    after = other.reported(other.entrant.candidates()[0])
    assert [one.keys for one in before] == [one.keys for one in after]
    assert [one.settings.rounds for one in before] == [one.settings.rounds for one in after]


# ---- making them ---------------------------------------------------------------------------------


def test_everything_is_made_once(whole):
    folder, witness = whole
    tasks = {"random": 2 * 2, "fedavg": 2 * 2, "coprefl": 2 * 2 + 2 * 1}
    pretrained = {"fedavg": 2, "coprefl": 2 + 2}
    for method, number in tasks.items():
        rounds = [entry for entry in witness.rounds() if entry[0].startswith(method)]
        assert len([entry for entry in rounds if entry[1] != "pretrain"]) == 2 * number
        assert len([e for e in rounds if e[1] == "pretrain"]) == 3 * pretrained.get(method, 0)
    # No round was repeated: one message a node for an exchange.
    assert set(Counter(witness.seen).values()) == {1}
    names = {
        name.partition("/")[2] for name in files(folder / "models") if not name.startswith(LOCKS)
    }
    assert {name for name in names if not name.startswith("tasks/")} == {
        "model.safetensors",
        "model.json",
        "result.json",
        SUMS,
    }
    assert {Path(name).name for name in names if name.startswith("tasks/")} == {"result.json", SUMS}


def test_what_is_done_is_not_done_again(whole, tiny_file, monkeypatch):
    folder, _ = whole
    before = files(folder)
    again = Witness()
    assert run(tiny_file, folder / "out", again, monkeypatch) == 0
    assert again.seen == []
    assert files(folder) == before


STOPS = {
    "in a pre-training": ("train.query", "coprefl", "pretrain", 2),
    "between parts": ("train", "fedavg", "task-0", 1),
    "in a task": ("train", "coprefl", "task-1", 2),
    "in an evaluation": ("evaluate", "random", "task-1", 1),
}


@pytest.mark.parametrize(
    ("stops", "error", "status"),
    [
        (("in a pre-training", "in a task"), Killed, None),
        (("in an evaluation", "between parts"), KeyboardInterrupt, 130),
    ],
)
def test_killed_twice_it_ends_with_the_same_bytes(
    stops, error, status, whole, tiny_file, tmp_path, monkeypatch
):
    sent = Counter()
    for stop in stops:
        witness = Witness(STOPS[stop], error)
        if status is None:
            with pytest.raises(Killed):
                run(tiny_file, tmp_path / "out", witness, monkeypatch)
        else:
            assert run(tiny_file, tmp_path / "out", witness, monkeypatch) == status
        assert witness.seen[-1][0] == STOPS[stop][0]
        sent.update(witness.seen)
    last = Witness()
    assert run(tiny_file, tmp_path / "out", last, monkeypatch) == 0
    sent.update(last.seen)
    assert files(tmp_path / "out") == files(whole[0] / "out")
    assert files(tmp_path / "models") == files(whole[0] / "models")
    # Each time one round at most was begun again, and nothing else.
    again = sent - Counter(whole[1].seen)
    assert len({entry[1:] for entry in again}) <= len(stops)
    assert {entry[2:] for entry in again} <= {STOPS[stop][2:] for stop in stops}
    assert not Counter(whole[1].seen) - sent


def die(*_):
    raise Killed


def test_killed_between_a_rounds_metrics_and_its_checkpoint(
    whole, recipe_of, tmp_path, monkeypatch
):
    """The round is run again, and its metrics stand once."""
    store = Store(tmp_path / "models")
    (one,) = check_runs(recipe_of(methods=["fedavg"], reference=None))
    for number in (2, 3):  # In the pre-training's second round, and in a task's first.
        left = iter([write_checkpoint] * (number - 1))

        def dying(path, checkpoint, left=left):
            next(left, die)(path, checkpoint)

        monkeypatch.setattr(rounds_run, "write_checkpoint", dying)
        with pytest.raises(Killed):
            InProcess(store)([one])
    monkeypatch.setattr(rounds_run, "write_checkpoint", write_checkpoint)
    assert InProcess(store)([one]) == {}
    assert files(store.folder(one.main)) == files(whole[0] / "models" / one.key)


@pytest.mark.parametrize(("write", "left"), [(19, ".result.json.*"), (22, ".model.safetensors.*")])
def test_a_process_that_died_in_a_write_leaves_nothing_behind(
    write, left, whole, tiny_file, tmp_path, monkeypatch
):
    """As `kill -9` does: no `finally` is run."""
    writes = itertools.count(1)

    def program():
        os.fsync = lambda _: next(writes) < write or os._exit(9)
        return main(["run", str(tiny_file), "--out", str(tmp_path / "out")])

    assert forked(program, Kill(), tmp_path / "told").status == 9
    assert [path.name for path in tmp_path.rglob("*") if path.match(f"{left}.coprefl-part")]
    assert list(tmp_path.glob(f"models/{LOCKS}/*"))
    assert run(tiny_file, tmp_path / "out", Witness(), monkeypatch) == 0
    assert files(tmp_path / "models") == files(whole[0] / "models")


def test_stopped_between_the_model_and_its_checkpoint(recipe_of, tmp_path):
    """The model's file is the last that is written: what is beside it is of no use then."""
    store = Store(tmp_path / "models")
    recipe = recipe_of({"tasks": 0}, methods=["fedavg"], reference=None)
    (one,) = check_runs(recipe)
    assert InProcess(store)([one]) == {}
    before = files(tmp_path / "models")
    for left in ("checkpoint.safetensors", "checkpoint.safetensors.rounds.jsonl"):
        (store.folder(one.main) / left).touch()
    (store.folder(one.main) / "client-state" / "x").mkdir(parents=True)
    assert InProcess(store)([one]) == {}
    assert files(tmp_path / "models") == before
    assert not (store.folder(one.main) / "client-state").exists()


def test_how_often_a_round_is_tried_may_change_on_the_way(recipe_of, tmp_path, monkeypatch):
    """Nor does what the name of a run leaves out keep it from going on."""
    store, settings = Store(tmp_path / "models"), {"tasks": 0}
    (one,) = check_runs(recipe_of(settings, methods=["fedavg"], reference=None))
    monkeypatch.setattr(sweep, "LocalGrid", Witness(("train", "fedavg", "pretrain", 2)))
    with pytest.raises(Killed):
        InProcess(store)([one])
    settings |= {"max-failed-rounds": 9, "timeout": 9.0, "checkpoint-every": 9}
    (again,) = check_runs(recipe_of(settings, methods=["fedavg"], reference=None))
    witness = Witness()
    monkeypatch.setattr(sweep, "LocalGrid", witness)
    assert InProcess(store)([again]) == {}
    assert [number for _, _, number in witness.rounds()] == [2, 3]


def test_what_two_recipes_need_is_made_once(whole, tiny_images, tmp_path, monkeypatch):
    """The other says the same in other words, and wants a round more of the tasks of one start."""
    folder = shutil.copytree(whole[0], tmp_path / "whole")
    other = tiny_recipe(
        tiny_images,
        {"learning-rate": 0.3, "tasks": 1},
        title="Another comparison",
        methods=["random", {"FedAvg": {"method": "fedavg", "learning-rate": 0.05}}],
        reference="FedAvg",
    )
    path = write_recipe(tmp_path / "other.yaml", other)
    witness = Witness()
    assert run(path, folder / "other", witness, monkeypatch) == 0
    assert witness.seen == []
    other["settings"]["task-rounds"] = 3
    path = write_recipe(tmp_path / "other.yaml", other)
    assert run(path, folder / "other", witness, monkeypatch) == 0
    assert {entry[1] for entry in witness.rounds()} == {"task-0"}


def test_a_failed_run_does_not_stop_the_others_and_is_tried_again(
    whole, tiny_file, tmp_path, monkeypatch, capsys
):
    at = ("train", "fedavg", "pretrain", 2)
    error = RuntimeError("no space\nleft")
    assert run(tiny_file, tmp_path / "out", Witness(at, error), monkeypatch) == 1
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if line.startswith("coprefl: ")]
    assert len(lines) == 2  # A line a seed.
    assert all(line.endswith(" failed: RuntimeError: no space left") for line in lines)
    page = (tmp_path / "out" / "report" / "report.html").read_text()
    assert "fedavg, seed 1: RuntimeError: no space left" in page
    others = {
        name: data for name, data in files(whole[0] / "models").items() if "fedavg" not in name
    }
    found = files(tmp_path / "models")
    assert {name: data for name, data in found.items() if "fedavg" not in name} == others
    again = Witness()
    assert run(tiny_file, tmp_path / "out", again, monkeypatch) == 0
    assert {entry[0].partition("-")[0] for entry in again.rounds()} == {"fedavg"}
    # Its first round was done.
    assert ("pretrain", 1) not in {entry[1:] for entry in again.rounds()}
    assert files(tmp_path / "out") == files(whole[0] / "out")


def test_where_nothing_can_be_chosen_the_report_says_so(tiny_file, tmp_path, monkeypatch, capsys):
    """The row is the reference, too."""
    witness = Witness(("train", "coprefl", "pretrain", 1), OSError("no"))
    assert run(tiny_file, tmp_path / "out", witness, monkeypatch) == 1
    assert capsys.readouterr().err.count(" failed: OSError: no\n") == 2
    page = (tmp_path / "out" / "report" / "report.html").read_text()
    assert "coprefl: no value could be chosen" in page
    table = (tmp_path / "out" / "report" / "tables" / "table.md").read_text().splitlines()
    rows = {line.split("|")[1].strip(" _*"): line for line in table if line.startswith("|")}
    assert [name for name in rows if name in ("random", "fedavg", "coprefl")] == list(rows)[-3:]
    figures = {name: bool(re.search(r"\d\.\d", rows[name])) for name in list(rows)[-3:]}
    assert figures == {"random": True, "fedavg": True, "coprefl": False}


def test_megabytes_are_those_of_a_deployment_however_many_nodes_there_are(
    tiny_images, tmp_path, monkeypatch
):
    """Three rounds of three clients, and a task of two rounds of three: each has its own node."""
    columns = ["models", "megabytes", "megabytes-to-0.1%"]
    content = tiny_recipe(
        tiny_images,
        {"tasks": 1, "model": "tests.common.networks:plain_network"},
        methods=["fedavg", "coprefl", "scaffold", "cyclic"],
        reference="fedavg",
        metrics=columns,
    )
    path = write_recipe(tmp_path / "recipe.yaml", content)

    def reported(nodes):
        out = tmp_path / str(nodes) / "out"
        assert (
            run(path, out, lambda app, _, config: LocalGrid(app, nodes, config), monkeypatch) == 0
        )
        values = pd.read_csv(out / "report" / "units.csv", index_col="row")
        return values[columns].to_dict("index")

    one = reported(1)
    model, task = ((36 * n + n) * 4 + 2 * 128 for n in (6, 2))  # A header of 128 bytes an array.
    of_task = 2 * 3 * task / 1e6  # Its first round reaches any accuracy.
    for name, times in {"fedavg": 1, "coprefl": 2, "scaffold": 2, "cyclic": 1}.items():
        sent = times * 2 * 3 * 3
        expected = {"models": sent, "megabytes": sent * model / 1e6, columns[-1]: of_task}
        assert one[name] == pytest.approx(expected)
    assert reported(2) == one
    assert reported(3) == one
