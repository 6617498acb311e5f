"""Declared options: a default, what it means, its unit and its limits, in one place each.

Settings of a study, strategies and clients declare theirs alike; whatever reads or checks a value,
and every generated table, goes by the declaration.
"""

import dataclasses
import math
import numbers
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from typing import Any

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError, short, unknown
from coprefl_flwr.files import LARGEST_INTEGER
from coprefl_flwr.named import Value as Value

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}

COUNT, NUMBERS, WORDS = "count", "numbers", "words"
"""What a text may be given as besides: a whole number, a list of such, or a list of texts."""


def option(
    default: Any,
    meaning: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    own: str = "",
    key: str = "",
    personal: Value | None = None,
    takes: tuple[str, ...] = (),
) -> Any:
    """Declare an option, as a field of a dataclass or an entry of a client's `options`.

    The default None is "not set", if the field's type allows it; `meaning` is for the tables of the
    documentation. `above` is a number's lower limit where that is not allowed itself, `choices` are
    the texts that are allowed, if not all are, and `own` the kind of thing whose place is allowed
    too (see `coprefl_flwr.plugins`). `key` is the option's name in run-config and
    recipes, if that is not the field's name with hyphens. `takes` is what a text can also be given
    as: COUNT, and in a recipe NUMBERS or WORDS. `personal` is the default in a personalised study.
    """
    limits = {"minimum": minimum, "maximum": maximum, "above": above}
    about: dict[str, Any] = {
        "meaning": meaning,
        "unit": unit,
        "choices": choices,
        "own": own,
        "key": key,
    }
    about |= {"personal": personal, "takes": takes}
    return field(default=default, metadata={**about, **limits})


@dataclass(frozen=True)
class Option:
    """A declared option: `name` in Python, `key` in run-config and recipes.

    `kinds` are the types of its values, NoneType among them where it need not be set.
    """

    name: str
    key: str
    default: Any
    kinds: tuple[type, ...]
    meaning: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    own: str = ""
    personal: Value | None = None
    takes: tuple[str, ...] = ()

    def read(self, value: object) -> Any:
        """Return a value of the run-config with its right type; "" is None where that is allowed.

        Raises a SettingsError, which begins with the key, for a wrong type or beyond the limits.
        """
        if value == "" and type(None) in self.kinds:
            return None
        if COUNT in self.takes and type(value) is int:
            value = str(value)
        return self.checked(value, self.key)

    def checked(self, value: Any, name: str) -> Any:
        """Return a value with its right type, or raise a SettingsError that calls it `name`."""
        if value is None and type(None) in self.kinds:
            return None
        if isinstance(value, str) and "\0" in value:
            raise SettingsError(f"{name} = {short(value)!r}: holds a NUL character", self.key)
        value = self._typed(value, name)
        shown = short(value)
        if self.choices and value not in self.choices and not self._is_own(str(value)):
            raise SettingsError(f"{name}: {unknown('value', str(value), self.choices)}", self.key)
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"{name} = {shown}: must be a finite number", self.key)
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            problem = f"{name} = {shown}: must be at most {LARGEST_INTEGER}, as in messages"
            raise SettingsError(problem, self.key)
        low = self.minimum is not None and value < self.minimum
        high = self.maximum is not None and value > self.maximum
        if low or high or (self.above is not None and value <= self.above):
            raise SettingsError(f"{name} = {shown}: must be {self.limits}", self.key)
        return value

    def _is_own(self, value: str) -> bool:
        """Return whether a text is the place of something of the user's own, which is checked."""
        if not self.own or not plugins.is_place(self.own, value):
            return False
        plugins.check(self.own, value)
        return True

    def _typed(self, value: Any, name: str) -> Any:
        for kind in self.kinds:
            if hasattr(kind, "read"):  # A structure, whose text settings may give.
                try:
                    return kind.read(value)
                except TypeError as error:
                    shown = short(repr(value))
                    raise SettingsError(f"{name} = {shown}: {error}", self.key) from error
        if isinstance(value, bool | str):
            if type(value) in self.kinds:
                return value
        elif int in self.kinds and isinstance(value, numbers.Integral):
            return int(value)
        elif float in self.kinds and isinstance(value, numbers.Real):
            return _as_float(value)
        wanted = " or ".join(_KINDS[kind] for kind in self.kinds if kind in _KINDS)
        shown = short(value) if isinstance(value, int) else short(repr(value))
        raise SettingsError(f"{name} = {shown}: must be {wanted}", self.key)

    @property
    def limits(self) -> str:
        """The limits in words, "" if it has none."""
        if self.choices:
            return "one of " + ", ".join(self.choices) + (", or module:NAME" if self.own else "")
        if self.minimum is not None and self.maximum is not None:
            return f"between {self.minimum} and {self.maximum}"
        bounds = {"above": self.above, "at least": self.minimum, "at most": self.maximum}
        return " and ".join(f"{word} {n}" for word, n in bounds.items() if n is not None)


def _as_float(value: Any) -> float:
    """Return a number as a float, which is infinite for a whole one that no float can hold."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


_DECLARED: dict[type, Mapping[str, Option]] = {}


def declared(owner: type[Any]) -> Mapping[str, Option]:
    """Return the options that a class declares, by key, in their order; read once a class.

    They are the fields of a dataclass that `option` made, and of any other class the entries of
    its attribute `options` and of its bases'; None there takes an option of a base away.
    """
    if owner not in _DECLARED:
        if dataclasses.is_dataclass(owner):
            made = {one.name: one for one in dataclasses.fields(owner) if "meaning" in one.metadata}
        else:
            of_each = [vars(one).get("options", {}) for one in reversed(owner.__mro__)]
            every = {name: one for options in of_each for name, one in options.items()}
            made = {name: one for name, one in every.items() if one is not None}
        found = [_option(owner, name, one) for name, one in made.items()]
        _DECLARED[owner] = {one.key: one for one in found}
    return _DECLARED[owner]


def _option(owner: type[Any], name: str, made: "Field[Any]") -> Option:
    about = dict(made.metadata)
    key = about.pop("key") or name.replace("_", "-")
    default: Any = made.default
    return Option(name, key, default, _kinds(owner, made), **about)


def _kinds(owner: type[Any], made: "Field[Any]") -> tuple[type, ...]:
    """Return the types of a field, or of the default where it stands in no dataclass."""
    if made.type is None:
        return (type(made.default),)
    # Of this field alone: others may name types that are imported for type checkers only.
    field_alone = types.SimpleNamespace(__annotations__={made.name: made.type})
    hint = typing.get_type_hints(field_alone, vars(sys.modules[owner.__module__]))[made.name]
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def checked_options(given: Mapping[str, Any], known: Mapping[str, Option]) -> dict[str, Any]:
    """Return keyword arguments by their Python names, each checked as it is declared in `known`.

    Raises a SettingsError, which names the argument, for an unknown one or a wrong value.
    """
    by_name = {one.name: one for one in known.values()}
    for name in given:
        if name not in by_name:
            raise SettingsError(unknown("option", name, by_name))
    return {name: by_name[name].checked(value, name) for name, value in given.items()}


def check_declared(one: Any) -> None:
    """Raise a SettingsError if an option of an instance is out of its limits.

    What a subclass sets only after its base's constructor, which checks, is not there yet.
    """
    for declaration in declared(type(one)).values():
        if hasattr(one, declaration.name):
            declaration.checked(getattr(one, declaration.name), declaration.name)
