"""Execution of a recipe's runs: only once, the same bytes after any stop, on any workers."""

import contextlib
import itertools
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from coprefl_flwr.cli import main
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.federation import run as rounds_run
from coprefl_flwr.federation.checkpoint import write_checkpoint
from coprefl_flwr.files import LOCKS, SUMS
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.recipes import execute
from coprefl_flwr.recipes.execute import (
    JobQueue,
    LocalExecutor,
    RayExecutor,
    StageWorker,
    executor,
    wanted_workers,
)
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import check_runs
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.store import Store
from tests.chaos.forked import Kill, forked
from tests.common.checks import Killed, assert_same_results, files, flip
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


def test_everything_is_made_once(whole):
    folder, witness = whole
    tasks = {"random": 2 * 2, "fedavg": 2 * 2, "coprefl": 2 * 2 + 2 * 1}
    pretrained = {"fedavg": 2, "coprefl": 2 + 2}
    for method, number in tasks.items():
        rounds = [entry for entry in witness.rounds() if entry[0].startswith(method)]
        assert len([entry for entry in rounds if entry[1] != "pretrain"]) == 2 * number
        assert len([e for e in rounds if e[1] == "pretrain"]) == 3 * pretrained.get(method, 0)
    # No round was repeated: there is one message per node and exchange.
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
    # After each stop at most one round began again, and nothing else.
    again = sent - Counter(whole[1].seen)
    assert len({entry[1:] for entry in again}) <= len(stops)
    assert {entry[2:] for entry in again} <= {STOPS[stop][2:] for stop in stops}
    assert not Counter(whole[1].seen) - sent


def die(*_):
    raise Killed


def test_killed_between_a_rounds_metrics_and_its_checkpoint(
    whole, recipe_of, tmp_path, monkeypatch
):
    """The round is run again, and its metrics are stored once."""
    store = Store(tmp_path / "models")
    (run,) = check_runs(recipe_of(methods=["fedavg"], reference=None))
    for number in (2, 3):  # In the pre-training's second round, and in a task's first.
        writes = iter([write_checkpoint] * (number - 1))

        def dying(path, checkpoint, writes=writes):
            next(writes, die)(path, checkpoint)

        monkeypatch.setattr(rounds_run, "write_checkpoint", dying)
        with pytest.raises(Killed):
            LocalExecutor(store)([run])
    monkeypatch.setattr(rounds_run, "write_checkpoint", write_checkpoint)
    assert LocalExecutor(store)([run]) == {}
    assert files(store.folder(run.main)) == files(whole[0] / "models" / run.key)


@pytest.mark.parametrize(
    ("write", "remains"), [(18, ".result.json.*"), (21, ".model.safetensors.*")]
)
def test_a_process_that_died_in_a_write_leaves_nothing_behind(
    write, remains, whole, tiny_file, tmp_path, monkeypatch
):
    """The process dies as after `kill -9`: no `finally` runs."""
    writes = itertools.count(1)

    def program():
        os.fsync = lambda _: next(writes) < write or os._exit(9)
        return main(["run", str(tiny_file), "--out", str(tmp_path / "out")])

    assert forked(program, Kill(), tmp_path / "told").status == 9
    assert [path.name for path in tmp_path.rglob("*") if path.match(f"{remains}.coprefl-part")]
    assert list(tmp_path.glob(f"models/{LOCKS}/*"))
    assert run(tiny_file, tmp_path / "out", Witness(), monkeypatch) == 0
    assert files(tmp_path / "models") == files(whole[0] / "models")


