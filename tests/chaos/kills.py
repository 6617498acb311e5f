"""Kills at random moments and file operations: resumed, a run ends with the very bytes."""

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos.forked import Ended, Kill, forked, quiet
from tests.chaos.tally import Case, NotHeldError
from tests.chaos.works import RecipeWork, StudyWork, Work, check_whole, left
from tests.common.data import write_images

KILLS = 2
"""In each run: the second one kills what was resumed."""


class Whole:
    """A work that nothing interrupted: what it left, its file operations and seconds."""

    def __init__(self, work: Work, folder: Path) -> None:
        with quiet(), contextlib.chdir("."):
            work.run(folder / "0")  # Here, so that what is forked has imported all it needs.
        ended = forked(lambda: work.run(folder / "1"), Kill(), folder / "told")
        assert ended.status == 0, ended.output
        self.work, self.ended, self.left = work, ended, left(folder / "1")
        other = [name for name, one in left(folder / "0").items() if self.left.get(name) != one]
        assert not other, f"differ in two runs that nothing interrupted: {other}"


def cases(seed: int, count: int, folder: Path, works=(StudyWork, RecipeWork)) -> Iterator[Case]:
    """Yield cases without end, of works in turn."""
    images = folder / "tiny.npz"
    write_images(images)
    wholes: dict[type, Whole] = {}
    number = 0
    while True:
        for kind in works:

            def check(kind=kind, number=number):
                if kind not in wholes:
                    wholes[kind] = Whole(kind(images), folder / "whole" / kind.__name__)
                rng = random.Random(f"{seed} {number}")
                kills = [drawn(wholes[kind].ended, rng, half=bool(at)) for at in range(KILLS)]
                return resumed(wholes[kind], kills, folder)

            yield Case(f"{kind.name} {number} of seed {seed}", check)
            number += 1


def resumed(whole: Whole, kills: Sequence[Kill], folder: Path) -> int:
    """Kill a work some times, then let it end; return how often it was killed."""
    place = Path(tempfile.mkdtemp(dir=folder))
    count = 0
    try:
        for kill in kills:
            ended = forked(lambda: whole.work.run(place / "run"), kill, place / "told")
            count += ended.killed
            if not ended.killed:
                assert ended.status == 0, _end(ended)
                break
        ended = forked(lambda: whole.work.run(place / "run"), Kill(), place / "told")
        assert ended.status == 0, _end(ended)
        check_whole(place / "run", whole.left)
    except AssertionError as error:
        raise NotHeldError(f"{kills}: {error}", max(count, 1)) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return count


def drawn(ended: Ended, rng: random.Random, half: bool) -> Kill:
    """Draw a moment; what is resumed has less to do."""
    part = 0.5 if half else 1.0
    if rng.random() < 0.5:
        return Kill(seconds=rng.uniform(0.001, part * ended.seconds))
    return Kill(operation=rng.randint(1, max(1, int(part * ended.operations))))


def _end(ended: Ended) -> str:
    return f"status {ended.status}: {ended.output[-300:]}"
