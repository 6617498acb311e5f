"""Execution of a recipe's runs: only once, the same bytes after any stop, on any workers."""

import logging
import shutil
from collections import Counter
from pathlib import Path

import pytest

from coprefl_flwr.cli import main, parser
from coprefl_flwr.federation.progress import Progress
from coprefl_flwr.files import LOCKS, SUMS
from coprefl_flwr.recipes import execute
from coprefl_flwr.recipes.execute import Executor, executor, wanted_workers
from coprefl_flwr.recipes.search import check_runs, table_rows
from coprefl_flwr.studies.store import Store, read_result
from tests.common.checks import Killed, assert_close, assert_same_results, files, flip, refusal
from tests.common.recipes import Witness, keep, result_file, run, tiny_recipe, write_recipe
from tests.common.simulation import ROOT


@pytest.fixture(scope="module")
def tiny_file(tiny_images, tmp_path_factory):
    """The tiny recipe's file."""
    return write_recipe(
        tmp_path_factory.mktemp("recipe") / "tiny.yaml", tiny_recipe(tiny_images, seeds=[0, 1])
    )


@pytest.fixture(scope="module")
def whole(tiny_file, tmp_path_factory):
    """A recipe that was run without a stop: its folder, and its messages."""
    folder, witness = tmp_path_factory.mktemp("whole"), Witness()
    with pytest.MonkeyPatch.context() as patch:
        assert run(tiny_file, folder / "out", witness, patch) == 0
    return folder, witness


# ---- in this process -----------------------------------------------------------------------------


def test_everything_is_made_once(whole, tiny_file, monkeypatch):
    folder, witness = whole
    tasks = {"random": 2 * 2, "fedavg": 2 * 2, "coprefl": 2 * 2 + 2 * 1}
    pretrained = {"fedavg": 2, "coprefl": 2 + 2}
    for method, number in tasks.items():
        rounds = [entry for entry in witness.rounds() if entry[0].startswith(method)]
        assert len([entry for entry in rounds if entry[1] != "pretrain"]) == 2 * number
        assert len([e for e in rounds if e[1] == "pretrain"]) == 3 * pretrained.get(method, 0)
    # No round was repeated: there is one message per node and exchange.
    assert set(Counter(witness.seen).values()) == {1}
    names = [name for name in files(folder / "models") if not name.startswith(LOCKS)]
    of_start = {"model.safetensors", "model.json", "README.md", "result.json", SUMS}
    assert {Path(name).name for name in names if "/tasks/" not in name} == of_start
    assert {Path(name).name for name in names if "/tasks/" in name} == {"result.json", SUMS}
    # The same command again sends nothing and changes no file.
    before, again = files(folder), Witness()
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
def test_recipe_killed_twice_ends_with_the_same_bytes(
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
    # After each stop at most one round began again, and nothing else.
    again = sent - Counter(whole[1].seen)
    assert len({entry[1:] for entry in again}) <= len(stops)
    assert {entry[2:] for entry in again} <= {STOPS[stop][2:] for stop in stops}
    assert not Counter(whole[1].seen) - sent


def test_failed_run_does_not_stop_the_others_and_is_tried_again(
    whole, tiny_file, tmp_path, monkeypatch, capsys
):
    at = ("train", "fedavg", "pretrain", 2)
    error = RuntimeError("no space\nleft")
    assert run(tiny_file, tmp_path / "out", Witness(at, error), monkeypatch) == 1
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if line.startswith("coprefl: ")]
    assert len(lines) == 2  # One line per seed.
    assert all(line.endswith(" failed: RuntimeError: no space left") for line in lines)
    page = (tmp_path / "out" / "report" / "report.html").read_text()
    assert "fedavg, seed 1: RuntimeError: no space left" in page
    others = {
        name: data for name, data in files(whole[0] / "models").items() if "fedavg" not in name
    }
    stored = files(tmp_path / "models")
    assert {name: data for name, data in stored.items() if "fedavg" not in name} == others
    again = Witness()
    assert run(tiny_file, tmp_path / "out", again, monkeypatch) == 0
    assert {entry[0].partition("-")[0] for entry in again.rounds()} == {"fedavg"}
    # The first round of FedAvg was already done.
    assert ("pretrain", 1) not in {entry[1:] for entry in again.rounds()}
    assert files(tmp_path / "out") == files(whole[0] / "out")


def test_failed_run_is_not_made_again_for_another_row(recipe_of, store):
    """The reported run of the chosen value is the run of the other row, which failed before."""
    methods = [{"coprefl": {"gamma": [0, 1]}}, {"plain": {"method": "coprefl:gamma=0"}}]
    recipe, calls = recipe_of(methods=methods), []

    def make(runs):
        calls.extend(run.identity for run in runs)
        reported = [run for run in runs if run.settings.seed == 0]
        for one in runs:
            if one not in reported:
                keep(store, one, [90 if one.name.endswith("gamma=0.0") else 10])
        return {run.identity: "no" for run in reported}

    assert execute.run_rows(table_rows(recipe), store, make)
    assert len(calls) == len(set(calls)) == 3


# ---- on workers ----------------------------------------------------------------------------------