def test_stopped_between_the_model_and_its_checkpoint(recipe_of, tmp_path):
    """The model's file is written last; then the checkpoint files next to it are of no use."""
    store = Store(tmp_path / "models")
    recipe = recipe_of({"tasks": 0}, methods=["fedavg"], reference=None)
    (run,) = check_runs(recipe)
    assert LocalExecutor(store)([run]) == {}
    before = files(tmp_path / "models")
    for missing in ("checkpoint.safetensors", "checkpoint.safetensors.rounds.jsonl"):
        (store.folder(run.main) / missing).touch()
    (store.folder(run.main) / "client-state" / "x").mkdir(parents=True)
    assert LocalExecutor(store)([run]) == {}
    assert files(tmp_path / "models") == before
    assert not (store.folder(run.main) / "client-state").exists()


def test_how_often_a_round_is_tried_may_change_on_the_way(recipe_of, tmp_path, monkeypatch):
    """Settings that are not part of a run's name may change, and the run still continues."""
    store, settings = Store(tmp_path / "models"), {"tasks": 0}
    (run,) = check_runs(recipe_of(settings, methods=["fedavg"], reference=None))
    monkeypatch.setattr(execute, "LocalGrid", Witness(("train", "fedavg", "pretrain", 2)))
    with pytest.raises(Killed):
        LocalExecutor(store)([run])
    settings |= {"max-failed-rounds": 9, "timeout": 9.0, "checkpoint-every": 9}
    (again,) = check_runs(recipe_of(settings, methods=["fedavg"], reference=None))
    witness = Witness()
    monkeypatch.setattr(execute, "LocalGrid", witness)
    assert LocalExecutor(store)([again]) == {}
    assert [number for _, _, number in witness.rounds()] == [2, 3]


def test_what_two_recipes_need_is_made_once(whole, tiny_images, tmp_path, monkeypatch):
    """The other recipe has the same runs in other words, and then asks for one more task round."""
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


def test_where_nothing_can_be_chosen_the_report_says_so(tiny_file, tmp_path, monkeypatch, capsys):
    """The row is also the reference."""
    witness = Witness(("train", "coprefl", "pretrain", 1), OSError("no"))
    assert run(tiny_file, tmp_path / "out", witness, monkeypatch) == 1
    assert capsys.readouterr().err.count(" failed: OSError: no\n") == 2
    page = (tmp_path / "out" / "report" / "report.html").read_text()
    assert "coprefl: no value is chosen" in page
    table = (tmp_path / "out" / "report" / "tables" / "table.md").read_text().splitlines()
    rows = {line.split("|")[1].strip(" _*"): line for line in table if line.startswith("|")}
    assert [name for name in rows if name in ("random", "FedAvg", "CoPreFL")] == list(rows)[-3:]
    figures = {name: bool(re.search(r"\d\.\d", rows[name])) for name in list(rows)[-3:]}
    assert figures == {"random": True, "FedAvg": True, "CoPreFL": False}


def test_megabytes_are_those_of_a_deployment_however_many_nodes_there_are(
    tiny_images, tmp_path, monkeypatch
):
    """The traffic is that of a deployment, where each client has its own node.

    Three clients take part in each of three rounds, and in each of the two rounds of a task.
    """
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

    local = reported(1)
    model, task = ((36 * n + n) * 4 + 2 * 128 for n in (6, 2))  # An array's header has 128 bytes.
    of_task = 2 * 3 * task / 1e6  # The first round of the task reaches 0.1 %.
    for name, times in {"fedavg": 1, "coprefl": 2, "scaffold": 2, "cyclic": 1}.items():
        sent = times * 2 * 3 * 3
        expected = {"models": sent, "megabytes": sent * model / 1e6, columns[-1]: of_task}
        assert local[name] == pytest.approx(expected)
    assert reported(2) == local
    assert reported(3) == local


# ---- on workers ----------------------------------------------------------------------------------


