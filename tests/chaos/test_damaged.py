"""Damaged files of every kind that a study or a recipe writes: no damaged result is reported.

A damaged file is named, put aside and made again, so that at the end the files have the bytes of an
undamaged run. Otherwise the run is refused with an error message of one line, and good files stay.
"""

import os
import shutil

import pytest

from coprefl_flwr.studies.store import MADE_OF
from tests.chaos.forked import Kill
from tests.chaos.length import LENGTHS, counted, draws
from tests.chaos.works import COMMANDS, check_whole, is_lock, left, recipe

UNSUMMED = {
    "model.json": "describes when and where a model was made, and has no checksum",
    "model.safetensors": "if it is missing, a run that needs it reports this; results stay",
}
"""Files that may stay changed, and why."""

LOST = ("state of round", "is left out: IsADirectoryError")
"""Log lines if the state of a client is damaged: the client is left out, as if it had no state."""


def flip(file, rng):
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def truncate(file, rng):
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])


def folder(file, rng):
    file.unlink()
    file.mkdir()


def another(file, rng):
    """Copy the content of another file, with the same name if there is such a file."""
    others = [one for one in file.parents[3].rglob("*") if one.is_file() and one != file]
    alike = [one for one in others if one.name == file.name] or others
    file.write_bytes(rng.choice(sorted(alike)).read_bytes())


DAMAGES = {
    "a bit": flip,
    "truncated": truncate,
    "empty": lambda file, rng: file.write_bytes(b""),
    "null": lambda file, rng: file.write_bytes(b"null"),
    "a list": lambda file, rng: file.write_bytes(b"[]"),
    "a folder": folder,
    "another's content": another,
    "noise": lambda file, rng: file.write_bytes(rng.randbytes(file.stat().st_size)),
    "gone": lambda file, rng: file.unlink(),
}
if os.geteuid():  # Root may read everything.
    DAMAGES["no permission"] = lambda file, rng: file.chmod(0)


class Scene:
    """A study or recipe that ended or was killed; each case damages one file in a copy of it."""

    def __init__(self, whole, place, stopped=False):
        self.whole, self.place, self.stopped = whole, place, stopped
        found = [one.relative_to(place) for one in place.glob("outputs/**/*") if one.is_file()]
        of_run = [one for one in found if not is_lock(one) and one.suffix != ".coprefl-part"]
        self.files = sorted(of_run)


def stopped(whole):
    """Return a scene of a work that was killed when it had a checkpoint and clients' states."""
    for at in range(10, whole.ended.operations, 5):
        place = whole.folder / f"stopped-{at}"
        whole.forked(place, Kill(operation=at))
        rounds = {one.stem for one in place.rglob("client-state/**/*.safetensors")}
        if any(place.rglob("checkpoint.safetensors")) and len(rounds) > 1:
            return Scene(whole, place, stopped=True)
    raise AssertionError("no moment with a checkpoint and states")


@pytest.fixture(scope="module")
def scenes(wholes):
    """Scenes of studies and recipes that ended; under `make chaos` also of killed runs."""
    found = [Scene(whole, whole.folder / "1") for whole in wholes]
    return found + [stopped(whole) for whole in wholes if LENGTHS]


@draws("damaged", 2)
@counted("damaged")
def test_a_damaged_file_is_made_again_or_refused(rng, scenes, tmp_path):
    """The test damages a file in a copy, and continues the run with it."""
    scene, file = rng.choice([(scene, file) for scene in scenes for file in scene.files])
    damage, run = rng.choice(list(DAMAGES)), tmp_path / "run"
    about = f"{file}, {damage}: "
    shutil.copytree(scene.place, run)
    before = (run / file).read_bytes()
    DAMAGES[damage](run / file, rng)
    readable = (run / file).is_file() and damage != "no permission"
    if readable and (run / file).read_bytes() == before:
        return  # The damage happened to write the same bytes.
    if scene.whole.work is recipe and rng.random() < 1 / 3:
        check_readers(scene, run, about)
    ended = scene.whole.forked(run)
    assert "Traceback" not in ended.output, about + ended.output[-400:]
    if ended.status:
        check_refused(ended, file, about)
        # The error message names the file or folder that a user has to remove or to change.
        return
    if "client-state" in file.parts and any(one in ended.output for one in LOST):
        return  # A client was left out of a round, and the log names it.
    if file.name == MADE_OF and (earlier := (run / file).parent / "earlier-1").exists():
        assert str(earlier) in ended.output, f"{about}the log does not name {earlier}"
        shutil.rmtree(earlier)  # Without a record of its inputs, the result is made again.
    expected = dict(scene.whole.left)
    gone = damage == "gone" and not (run / file).exists()
    if file.name == "model.json" or (gone and file.name in UNSUMMED):
        expected.pop(str(file.relative_to("outputs")), None)  # See UNSUMMED.
        (run / file).unlink(missing_ok=True)
    check_whole(run, expected, about)


def check_readers(scene, run, about):
    """Check the commands that only read: a report of damaged files must not differ silently."""
    for command in ("report", "list", "show"):
        ended = scene.whole.forked(
            run, program=lambda command=command: recipe(scene.whole.images, run, COMMANDS[command])
        )
        assert "Traceback" not in ended.output, f"{about}{command}: {ended.output[-400:]}"
        if ended.status:
            assert ended.output.splitlines()[-1].startswith("coprefl: "), ended.output[-300:]
        silent = not any(word in ended.output for word in (" damaged", "not finished yet"))
        if command == "report" and not ended.status and not scene.stopped and silent:
            made = {k: v for k, v in left(run).items() if k.endswith(".csv")}
            other = [k for k, v in made.items() if scene.whole.left.get(k, v) != v]
            assert not other, f"{about}reported otherwise without a word: {other}"


def check_refused(ended, file, about):
    """Check that the last line names the wrong file, its folder or the wrong setting."""
    lines = [line for line in ended.output.splitlines() if line.strip()]
    assert lines, f"{about}it ended without a word"
    known = (file.name, file.parent.name, "state of round", "resume", "run-name")
    assert any(one in lines[-1] for one in known), f"{about}what is it about? {lines[-1][:300]}"