@pytest.mark.ray
def test_two_workers_make_the_results_of_one(tiny_images, tmp_path, monkeypatch, capfd, caplog):
    """One worker dies, and its run is continued; one run fails at first, and is reported.

    A method and a metric are a user's own files outside the package.
    """
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    parts = shutil.copytree(ROOT / "examples" / "own_parts", tmp_path / "own")
    mine = {"mine": {"method": f"{parts / 'method.py'}:PartWay"}}
    methods = ["random", "fedavg", mine, {"coprefl": {"gamma": [0.0, 1.0]}}]
    metrics = ["accuracy", f"{parts / 'metric.py'}:worst_class"]
    keys = {"seeds": [0, 1], "methods": methods, "metrics": metrics}
    content = tiny_recipe(tiny_images, {"timeout": 60}, **keys)
    path = write_recipe(tmp_path / "recipe.yaml", content)
    assert main(["run", str(path), "--out", str(tmp_path / "one" / "out")]) == 0
    # A file at the path at which a run needs its folder.
    single, two = tmp_path / "one" / "models", tmp_path / "two" / "models"
    lost = min(path.name for path in single.glob("random-*"))
    two.mkdir(parents=True)
    (two / lost).touch()
    arguments = ["run", str(path), "--out", str(tmp_path / "two" / "out"), "--workers", "2"]
    capfd.readouterr()
    caplog.set_level(logging.INFO, "flwr.coprefl")
    caplog.clear()
    assert main([*arguments, "--tracker", "tests.common.own_parts:tracker"]) == 1
    out, err = capfd.readouterr()
    assert not ray.is_initialized()
    assert "\x1b" not in out + err  # The output is not a terminal.
    lines = [line for line in err.splitlines() if line.startswith("copr")]
    assert len(lines) == 1
    assert lines[0].startswith(f"coprefl: {lost} failed: ")
    assert (tmp_path / "two" / "out" / "died").exists()
    messages = caplog.messages
    # Rounds of the pre-training, and of the tasks.
    ended = [line for line in messages if "FedAvg, seed " in line and "  round 7/7" in line]
    assert len(ended) == 2
    (two / lost).unlink()
    # The two workers share the clients of the only run that is left.
    assert main(arguments) == 0
    for task in (single / lost / "tasks").iterdir():
        found = read_result(two / task.relative_to(single))["rows"]
        assert_close(found, read_result(task)["rows"])
    shutil.rmtree(two / lost)
    assert main([*arguments[:-1], "1"]) == 0
    assert_same_results(two, single)
    # All runs are done: no worker is started.
    monkeypatch.setattr(execute, "connect", None)
    before = files(two)
    assert main(arguments) == 0
    assert files(two) == before


def test_number_of_workers_is_that_of_the_option_or_of_the_cores(monkeypatch):
    monkeypatch.setattr(execute, "cores", lambda: 7)
    assert wanted_workers(None) == (7, False)
    assert wanted_workers(3) == (3, True)
    monkeypatch.setenv("COPREFL_WORKERS", "4")
    assert parser().parse_args(["run", "a.yaml"]).workers == 4
    assert parser().parse_args(["run", "a.yaml", "--workers", "2"]).workers == 2


@pytest.fixture
def no_ray(monkeypatch):
    """Two cores, no wanted number of workers, and a Ray that cannot be started."""
    monkeypatch.setattr(execute, "cores", lambda: 2)
    monkeypatch.setattr(execute, "connect", None)


def test_little_work_starts_no_workers(recipe_of, tmp_path, no_ray, monkeypatch):
    runs = check_runs(recipe_of(methods=["fedavg"], reference=None))
    store, other = Store(tmp_path / "models"), Store(tmp_path / "other")
    with executor(store, None) as make:
        assert make(runs) == {}
    assert Executor(other)(runs) == {}
    assert files(store.root) == files(other.root)
    monkeypatch.setattr(execute, "FEW", 1)
    with executor(Store(tmp_path / "more"), None) as make, pytest.raises(TypeError):
        make(runs)


def test_finished_runs_are_cleaned_and_damaged_models_refused(recipe_of, store, no_ray):
    runs = check_runs(recipe_of(methods=["scaffold"], reference=None))
    assert Executor(store)(runs) == {}
    whole = files(store.root)
    start, task = (store.folder(stage) for stage in runs[0].study.stages[:2])
    for remains in (".{}.1.coprefl-part", "{}", "{}.rounds.jsonl"):
        (task / remains.format("checkpoint.safetensors")).touch()
    (start / "client-state/a").mkdir(parents=True)
    with executor(store, None) as make:
        assert make(runs) == {}
    assert files(store.root) == whole
    assert not (start / "client-state").exists()
    assert Executor(store, workers=2)(runs) == {}  # Nothing is left, so Ray is not started.
    flip(start / "model.safetensors", -1)
    with executor(store, None) as make:
        line = refusal(make, runs)
    assert line.startswith(f"{start / 'model.safetensors'} is damaged: ")
    assert line.endswith(f"; remove the folder {start}, and run the same command again")
    shutil.rmtree(start)
    with executor(store, None) as make:
        assert make(runs) == {}
    assert files(store.root) == whole


def test_missing_task_of_a_finished_run_is_made_again(recipe_of, store, monkeypatch):
    runs = check_runs(recipe_of(methods=["fedavg"], reference=None))
    assert Executor(store)(runs) == {}
    whole = files(store.root)
    shutil.rmtree(result_file(store, runs[0], 1).parent)
    witness = Witness()
    monkeypatch.setattr(execute, "LocalGrid", witness)
    assert Executor(store)(runs) == {}
    assert {population for _, population, _ in witness.rounds()} == {"task-1"}
    assert files(store.root) == whole


def test_rounds_of_a_run_are_read_from_the_store(recipe_of, store, monkeypatch):
    """A run that was stopped in the second round of its second task has 3 + 2 + 1 rounds."""
    (run,) = check_runs(recipe_of(methods=["fedavg"], reference=None))
    monkeypatch.setattr(execute, "LocalGrid", Witness(("train", "fedavg", "task-1", 2)))
    with pytest.raises(Killed):
        Executor(store)([run])
    progress = Progress(1, 7)
    part = progress.part("FedAvg", 7)
    execute._look(run, part, store)
    assert part.task.completed == 6
    assert part.task.fields["loss"].startswith("loss ")