@pytest.mark.ray
def test_two_workers_make_the_same_results(tiny_images, tmp_path, monkeypatch, capfd, caplog):
    """One worker dies, and another worker continues; one run fails at first, and is reported.

    A method and a metric are a user's own files outside the package.
    """
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    own = shutil.copytree(ROOT / "examples" / "own_parts", tmp_path / "own")
    mine = {"mine": {"method": f"{own / 'method.py'}:PartWay"}}
    methods = ["random", "fedavg", mine, {"coprefl": {"gamma": [0.0, 1.0]}}]
    metrics = ["accuracy", f"{own / 'metric.py'}:worst_class"]
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
    died = [
        line for line in messages if line.endswith(": its worker died; another worker continues it")
    ]
    assert [line.partition(", seed ")[0] for line in died] == ["pre-training fedavg"]
    ended = [line for line in messages if "FedAvg, seed " in line and "  round 3/3  loss" in line]
    assert len(ended) == 2
    # The log lines of the workers are logged here, as if there were one process.
    assert any(line.startswith("resumed from ") for line in messages)
    # The eight pre-trainings, which alone have three rounds; no two have the same number.
    numbers = {
        line.partition("/")[0] for line in messages if line.startswith("[") and "3/3" in line
    }
    assert len(numbers) == 2 + 2 + 2 + 2
    (two / lost).unlink()
    assert main([*arguments[:-1], "1"]) == 0
    assert_same_results(two, single)
    # All runs are done: no worker is started.
    monkeypatch.setattr(execute, "connect", None)
    before = files(two)
    assert main(arguments) == 0
    assert files(two) == before


