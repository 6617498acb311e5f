"""A little of each kind of `make chaos`, always the same; simulations and deployments aside."""

import itertools
import os
import random

import pytest

from tests.chaos import corrupted, hostile, inputs, kills, overlaps
from tests.chaos.forked import Kill, forked
from tests.chaos.fuzz import attempt, batch
from tests.chaos.inputs import Target
from tests.chaos.tally import Case, NotHeldError, Tally
from tests.chaos.works import StudyWork
from tests.common.data import write_images

SAMPLED = {("", ""), (".", "new"), ("models/new",)}
"""Places of runs that are not refused."""


@pytest.fixture
def home():
    """Come back to the folder, which forked works leave."""
    before = os.getcwd()
    yield
    os.chdir(before)


def held(kind, cases, enough, folder):
    tally = Tally(folder / "outcomes.jsonl")
    tally.run(kind, cases, enough)
    assert tally.exceptions() == []
    assert sum(one.count for one in tally.found.values()) >= enough


def test_kills_and_damaged_files_of_a_study(tmp_path, home, monkeypatch):
    """Without its figures, which would take most of the time."""
    monkeypatch.setattr("coprefl_flwr.studies.build.write_results", lambda *_: None)
    images = tmp_path / "tiny.npz"
    write_images(images)
    whole = kills.Whole(StudyWork(images), tmp_path / "whole")
    found = [
        Case(str(kill), lambda kill=kill: kills.resumed(whole, [kill], tmp_path))
        for kill in (Kill(operation=31), Kill(operation=9))
    ]
    held("kills", found, 2, tmp_path)
    scene = corrupted.Scene("finished", whole, tmp_path / "finished")
    chosen = [file for file in scene.files() if "scaffold/result.json" in str(file)][:1]
    found = [
        Case(
            f"{file} {damage}",
            lambda file=file, damage=damage: corrupted.check_damage(
                scene, file, damage, random.Random(1), tmp_path
            ),
        )
        for file, damage in itertools.product(chosen, ("a bit", "null"))
    ]
    held("corrupted", found, 2, tmp_path)


@pytest.mark.parametrize(
    ("run", "operation"),
    [(run, 1) for run in overlaps.RUNS if run.refused]
    + [(run, at) for run in overlaps.RUNS if run.places in SAMPLED for at in (9, 60)],
    ids=lambda one: getattr(one, "name", one),
)
def test_a_users_files_stay_as_they_are(run, operation, tmp_path):
    images = tmp_path / "tiny.npz"
    write_images(images)
    overlaps.check_overlap(run, Kill(operation=operation), images, tmp_path)


def test_hostile_replies(tmp_path):
    held("hostile", hostile.cases(7, 40, tmp_path), 40, tmp_path)


@pytest.mark.parametrize("number", range(17))
def test_fuzzed_inputs(number, tmp_path):
    images = tmp_path / "images.npz"
    write_images(images)
    target = inputs.targets(images)[number]
    assert batch(target, 12, "sample") <= 12


# ---- each of them can fail ----------------------------------------------------------------------


def test_what_is_not_refused_in_one_line_is_found():
    def put(value):
        if value == 3:
            raise KeyError(value)

    fault = attempt(put, 3)
    assert "KeyError" in fault.why
    assert attempt(put, 4) is None
    target = Target("planted", inputs.st.integers(0, 3), put)
    with pytest.raises(NotHeldError, match="KeyError: 3") as caught:
        batch(target, 50, "any")
    assert caught.value.held == caught.value.count - 1


def test_what_a_killed_run_left_otherwise_is_found(tmp_path, home):
    def program():
        (tmp_path / "a").write_text("whole")
        os.replace(tmp_path / "a", tmp_path / "b")

    ended = forked(program, Kill(), tmp_path / "told")
    assert (ended.killed, ended.status, ended.operations) == (False, 0, 2)
    (tmp_path / "b").unlink()
    ended = forked(program, Kill(operation=1), tmp_path / "told")
    assert ended.killed
    assert (tmp_path / "a").read_text() == "wh"
    ended = forked(program, Kill(operation=2), tmp_path / "told")
    assert [file.name for file in tmp_path.glob("?")] == ["a"]


def test_a_tally_goes_on_after_what_held(tmp_path):
    ran = []

    def case(name, error=None):
        def check():
            ran.append(name)
            if error:
                raise error

        return Case(name, check)

    file = tmp_path / "outcomes.jsonl"
    Tally(file).run("k", [case("a"), case("b", ValueError("no"))], 9)
    again = Tally(file)
    again.run("k", [case("a"), case("b"), case("c")], 9)
    assert ran == ["a", "b", "b", "c"]
    assert again.exceptions() == []
    assert again.table().splitlines()[1].split()[:3] == ["k", "3", "3"]


def test_a_hostile_client_that_is_not_left_out_is_found():
    """Its weights are finite: nothing can tell, but the sum is another than the good ones'."""
    more = lambda arrays, n, metrics: ({k: a + 1 for k, a in arrays.items()}, n, metrics)  # noqa: E731
    with pytest.raises(AssertionError, match="no line of"):
        hostile.check_client("fedavg", "one", 2, hostile.FIT, more)
