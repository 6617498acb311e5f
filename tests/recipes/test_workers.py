"""Workers: the numbers of this process, whoever makes which stage, and however many die."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from coprefl_flwr.cli import main
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.recipes import workers
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.sweep import InProcess, check_runs
from coprefl_flwr.recipes.work import Work
from coprefl_flwr.recipes.workers import Maker, OnWorkers, wanted_workers, workshop
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.store import Store
from tests.common.checks import assert_same_results, files, flip
from tests.common.recipes import keep, result_file, tiny_recipe, write_recipe
from tests.common.simulation import ROOT


@pytest.mark.ray
def test_two_workers_make_the_same_results(tiny_images, tmp_path, monkeypatch, capfd, caplog):
    """One dies, and another goes on; one run fails at first, and is reported.

    A method and a metric are of a user's own, outside of the package.
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
    # A file where a run wants its folder.
    one, two = tmp_path / "one" / "models", tmp_path / "two" / "models"
    lost = min(path.name for path in one.glob("random-*"))
    two.mkdir(parents=True)
    (two / lost).touch()
    arguments = ["run", str(path), "--out", str(tmp_path / "two" / "out"), "--workers", "2"]
    capfd.readouterr()
    caplog.set_level(logging.INFO, "flwr.coprefl")
    caplog.clear()
    assert main([*arguments, "--tracker", "tests.common.own_parts:tracker"]) == 1
    out, err = capfd.readouterr()
    assert not ray.is_initialized()
    assert "\x1b" not in out + err  # It is no terminal.
    lines = [line for line in err.splitlines() if line.startswith("copr")]
    assert len(lines) == 1
    assert lines[0].startswith(f"coprefl: {lost} failed: ")
    assert (tmp_path / "two" / "out" / "died").exists()
    told = caplog.messages
    died = [line for line in told if line.endswith(": its worker died; another goes on")]
    assert [line.partition(", seed ")[0] for line in died] == ["pre-training fedavg"]
    ended = [line for line in told if "fedavg, seed " in line and "  round 3/3  loss" in line]
    assert len(ended) == 2
    # What a worker logs is logged here, as if there were one process.
    assert any(line.startswith("resumed from ") for line in told)
    # All but the tasks of the run that failed; no number is given twice.
    numbers = {line.partition("/")[0] for line in told if line.startswith("[") and "3/3" in line}
    assert len(numbers) == 2 + 2 + 2 + 2
    (two / lost).unlink()
    assert main([*arguments[:-1], "1"]) == 0
    assert_same_results(two, one)
    # All is done: nothing is started.
    monkeypatch.setattr(workers, "connect", None)
    before = files(two)
    assert main(arguments) == 0
    assert files(two) == before


