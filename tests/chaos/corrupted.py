"""Damaged files of every kind that a study or a recipe leaves: nothing of them is reported.

A damaged file is named, put aside and made again, so that the end has the bytes of an undamaged
run; or it is refused in one line, and what is good stays.
"""

import os
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from coprefl_flwr.files import LOCK, LOCKS
from coprefl_flwr.recipes import command_line
from tests.chaos.forked import Ended, Kill, forked, quiet
from tests.chaos.kills import Whole
from tests.chaos.tally import Case
from tests.chaos.works import RecipeWork, StudyWork, check_whole, is_root, left
from tests.common.data import write_images

Damage = Callable[[Path, random.Random], None]

UNSUMMED = {
    "model.json": "says when and where a model was made, and has no checksum",
    "model.safetensors": "where it is gone, whoever needs it says so; results stay",
}
"""Files of which a change may stay, and why."""

LOST = ("state of round", "is left out: IsADirectoryError")
"""What is said of a client whose state is damaged: it is left out, as where it had been lost."""


def flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(bytes(content))


def truncate(file: Path, rng: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])


def written(content: bytes) -> Damage:
    return lambda file, rng: file.write_bytes(content)


def folder(file: Path, rng: random.Random) -> None:
    file.unlink()
    file.mkdir()


def another(file: Path, rng: random.Random) -> None:
    """Put another file's content in: of the same kind where there is one."""
    others = [one for one in file.parents[3].rglob("*") if one.is_file() and one != file]
    alike = [one for one in others if one.name == file.name] or others
    file.write_bytes(rng.choice(sorted(alike)).read_bytes())


def noise(file: Path, rng: random.Random) -> None:
    file.write_bytes(rng.randbytes(len(file.read_bytes())))


def gone(file: Path, rng: random.Random) -> None:
    file.unlink()


def forbidden(file: Path, rng: random.Random) -> None:
    file.chmod(0)


DAMAGES: dict[str, Damage] = {
    "a bit": flip,
    "truncated": truncate,
    "empty": written(b""),
    "null": written(b"null"),
    "a list": written(b"[]"),
    "a folder": folder,
    "another's content": another,
    "noise": noise,
    "gone": gone,
} | ({} if is_root() else {"no permission": forbidden})


class Scene:
    """A work in some state, of which each case damages one file of a copy."""

    def __init__(self, name: str, whole: Whole, place: Path, stop: int = 0) -> None:
        self.name, self.whole, self.place = name, whole, place
        ended = forked(lambda: whole.work.run(place), Kill(operation=stop), place.parent / "told")
        assert ended.killed if stop else not ended.status, ended.output

    def files(self) -> list[Path]:
        """Return the files, without those that only say that somebody has them, or half written."""
        found = [one.relative_to(self.place) for one in self.place.rglob("*") if one.is_file()]
        locks = [one for one in found if LOCKS in one.parts or one.name == LOCK]
        return sorted(one for one in set(found) - set(locks) if one.suffix != ".coprefl-part")


def scenes(folder: Path) -> list[Scene]:
    """Return a study and a recipe, finished and stopped in the middle of a stage with states."""
    images = folder / "tiny.npz"
    write_images(images)
    found = []
    for work in (StudyWork(images), RecipeWork(images)):
        whole = Whole(work, folder / "whole" / work.name)
        found.append(Scene(f"{work.name}, finished", whole, folder / work.name / "finished"))
        stopped = folder / work.name / "stopped"
        found.append(Scene(f"{work.name}, stopped", whole, stopped, at_states(whole, stopped)))
    return found


def at_states(whole: Whole, place: Path) -> int:
    """Return the file operation before which a checkpoint and clients' states are there."""
    for at in range(10, whole.ended.operations, 5):
        shutil.rmtree(place, ignore_errors=True)
        forked(lambda: whole.work.run(place), Kill(operation=at), place.parent / "told")
        rounds = {one.stem for one in place.rglob("client-state/**/*.safetensors")}
        if any(place.rglob("checkpoint.safetensors")) and len(rounds) > 1:
            shutil.rmtree(place)
            return at
    raise AssertionError("no moment with a checkpoint and states")


