"""Workers: the numbers of this process, whoever makes which stage, and however many die."""

import logging

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.recipes import workers
from coprefl_flwr.recipes.command_line import main
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.runs import ModelStore
from coprefl_flwr.recipes.sweep import InProcess, check_runs
from coprefl_flwr.recipes.work import Work
from coprefl_flwr.recipes.workers import wanted_workers, workshop
from tests.tiny_recipe import (
    assert_same_results,
    files,
    keep,
    result_file,
    tiny_recipe,
    write_recipe,
)


@pytest.mark.ray
def test_two_workers_make_the_same_results(tiny_images, tmp_path, monkeypatch, capfd, caplog):
    """One dies, and another goes on; one run fails at first, and is reported."""
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    content = tiny_recipe(tiny_images, {"timeout": 60}, seeds=[0, 1])
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
    assert main([*arguments, "--tracker", "tests.recipes.dying:tracker"]) == 1
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
    assert len(numbers) == 2 + 2 + 2
    (two / lost).unlink()
    assert main([*arguments[:-1], "1"]) == 0
    assert_same_results(two, one)
    # All is done: nothing is started.
    monkeypatch.setattr(workers, "connect", None)
    before = files(two)
    assert main(arguments) == 0
    assert files(two) == before


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
    store, other = ModelStore(tmp_path / "models"), ModelStore(tmp_path / "other")
    with workshop(store, None) as make:
        assert make(runs) == {}
    assert InProcess(other)(runs) == {}
    assert files(store.root) == files(other.root)
    monkeypatch.setattr(workers, "FEW", 1)
    with workshop(ModelStore(tmp_path / "more"), None) as make, pytest.raises(TypeError):
        make(runs)


def test_few_stages_get_several_workers(tiny_images, tmp_path):
    """First what comes first, then what waits for it; what is random has no clients at work."""
    methods = ["random", "fedavg", "cyclic", "coprefl"]
    content = tiny_recipe(tiny_images, {"tasks": 1}, select="test", methods=methods)
    runs = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store = ModelStore(tmp_path / "models")
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


def test_what_a_run_has_left_waits_for_nothing_that_is_there(tiny_images, tmp_path):
    content = tiny_recipe(tiny_images, methods=["fedavg"], reference=None)
    (run,) = check_runs(read_recipe(write_recipe(tmp_path / "recipe.yaml", content)))
    store = ModelStore(tmp_path / "models")
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
