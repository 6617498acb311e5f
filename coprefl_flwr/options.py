"""Declared options: a default, a meaning, a unit and limits, in one place each.

Settings of a study, strategies and clients declare their options alike. Values are checked, and the
tables of the documentation and the JSON Schema of recipes are made, from the declarations.
"""

import dataclasses
import math
import numbers
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import NoneType
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError, short, unknown
from coprefl_flwr.files import LARGEST_INTEGER
from coprefl_flwr.named import Value as Value

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}

NOT_USED = "a personalised study does not use it"

COUNT, NUMBERS, WORDS = "count", "numbers", "words"
"""What an option of type text also accepts: a whole number, a list of numbers or of texts."""


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
    counts: bool = True,
    starts_only: str = "",
) -> Any:
    """Declare an option, as a field of a dataclass or an entry of a client's `options`.

    Parameters
    ----------
    default : Any
        None is "not set", if the field's type allows it.
    meaning, unit : str
        For the tables of the documentation.
    minimum, maximum, above : float, optional
        Limits of a number; `above` itself is not allowed.
    choices : tuple[str, ...]
        The texts that are allowed, if not all are.
    own : str
        The kind of the user's own parts whose place is allowed too (see `coprefl_flwr.plugins`).
    key : str
        The name in run-config and recipes, if that is not the field's name with hyphens.
    personal : Value, optional
        The default in a personalised study.
    takes : tuple[str, ...]
        What a text option also accepts: COUNT, and in a recipe NUMBERS or WORDS.
    counts : bool
        Whether numbers of a result depend on it.
    starts_only : str
        Why a personalised study does not use this setting; "" if it does.
    """
    metadata = {name: value for name, value in locals().items() if name != "default"}
    return field(default=default, metadata=metadata)


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
    counts: bool = True
    starts_only: str = ""

    @property
    def kind(self) -> type:
        """The type of its values that are not None."""
        return next(kind for kind in self.kinds if kind is not NoneType)

    @cached_property
    def _adapter(self) -> "TypeAdapter[Any]":
        """Pydantic's check of the type and the limits of a value."""
        limits = {"ge": self.minimum, "le": self.maximum, "gt": self.above}
        checks: dict[str, Any] = {
            name: limit for name, limit in limits.items() if limit is not None
        }
        if self.kind is float:
            checks["allow_inf_nan"] = False
        annotation: Any = Annotated[self.kind, Field(strict=True, **checks)]
        return TypeAdapter(annotation)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its values in run-config and recipes, with meaning and default."""
        is_text = self.kind not in _KINDS  # A structure is written as one.
        schema: dict[str, Any] = {"type": "string"} if is_text else self._adapter.json_schema()
        if self.choices:
            places = [{"pattern": ":"}] if self.own else []
            schema["anyOf"] = [{"enum": list(self.choices)}, *places]
        if self.default is not None:
            schema["default"] = str(self.default) if is_text else self.default
        return {**schema, "description": self.meaning}

    def read(self, value: object) -> Any:
        """Return a value of the run-config with its right type; "" is None where that is allowed.

        Raises a SettingsError, which begins with the key, for a wrong type or beyond the limits.
        """
        if value == "" and NoneType in self.kinds:
            return None
        if COUNT in self.takes and type(value) is int:
            value = str(value)
        return self.checked(value, self.key)

    def checked(self, value: Any, name: str) -> Any:
        """Return a value with its right type, or raise a SettingsError that calls it `name`."""
        if value is None and NoneType in self.kinds:
            return None
        if isinstance(value, str) and "\0" in value:
            raise SettingsError(f"{name} = {short(value)!r}: holds a NUL character", self.key)
        value = self._as_number(value)
        if type(value) is int and abs(value) > LARGEST_INTEGER:
            most = f"at most {LARGEST_INTEGER}, as in messages"
            raise SettingsError(f"{name} = {short(value)}: must be {most}", self.key)
        try:
            if self.kind not in _KINDS:  # A structure, whose text settings may give.
                return self.kind.read(value)  # type: ignore[attr-defined]
            value = self._adapter.validate_python(value)
        except TypeError as error:
            raise SettingsError(f"{name} = {short(repr(value))}: {error}", self.key) from None
        except ValidationError as error:
            problem = error.errors()[0]["type"]
            wanted = _KINDS[self.kind] if problem.endswith("_type") else self.limits
            if problem == "finite_number":
                wanted = "a finite number"
            shown = short(repr(value) if isinstance(value, str) else value)
            raise SettingsError(f"{name} = {shown}: must be {wanted}", self.key) from None
        if self.choices and value not in self.choices and not self._is_own(value):
            raise SettingsError(f"{name}: {unknown('value', value, self.choices)}", self.key)
        return value

    def _as_number(self, value: Any) -> Any:
        """Return a number, such as one of NumPy's, as this option's type; others as they are."""
        try:
            if isinstance(value, bool):
                return value
            if self.kind is float and isinstance(value, numbers.Real):
                return float(value)
            return int(value) if self.kind is int and isinstance(value, numbers.Integral) else value
        except OverflowError:  # A whole number that no float can hold.
            return math.inf

    def _is_own(self, value: str) -> bool:
        """Return whether a text is the place of something of the user's own, which is checked."""
        if not self.own or not plugins.is_place(self.own, value):
            return False
        plugins.check(self.own, value)
        return True

    @property
    def limits(self) -> str:
        """The limits in words, "" if it has none."""
        if self.choices:
            return "one of " + ", ".join(self.choices) + (", or module:NAME" if self.own else "")
        if self.minimum is not None and self.maximum is not None:
            return f"between {self.minimum} and {self.maximum}"
        bounds = {"above": self.above, "at least": self.minimum, "at most": self.maximum}
        return " and ".join(f"{word} {n}" for word, n in bounds.items() if n is not None)