def in_session(leader):
    """Return what runs in the session that a process began: {process id: its command}."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = command.decode()
    return found


@pytest.mark.ray
def test_no_process_outlives_a_run_that_is_killed(tiny_images, tmp_path, monkeypatch):
    """Two of Ray's own stayed for a minute."""
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
            while (left := in_session(run.pid)) and time.monotonic() < end:
                time.sleep(0.2)
            assert left == {}
        finally:
            for process in in_session(run.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def test_how_many_workers(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 7)
    assert wanted_workers(None) == (1, True)  # As set for tests.
    monkeypatch.delenv("COPREFL_WORKERS")
    assert wanted_workers(None) == (7, False)
    assert wanted_workers(3) == (3, True)
    monkeypatch.setenv("COPREFL_WORKERS", "4")
    assert wanted_workers(None) == (4, True)
    assert wanted_workers(2) == (2, True)
    for said in ("0", "four", "-1"):
        monkeypatch.setenv("COPREFL_WORKERS", said)
        with pytest.raises(SettingsError, match=f"COPREFL_WORKERS={said}: must be a whole number"):
            wanted_workers(None)
    with pytest.raises(SettingsError, match="--workers 0: must be a whole number, at least 1"):
        wanted_workers(0)


def test_little_work_that_nobody_wanted_workers_for_is_done_here(
    tiny_images, tmp_path, monkeypatch
):
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(workers, "connect", None)
    monkeypatch.delenv("COPREFL_WORKERS")
    content = tiny_recipe(tiny_images, methods=["fedavg"], reference=None)
    runs = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store, other = Store(tmp_path / "models"), Store(tmp_path / "other")
    with workshop(store, None) as make:
        assert make(runs) == {}
    assert InProcess(other)(runs) == {}
    assert files(store.root) == files(other.root)
    monkeypatch.setattr(workers, "FEW", 1)
    with workshop(Store(tmp_path / "more"), None) as make, pytest.raises(TypeError):
        make(runs)


def test_runs_that_are_done_are_looked_through(tiny_images, tmp_path, monkeypatch):
    """What kills left of them stayed, and a model that was damaged later was reported."""
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(workers, "connect", None)
    monkeypatch.delenv("COPREFL_WORKERS")
    content = tiny_recipe(tiny_images, methods=["scaffold"], reference=None)
    runs = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store = Store(tmp_path / "models")
    assert InProcess(store)(runs) == {}
    whole = files(store.root)
    start, task = (store.folder(stage) for stage in runs[0].study.stages[:2])
    for left in (".{}.1.coprefl-part", "{}", "{}.rounds.jsonl"):
        (task / left.format("checkpoint.safetensors")).touch()
    (start / "client-state/a").mkdir(parents=True)
    with workshop(store, None) as make:
        assert make(runs) == {}
    assert files(store.root) == whole
    assert not (start / "client-state").exists()
    flip(start / "model.safetensors", -1)
    with workshop(store, None) as make:
        assert make(runs) == {}
    assert (start / "model.safetensors.damaged").exists()
    found = files(store.root)
    assert {name: found[name] for name in whole} == whole


def test_what_another_process_makes_is_left_alone(tiny_images, tmp_path):
    content = tiny_recipe(tiny_images, methods=["random"], reference=None)
    runs = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store = Store(tmp_path / "models")
    assert InProcess(store)(runs) == {}
    stage = runs[0].study.stages[1]
    half = store.folder(stage) / ".result.json.1.coprefl-part"
    with store.held(stage):
        half.touch()
        Work(runs, store)
        assert half.exists()
    Work(runs, store)
    assert not half.exists()


def test_few_stages_get_several_workers(tiny_images, tmp_path):
    """First what comes first, then what waits for it; what is random has no clients at work."""
    methods = ["random", "fedavg", "cyclic", "coprefl"]
    content = tiny_recipe(tiny_images, {"tasks": 1}, select="test", methods=methods)
    runs = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store = Store(tmp_path / "models")
    work = Work(runs, store)
    assert work.participations == 3 * (3 + 1 + 3) + 4 * 2 * 3
    taken = [work.take(free) for free in (9, 8, 7, 6)]
    assert [(piece.title, many) for piece, many in taken] == [
        ("pre-training random", 1),
        ("pre-training fedavg", 3),  # Its participants.
        ("pre-training cyclic", 1),  # One client works at a time.
        ("pre-training coprefl", 3),
    ]
    assert not work.left
    assert work.take(9) is None
    random, fedavg, cyclic, coprefl = [piece for piece, _ in taken]
    work.end(fedavg)
    work.end(random)
    assert work.take(0) is None
    assert [(p.title, many) for p, many in (work.take(3), work.take(1))] == [
        ("task 0 from fedavg", 2),
        ("task 0 from random", 1),
    ]
    # What waits for a stage that failed is not made.
    assert work.end(coprefl, "no")
    assert not work.end(coprefl, "again")
    assert work.failed == {coprefl.run.key: "no"}
    work.put_back(cyclic)
    assert work.take(1) == (cyclic, 1)
    assert work.take(1) is None


def test_of_two_runs_of_one_start_each_fails_alone(tiny_images, tmp_path):
    """They have one key, but tasks of their own."""
    content = tiny_recipe(tiny_images, {"tasks": 1}, methods=["fedavg"], reference=None)
    (run,) = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    longer = Run(replace(run.settings, task_rounds=5))
    assert run.key == longer.key
    work = Work([run, longer], Store(tmp_path / "models"))
    (start, _), none = work.take(1), work.take(1)
    assert none is None
    work.end(start)
    (first, _) = work.take(1)
    assert work.end(first, "no")
    other, _ = work.take(1)
    assert [one.rounds for one in (first, other)] == [2, 5]
    assert work.failed == {run.key: "no"}


def test_a_workers_log_is_its_own_again_where_nobody_waits_for_the_end(monkeypatch):
    """As where the stage's run was ended: the next stage's lines would go to nobody."""
    report = RoundReport(1, 1, {}, {}, None, 0.0)

    def attempt(run, store, told, *given, **more):
        told.begin("a stage", "a kind", 1, 0)(report)
        return ""

    monkeypatch.setattr(workers, "attempt", attempt)
    flower = logging.getLogger("flwr")
    before = flower.handlers
    told = Maker.make(None, None, "key", None, None, [])
    assert next(told).round == 1
    assert flower.handlers is not before
    told.close()
    assert flower.handlers is before


class Calls:
    """Stands for Ray, of whose workers some answer: "late" does not, "dead" never will."""

    def __init__(self, monkeypatch, answers):
        ray = pytest.importorskip("ray")
        self.error = ray.exceptions.RayActorError(error_msg="it is dead\nsomewhere")
        monkeypatch.setattr(workers, "connect", lambda number: False)
        started = [SimpleNamespace(adopt=self.method(answer)) for answer in answers]
        monkeypatch.setattr(workers, "start_hosts", lambda number, kind, patient: started)
        monkeypatch.setattr(ray, "wait", self.wait)
        monkeypatch.setattr(ray, "get", self.get)

    def method(self, answer):
        return SimpleNamespace(remote=lambda own: (answer, object()))

    def wait(self, refs, num_returns, timeout):
        return [one for one in refs if one[0] != "late"], [one for one in refs if one[0] == "late"]

    def get(self, ref):
        if ref[0] == "dead":
            raise self.error


def test_workers_that_are_late_or_lost_are_told(monkeypatch, caplog, tmp_path):
    """The stages begin on those that are there."""
    Calls(monkeypatch, ["there", "late", "dead"])
    made = OnWorkers(Store(tmp_path), 3)
    made._start()
    assert len(made._free) == len(made._coming) == 1
    lost, late = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert lost.startswith("a worker is lost: ")
    assert "it is dead" in lost
    assert late == (
        "1 of 3 workers are there after 120 s; the others begin when Ray has room for them"
    )
    caplog.clear()
    Calls(monkeypatch, ["there", "there"])
    OnWorkers(Store(tmp_path), 2)._start()
    assert not [one for one in caplog.records if one.levelname == "WARNING"]
    Calls(monkeypatch, ["dead"])
    with pytest.raises(RunFailedError, match=r"no worker is left: .*it is dead"):
        OnWorkers(Store(tmp_path), 1)._start()


def test_what_a_run_has_left_waits_for_nothing_that_is_there(tiny_images, tmp_path):
    content = tiny_recipe(tiny_images, methods=["fedavg"], reference=None)
    (run,) = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store = Store(tmp_path / "models")
    keep(store, run, (50, 50))
    result_file(store, run, 1).write_text("damaged")
    work = Work([run], store)
    assert [piece.title for piece in work.pieces.values()] == ["task 1 from fedavg"]
    assert work.take(1)[0].key == run.measured[1].key
    result_file(store, run).write_text("damaged")
    work = Work([run, run], store)
    assert len(work.pieces) == 2
    assert work.take(2)[0].key == run.key
    assert not work.left
