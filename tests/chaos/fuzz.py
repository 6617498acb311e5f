"""Whatever is put in is accepted, or refused in one line, soon, and without leaving a file."""

import contextlib
import io
import os
import random
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from coprefl_flwr.errors import SettingsError
from tests.chaos import inputs
from tests.chaos.forked import quiet
from tests.chaos.tally import Case, NotHeldError
from tests.common.data import write_images

BATCH = 50
"""Inputs of a case."""
LONGEST = 60
"""Seconds that one input may take."""
LARGEST = 20_000
"""Characters of a line."""


class Late(BaseException):
    """Said when an input takes too long."""


@dataclass(frozen=True)
class Fault:
    where: str
    why: str
    value: str


def cases(seed: int, count: int, folder: Path) -> Iterator[Case]:
    """Yield batches of each target in turn, without end."""
    images = folder / "images.npz"
    write_images(images)
    targets = inputs.targets(images)
    number = 0
    while True:
        for target in targets:

            def check(target=target, number=number):
                return batch(target, BATCH, f"{seed} {number}")

            yield Case(f"{target.name}, batch {number} of seed {seed}", check)
        number += 1


def batch(target: "inputs.Target", count: int, drawn_by: str) -> int:
    """Try inputs of a target; return how many, or raise a NotHeldError with each kind of fault."""
    tried, faults = [0], dict[str, Fault]()
    failed = [0]

    @seed(random.Random(f"{target.name} {drawn_by}").getrandbits(60))
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(target.inputs)
    def every(value):
        tried[0] += 1
        fault = attempt(target.put, value)
        if fault:
            failed[0] += 1
            known = faults.get(fault.where)
            if known is None or len(fault.value) < len(known.value):
                faults[fault.where] = fault

    every()
    if faults:
        told = [f"{one.why} at {one.where} of {one.value}" for one in faults.values()]
        raise NotHeldError(" | ".join(told), tried[0], tried[0] - failed[0])
    return tried[0]


def attempt(put: Callable[[Any], object], value: Any) -> Fault | None:
    """Put an input in, from an empty folder; return what does not hold."""
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, quiet(), limited():
        os.chdir(folder)
        try:
            refused = ""
            try:
                put(value)
            except SettingsError as error:
                refused = str(error)
                if fault := wrong_line(refused):
                    return Fault(_where(error), fault, _shown(value))
                left = [str(one) for one in Path().rglob("*")]
                if left:
                    return Fault("files", f"left {left}", _shown(value))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            why = f"{type(error).__name__}: {error}"[:200]
            return Fault(_where(error), why, _shown(value))
        finally:
            os.chdir(back)
    return None


def wrong_line(text: str) -> str:
    """Return what is wrong with a line that refuses something."""
    if not text.strip():
        return "refused without a word"
    if len(text.splitlines()) > 1:
        return f"refused in {len(text.splitlines())} lines: {text[:100]!r}"
    return f"refused in {len(text)} characters" if len(text) > LARGEST else ""


@contextlib.contextmanager
def limited():
    """Raise Late here after so many seconds."""

    def late(*_):
        raise Late(f"not within {LONGEST} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _where(error: BaseException) -> str:
    """Return the package's last line that an exception went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if "coprefl_flwr" in one.filename] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}"


def _shown(value: Any) -> str:
    text = io.StringIO()
    with contextlib.suppress(Exception):
        text.write(repr(value))
    return text.getvalue()[:150]


Inputs = SearchStrategy[Any]
