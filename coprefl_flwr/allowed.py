"""Which code settings, recipes and model folders may name: what COPREFL_ALLOW says.

    COPREFL_ALLOW=none                        no code, built-in parts only
    COPREFL_ALLOW=my_lab,nets/,a.b:Net        what lies in a package or a folder, one file, one name
    COPREFL_ALLOW=all                         all, also what the model.json of a folder names

Where it is not set, settings may name any code, and a model.json none: who writes settings runs
programs here anyway, while a folder with a model may come from anyone. What a program gave a name
itself (`places.register`) is always allowed.

What only shows results (`without_code`) takes code of a recipe as it takes that of a model.json.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import expanded

VARIABLE = "COPREFL_ALLOW"
NONE, ALL = "none", "all"
BUILT_IN = ("coprefl_flwr.clients", "coprefl_flwr.strategies")
"""Modules of this package whose classes settings may always name."""

_SHOWING = ContextVar("showing", default="")
"""The command that only shows results, "" where code may be run."""


@contextmanager
def without_code(command: str) -> Iterator[None]:
    """Allow only code that COPREFL_ALLOW itself lists, while a command shows results."""
    before = _SHOWING.set(command)
    try:
        yield
    finally:
        _SHOWING.reset(before)


def is_without_code() -> bool:
    """Return whether code is needed for nothing but to show results, and so is not looked for."""
    return bool(_SHOWING.get())


def is_allowed(place: str, *names: str) -> bool:
    """Return whether a setting may name the code at `module:NAME` or `file.py:NAME`.

    `names` are other names of the same, such as that of an entry point.
    """
    built_in = place.rpartition(":")[0] in BUILT_IN
    return built_in or not (_text() or is_without_code()) or is_listed(place, *names)


def is_listed(place: str, *names: str) -> bool:
    """Return whether COPREFL_ALLOW itself names this code, or all."""
    listed = _listed()
    return ALL in listed or any(one in names or _covers(one, place) for one in listed)


def check_allowed(place: str, *names: str) -> None:
    """Raise a SettingsError unless `is_allowed`."""
    if not is_allowed(place, *names):
        named = " ".join(filter(None, [*names, f"({place})" if names else place]))
        if command := _SHOWING.get():
            raise SettingsError(
                f"{named}: `{command}` runs no code that a recipe names; `coprefl run` of the "
                f"recipe writes its report, or list this code in {VARIABLE}"
            )
        allowed = ", ".join(one for one in _listed() if one != NONE) or "built-in parts only"
        raise SettingsError(
            f"{named}: {VARIABLE} = {_text()} does not allow this code; allowed: {allowed}"
        )


def _text() -> str:
    return os.environ.get(VARIABLE, "").strip()


def _listed() -> list[str]:
    return [one.strip() for one in _text().split(",") if one.strip()]


def _covers(entry: str, place: str) -> bool:
    """Return whether an entry is a place, or the file, the folder, the package that it lies in."""
    where, _, name = place.rpartition(":")
    inside, wanted = _of_entry(entry)
    if wanted not in ("", name):
        return False
    if where.endswith(".py"):
        file = expanded(where).resolve()
        return _is_path(inside) and file.is_relative_to(expanded(inside).resolve())
    return not _is_path(inside) and f"{where}.".startswith(f"{inside}.")


def _of_entry(entry: str) -> tuple[str, str]:
    """Return the file, folder or module of an entry, and the name in it, "" for all of them."""
    inside, colon, name = entry.rpartition(":")
    return (inside, name) if colon and name.isidentifier() else (entry, "")


def _is_path(text: str) -> bool:
    return text.endswith(".py") or "/" in text or os.sep in text or text in (".", "..", "~")
