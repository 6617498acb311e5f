"""A method's options: each must be declared, and refuse what it must before any work."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from coprefl_flwr.errors import SettingsError, one_line
from coprefl_flwr.methods import Method
from coprefl_flwr.options import Option, declared
from coprefl_flwr.places import parsed
from coprefl_flwr.strategies import RoundStrategy

GIVEN = ("server", "training", "head")
"""Fields of a strategy that a study fills in."""

_WRITTEN = {str: "many", bool: "true", int: "7", float: "0.5"}


def faults(method: Method, made: RoundStrategy, build: Callable[[str], object]) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong.

    Parameters
    ----------
    made : RoundStrategy
        The method's strategy with its defaults.
    build
        Builds a study of the method with `key=value` behind its name.
    """
    yield from _undeclared(method.strategy_class)
    for key, one in method.options.items():
        if not one.meaning:
            yield f"{key} has no meaning; say it in option(default, meaning)"
        for value in bad_values(one):
            yield from _not_refused(build, key, value)
    yield from _not_refused(build, "no-such-option", "1")
    inner, own = getattr(made, "inner", made), declared(method.strategy_class)
    for key, one in own.items():
        if key in method.options:
            yield from _constructed(inner, one)


def _undeclared(strategy_class: type[RoundStrategy]) -> Iterator[str]:
    shared = {one.name for one in fields(RoundStrategy)}
    for one in fields(strategy_class):
        known = one.name in shared or one.name in GIVEN or not one.init
        if not known and "meaning" not in one.metadata:
            yield f"{one.name} is not declared; write {one.name}: ... = option(default, meaning)"


def bad_values(one: Option) -> list[str]:
    """Return values that an option must refuse, as they are written: types, then limits."""
    bad = [text for kind, text in _WRITTEN.items() if not _takes(one, kind)]
    if one.choices:
        bad.append("no-such-choice")
    if {int, float} & set(one.kinds):
        below = [] if one.minimum is None else [one.minimum - 1]
        above = [] if one.maximum is None else [one.maximum + 1]
        limits = [*below, *above, *([] if one.above is None else [one.above])]
        bad += [str(value) for value in limits] + (["nan"] if float in one.kinds else [])
    return bad


def _takes(one: Option, kind: type) -> bool:
    return kind in one.kinds or (kind is int and float in one.kinds)


def _not_refused(build: Callable[[str], object], key: str, value: str) -> Iterator[str]:
    try:
        build(f"{key}={value}")
    except SettingsError as error:
        if key not in str(error):
            yield f"{key}={value} is refused by a line that does not name it: {error}"
    except Exception as error:
        yield f"{key}={value} is no SettingsError but {one_line(error)}"
    else:
        yield f"{key}={value} is accepted"


def _constructed(made: RoundStrategy, one: Option) -> Iterator[str]:
    """Yield which bad values Python's own call accepts: a `__post_init__` must call super's."""
    accepted = []
    for value in bad_values(one):
        changes: dict[str, Any] = {one.name: parsed(value)}
        try:
            replace(made, **changes)
        except SettingsError:
            continue
        except Exception as error:
            yield f"{one.name} = {value} is no SettingsError but {one_line(error)}"
        else:
            accepted.append(f"{one.name}={value}")
    if accepted:
        name = type(made).__name__
        yield f"{name} takes {', '.join(accepted)}: does its __post_init__ call super's first?"
