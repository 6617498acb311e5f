"""Checking methods by their places, with a line for each check once it is known."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from coprefl_flwr import places
from coprefl_flwr.checking.checks import Case, check_options, role_lines
from coprefl_flwr.checking.lines import FAILS, OK, SKIPPED, Line, Write, skipped
from coprefl_flwr.checking.running import pickled_registered
from coprefl_flwr.checking.small_study import write_data
from coprefl_flwr.checking.under_flower import flower
from coprefl_flwr.methods import find_method
from coprefl_flwr.studies.phases import name_and_options


def show(line: str) -> None:
    """Print a line at once, wherever the output goes."""
    print(line, flush=True)


def check_methods(given: Sequence[str], with_flower: bool = True, write: Write = show) -> int:
    """Check the methods at these places; return 1 if a check of any fails, else 0.

    Raises a SettingsError if there is no method at one of them.
    """
    for place in given:
        find_method(name_and_options(_absolute(place))[0])
    found = []
    with tempfile.TemporaryDirectory() as folder, _quiet():
        write_data(Path(folder) / "glyphs.npz")
        for number, place in enumerate(given):
            where = Path(folder) / str(number)
            found += list(
                check_method(place, Path(folder) / "glyphs.npz", where, with_flower, write)
            )
    return int(any(line.status == FAILS for line in found))


def check_method(
    place: str, data: Path, folder: Path, with_flower: bool = True, write: Write = show
) -> Iterator[Line]:
    """Yield the lines of a method, each written before; runs go into `folder`."""
    write(place)
    found = []
    for line in _lines(_absolute(place), data, folder, with_flower, write):
        found.append(line)
        write(str(line))
        yield line
    counts = [sum(one.status == status for one in found) for status in (OK, FAILS, SKIPPED)]
    write("  {} hold, {} fail, {} were skipped".format(*counts))


def _lines(place: str, data: Path, folder: Path, with_flower: bool, write: Write) -> Iterator[Line]:
    method, registered = find_method(name_and_options(place)[0]), b""
    if ("method", method.name) in places.registered():
        registered = pickled_registered()
    cases = [Case(method, place, role, data, folder / role, registered) for role in method.roles]
    yield check_options(cases[0])
    for case in cases:
        write(f" as {case.role}")
        yield from role_lines(case)
    if not with_flower:
        yield skipped("flower", cases[0].role, "left out")
        return
    write(" under `flwr run`, which takes half a minute")
    yield flower(cases[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep everybody's log out of the output: what is wrong is said in the lines."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _absolute(place: str) -> str:
    """Return a place whose file, if it is a relative one, is named from the root."""
    return places.resolved(place, Path.cwd())
