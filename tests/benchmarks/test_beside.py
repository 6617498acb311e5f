"""The benchmark of a run next to busy processes, with made-up times and replaced runs."""

import multiprocessing
import sys
import time

import pytest

from benchmarks import beside
from benchmarks.beside import Beside, main, section, section_in
from benchmarks.processes import others_cpu

MACHINE = {"processor": "a processor", "cores": 2, "load_before": 0.1, "date": "2026-01-01"}


def test_the_ratio_is_of_medians_and_told():
    found = Beside(MACHINE, 2, {"default": [30.0, 20.0, 90.0], "one thread": [40.0, 40.0, 10.0]})
    assert found.ratio() == pytest.approx(0.75)
    text = section(found)
    assert "| one thread | 40, 40, 10 | 40.0 | 1.00 |" in text
    assert "| default | 30, 20, 90 | 30.0 | 0.75 |" in text
    assert "**" not in text
    assert "do not quote these figures" in section(
        Beside(MACHINE | {"load_before": 3.0}, 2, found.seconds)
    )


def test_the_busy_processes_are_busy_and_end():
    def taken():
        return {one for one in multiprocessing.active_children() if one.is_alive()}

    others = taken()  # They are from other tests, and may end in the meantime.
    with beside.busy(2):
        begun = taken() - others
        assert len(begun) == 2
        end = time.monotonic() + 60  # Only to give up if a process is not busy.
        while min(others_cpu(one.pid) for one in begun) < 0.05:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert not taken() - others


def test_both_runs_take_turns_in_folders_of_their_own(monkeypatch, tmp_path):
    ran = []

    def run(recipe, folder, how):
        assert "glyphs" in recipe.read_text()
        ran.append((how, folder))
        return 2.0 if how == "default" else 4.0

    monkeypatch.setattr(beside, "run", run)
    main(["--busy", "1", "--repeats", "2", "--output", str(tmp_path)])
    assert [how for how, _ in ran] == ["default", "one thread"] * 2
    assert len({folder for _, folder in ran}) == 4
    assert "| default | 2, 2 | 2.0 | 0.50 |" in section_in(tmp_path)
    assert section_in(tmp_path) in (tmp_path / "performance.md").read_text()
    assert section_in(tmp_path / "none") == ""


def test_each_run_has_its_threads_and_one_that_fails_says_why(monkeypatch, tmp_path):
    """The default run does not use the thread setting of the process that measures."""
    told = "import os, sys; print(os.environ.get('OMP_NUM_THREADS'), *sys.argv[1:]); sys.exit(3)"
    monkeypatch.setattr(beside, "COMMAND", (sys.executable, "-c", told))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "out"
    for how, ends in (("default", f"None {recipe} --out {out}"), ("one thread", "--workers 1")):
        with pytest.raises(RuntimeError, match=rf"\({how}\) failed; its end:\n") as raised:
            beside.run(recipe, tmp_path, how)
        assert str(raised.value).strip().endswith(ends)
    assert f"1 {recipe} " in str(raised.value)


def test_the_recipe_can_be_read(tmp_path):
    import yaml

    from coprefl_flwr.recipes.load import read_recipe

    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(beside.RECIPE))
    assert read_recipe(tmp_path / "recipe.yaml", [], "full", "").title == "Next to busy processes"


def test_a_number_below_one_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--busy", "0"])
    assert "--busy 0: at least 1 is needed" in capsys.readouterr().err