def cases(seed: int, count: int, folder: Path) -> Iterator[Case]:
    """Yield every kind of damage to every file of every scene, in an order that the seed draws."""
    with quiet():
        known = scenes(folder)
    rng = random.Random(seed)
    found = [
        (scene, file, damage) for scene in known for file in scene.files() for damage in DAMAGES
    ]
    rng.shuffle(found)
    for scene, file, damage in found:

        def check(scene=scene, file=file, damage=damage):
            check_damage(scene, file, damage, random.Random(f"{seed} {file} {damage}"), folder)

        # Keys of results are others in each folder.
        name = re.sub("-[0-9a-f]{12}", "", str(file))
        yield Case(f"{scene.name}, {name}: {damage}", check)


def check_damage(scene: Scene, file: Path, damage: str, rng: random.Random, folder: Path) -> None:
    """Damage a file of a copy, and go on with it."""
    place = Path(tempfile.mkdtemp(dir=folder))
    run = place / "run"
    try:
        shutil.copytree(scene.place, run)
        before = (run / file).read_bytes()
        DAMAGES[damage](run / file, rng)
        readable = (run / file).is_file() and damage != "no permission"
        if readable and (run / file).read_bytes() == before:
            return  # It is what was written over it.
        if isinstance(scene.whole.work, RecipeWork) and rng.random() < 1 / 3:
            check_told(scene, run, place)
        ended = forked(lambda: scene.whole.work.run(run), Kill(), place / "told")
        assert "Traceback" not in ended.output, ended.output[-400:]
        if ended.status:
            check_refused(ended, file)
            # By what the line says: without the file, or the folder, that it names.
            return
        if "client-state" in file.parts and any(one in ended.output for one in LOST):
            return  # That client was left out of a round, and the log says so.
        expected = dict(scene.whole.left)
        gone = damage == "gone" and not (run / file).exists()
        if file.name == "model.json" or (gone and file.name in UNSUMMED):
            expected.pop(str(file.relative_to("outputs")), None)  # See UNSUMMED.
            (run / file).unlink(missing_ok=True)
        check_whole(run, expected)
    finally:
        os.system(f"chmod -R u+rw {place}") if damage == "no permission" else None
        shutil.rmtree(place, ignore_errors=True)


def check_told(scene: Scene, run: Path, place: Path) -> None:
    """Check what commands say that only read: figures of whole results, or what is not whole."""
    for command in ("report", "list", "show"):
        arguments = scene.whole.work.command(command)

        def program(arguments=arguments):
            os.chdir(run)
            return command_line.main(arguments)

        ended = forked(program, Kill(), place / "told")
        assert "Traceback" not in ended.output, f"{command}: {ended.output[-400:]}"
        if ended.status:
            assert ended.output.splitlines()[-1].startswith("coprefl: "), ended.output[-300:]
        if (
            command == "report"
            and not ended.status
            and not any(word in ended.output for word in (" damaged", "not done yet"))
        ):
            made = {k: v for k, v in left(run).items() if k.endswith(".csv")}
            other = [k for k, v in made.items() if scene.whole.left.get(k, v) != v]
            whole = "stopped" not in scene.name
            assert not (other and whole), f"reported otherwise without a word: {other}"


def check_refused(ended: Ended, file: Path) -> None:
    """Check that the last line says which file, or what of it, is wrong."""
    lines = [line for line in ended.output.splitlines() if line.strip()]
    assert lines, "it ended without a word"
    known = (file.name, file.parent.name, "state of round", "resume", "run-name")
    assert any(one in lines[-1] for one in known), f"what is it about? {lines[-1][:300]}"