_DECLARED: dict[type, Mapping[str, Option]] = {}


def declared(owner: type[Any]) -> Mapping[str, Option]:
    """Return the options that a class declares, by key, in their order; read once a class.

    They are the fields of a dataclass that `option` made, and of any other class the entries of
    its attribute `options` and of its bases'; None there takes an option of a base away.
    """
    if owner not in _DECLARED:
        if dataclasses.is_dataclass(owner):
            every = {field.name: field for field in dataclasses.fields(owner)}
            fields = {name: field for name, field in every.items() if "meaning" in field.metadata}
        else:
            of_each = [vars(base).get("options", {}) for base in reversed(owner.__mro__)]
            every = {name: field for options in of_each for name, field in options.items()}
            fields = {name: field for name, field in every.items() if field is not None}
        options = [_option(owner, name, field) for name, field in fields.items()]
        _DECLARED[owner] = {option.key: option for option in options}
    return _DECLARED[owner]


def _option(owner: type[Any], name: str, field: "dataclasses.Field[Any]") -> Option:
    """Return the option of a field, whose type is its default's where it is in no dataclass."""
    kinds: tuple[type, ...] = (type(field.default),)
    if field.type is not None:
        # Of this field alone: others may name types that are imported for type checkers only.
        alone = types.SimpleNamespace(__annotations__={name: field.type})
        hint = typing.get_type_hints(alone, vars(sys.modules[owner.__module__]))[name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    key = field.metadata["key"] or name.replace("_", "-")
    return Option(**{**field.metadata, "key": key}, name=name, default=field.default, kinds=kinds)


def checked_options(values: Mapping[str, Any], known: Mapping[str, Option]) -> dict[str, Any]:
    """Return keyword arguments by their Python names, each checked as it is declared in `known`.

    Raises a SettingsError, which names the argument, for an unknown one or a wrong value.
    """
    by_name = {option.name: option for option in known.values()}
    for name in values:
        if name not in by_name:
            raise SettingsError(unknown("option", name, by_name))
    return {name: by_name[name].checked(value, name) for name, value in values.items()}


def check_declared(owner: Any) -> None:
    """Raise a SettingsError if an option of an instance is out of its limits.

    What a subclass sets only after its base's constructor, which checks, is not there yet.
    """
    for option in declared(type(owner)).values():
        if hasattr(owner, option.name):
            option.checked(getattr(owner, option.name), option.name)


class Checked:
    """A dataclass whose options are checked when it is made."""

    def __post_init__(self) -> None:
        """Raise a SettingsError if an option is out of its limits."""
        check_declared(self)


def schema(owner: type[Any]) -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each option that a class declares, by key."""
    return {key: option.schema for key, option in declared(owner).items()}