def in_session(leader):
    """Return {process id: command} of the processes in the session that `leader` began."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                processes[int(folder.name)] = command.decode()
    return processes


@pytest.mark.ray
def test_no_process_outlives_a_run_that_is_killed(tiny_images, tmp_path, monkeypatch):
    """Before, two processes of Ray stayed for a minute."""
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    settings = {"rounds": 100_000, "checkpoint-every": 1}
    content = tiny_recipe(tiny_images, settings, methods=["fedavg", "fedprox"], reference=None)
    path = write_recipe(tmp_path / "recipe.yaml", content)
    arguments = ["run", str(path), "--out", str(tmp_path / "out"), "--workers", "2"]
    program = "import sys; from coprefl_flwr.cli import main; main(sys.argv[1:])"
    begun = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(begun, cwd=ROOT, start_new_session=True) as run:
        try:
            models = tmp_path / "models"
            while len(list(models.glob("*/checkpoint.safetensors"))) < 2:
                assert run.poll() is None
                time.sleep(0.2)
            assert any("raylet" in command for command in in_session(run.pid).values())
            run.kill()
            run.wait()
            end = time.monotonic() + 40
            while (remaining := in_session(run.pid)) and time.monotonic() < end:
                time.sleep(0.2)
            assert remaining == {}
        finally:
            for process in in_session(run.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def test_how_many_workers(monkeypatch):
    monkeypatch.setattr(execute, "cores", lambda: 7)
    assert wanted_workers(None) == (1, True)  # The tests set COPREFL_WORKERS.
    monkeypatch.delenv("COPREFL_WORKERS")
    assert wanted_workers(None) == (7, False)
    assert wanted_workers(3) == (3, True)
    monkeypatch.setenv("COPREFL_WORKERS", "4")
    assert wanted_workers(None) == (4, True)
    assert wanted_workers(2) == (2, True)
    for text in ("0", "four", "-1"):
        monkeypatch.setenv("COPREFL_WORKERS", text)
        with pytest.raises(SettingsError, match=f"COPREFL_WORKERS={text}: must be a whole number"):
            wanted_workers(None)
    with pytest.raises(SettingsError, match="--workers 0: must be a whole number, at least 1"):
        wanted_workers(0)


def test_little_work_that_nobody_wanted_workers_for_is_done_here(
    tiny_images, tmp_path, monkeypatch
):
    monkeypatch.setattr(execute, "cores", lambda: 2)
    monkeypatch.setattr(execute, "connect", None)
    monkeypatch.delenv("COPREFL_WORKERS")
    content = tiny_recipe(tiny_images, methods=["fedavg"], reference=None)
    runs = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store, other = Store(tmp_path / "models"), Store(tmp_path / "other")
    with executor(store, None) as make:
        assert make(runs) == {}
    assert LocalExecutor(other)(runs) == {}
    assert files(store.root) == files(other.root)
    monkeypatch.setattr(execute, "FEW", 1)
    with executor(Store(tmp_path / "more"), None) as make, pytest.raises(TypeError):
        make(runs)


def test_runs_that_are_done_are_looked_through(tiny_images, tmp_path, monkeypatch):
    """Before, files of killed runs stayed, and a model that was damaged later was reported."""
    monkeypatch.setattr(execute, "cores", lambda: 2)
    monkeypatch.setattr(execute, "connect", None)
    monkeypatch.delenv("COPREFL_WORKERS")
    content = tiny_recipe(tiny_images, methods=["scaffold"], reference=None)
    runs = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store = Store(tmp_path / "models")
    assert LocalExecutor(store)(runs) == {}
    whole = files(store.root)
    start, task = (store.folder(stage) for stage in runs[0].study.stages[:2])
    for remains in (".{}.1.coprefl-part", "{}", "{}.rounds.jsonl"):
        (task / remains.format("checkpoint.safetensors")).touch()
    (start / "client-state/a").mkdir(parents=True)
    with executor(store, None) as make:
        assert make(runs) == {}
    assert files(store.root) == whole
    assert not (start / "client-state").exists()
    flip(start / "model.safetensors", -1)
    with executor(store, None) as make:
        assert make(runs) == {}
    assert (start / "model.safetensors.damaged").exists()
    stored = files(store.root)
    assert {name: stored[name] for name in whole} == whole


def test_what_another_process_makes_is_left_alone(tiny_images, tmp_path):
    content = tiny_recipe(tiny_images, methods=["random"], reference=None)
    runs = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store = Store(tmp_path / "models")
    assert LocalExecutor(store)(runs) == {}
    stage = runs[0].study.stages[1]
    half = store.folder(stage) / ".result.json.1.coprefl-part"
    with store.locked(stage):
        half.touch()
        JobQueue(runs, store)
        assert half.exists()
    JobQueue(runs, store)
    assert not half.exists()


def test_few_stages_get_several_workers(tiny_images, tmp_path):
    """The queue first gives the stages that wait for nothing, then the stages that wait for them.

    A random start trains no clients, so it gets one worker.
    """
    methods = ["random", "fedavg", "cyclic", "coprefl"]
    content = tiny_recipe(tiny_images, {"tasks": 1}, select="test", methods=methods)
    runs = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store = Store(tmp_path / "models")
    work = JobQueue(runs, store)
    assert work.participations == 3 * (3 + 1 + 3) + 4 * 2 * 3
    shares = [work.take(free) for free in (9, 8, 7, 6)]
    assert [(piece.title, many) for piece, many in shares] == [
        ("pre-training random", 1),
        ("pre-training fedavg", 3),  # Three clients take part.
        ("pre-training cyclic", 1),  # One client works at a time.
        ("pre-training coprefl", 3),
    ]
    assert not work.has_ready
    assert work.take(9) is None
    random, fedavg, cyclic, coprefl = [piece for piece, _ in shares]
    work.end(fedavg)
    work.end(random)
    assert work.take(0) is None
    assert [(p.title, many) for p, many in (work.take(3), work.take(1))] == [
        ("task 0 from fedavg", 2),
        ("task 0 from random", 1),
    ]
    # A stage that waits for a failed stage is not executed.
    assert work.end(coprefl, "no")
    assert not work.end(coprefl, "again")
    assert work.failed == {coprefl.run.identity: "no"}
    work.put_back(cyclic)
    assert work.take(1) == (cyclic, 1)
    assert work.take(1) is None


def test_of_two_runs_of_one_start_each_fails_alone(tiny_images, tmp_path):
    """The two runs have the same key, but different tasks."""
    content = tiny_recipe(tiny_images, {"tasks": 1}, methods=["fedavg"], reference=None)
    (run,) = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    longer = Run(replace(run.settings, task_rounds=5))
    assert run.key == longer.key
    work = JobQueue([run, longer], Store(tmp_path / "models"))
    (start, _), none = work.take(1), work.take(1)
    assert none is None
    work.end(start)
    (first, _) = work.take(1)
    assert work.end(first, "no")
    other, _ = work.take(1)
    assert [run.rounds for run in (first, other)] == [2, 5]
    assert work.failed == {run.identity: "no"}
    assert work.end(other, "no too")
    assert work.failed == {run.identity: "no", longer.identity: "no too"}


def test_a_workers_log_is_its_own_again_where_nobody_waits_for_the_end(monkeypatch):
    """The worker gets its log back even if the run of a stage is ended early.

    Otherwise the log lines of the next stage would be lost.
    """
    report = RoundReport(1, 1, {}, {}, None, 0.0)

    def attempt(run, store, progress, *args, **more):
        progress.begin("a stage", "a kind", 1, 0)(report)
        return ""

    monkeypatch.setattr(execute, "attempt", attempt)
    flower = logging.getLogger("flwr")
    before = flower.handlers
    messages = StageWorker.make(None, None, "key", None, None, [])
    assert next(messages).round == 1
    assert flower.handlers is not before
    messages.close()
    assert flower.handlers is before


class Calls:
    """Replaces Ray: a "late" worker does not answer yet, a "dead" worker never, others at once."""

    def __init__(self, monkeypatch, answers):
        ray = pytest.importorskip("ray")
        self.error = ray.exceptions.RayActorError(error_msg="it is dead\nsomewhere")
        monkeypatch.setattr(execute, "connect", lambda number: False)
        started = [SimpleNamespace(adopt=self.method(answer)) for answer in answers]
        monkeypatch.setattr(execute, "start_hosts", lambda number, kind, patient: started)
        monkeypatch.setattr(ray, "wait", self.wait)
        monkeypatch.setattr(ray, "get", self.get)

    def method(self, answer):
        return SimpleNamespace(remote=lambda own: (answer, object()))

    def wait(self, refs, num_returns, timeout):
        return [ref for ref in refs if ref[0] != "late"], [ref for ref in refs if ref[0] == "late"]

    def get(self, ref):
        if ref[0] == "dead":
            raise self.error


def test_workers_that_are_late_or_lost_are_told(monkeypatch, caplog, tmp_path):
    """The stages begin on the workers that have started."""
    Calls(monkeypatch, ["there", "late", "dead"])
    ray_executor = RayExecutor(Store(tmp_path), 3)
    ray_executor._start()
    assert len(ray_executor._free) == len(ray_executor._coming) == 1
    lost, late = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert lost.startswith("a worker is lost: ")
    assert "it is dead" in lost
    assert late == (
        "1 of 3 workers have started in 120 s; the others start when Ray has free resources"
    )
    caplog.clear()
    Calls(monkeypatch, ["there", "there"])
    RayExecutor(Store(tmp_path), 2)._start()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    Calls(monkeypatch, ["dead"])
    with pytest.raises(RunFailedError, match=r"no worker is left: .*it is dead"):
        RayExecutor(Store(tmp_path), 1)._start()


def test_what_a_run_has_left_waits_for_nothing_that_is_there(tiny_images, tmp_path):
    content = tiny_recipe(tiny_images, methods=["fedavg"], reference=None)
    (run,) = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store = Store(tmp_path / "models")
    keep(store, run, (50, 50))
    result_file(store, run, 1).write_text("damaged")
    work = JobQueue([run], store)
    assert [piece.title for piece in work.jobs.values()] == ["task 1 from fedavg"]
    assert work.take(1)[0].key == run.client_stages[1].key
    result_file(store, run).write_text("damaged")
    work = JobQueue([run, run], store)
    assert len(work.jobs) == 2
    assert work.take(2)[0].key == run.key
    assert not work.has_ready
