"""Declared options: each declaration holds a default, a meaning, a unit and limits.

Settings of a study, strategies and clients declare their options in the same way. The declarations
are used to check values, and to generate the tables of the documentation and the JSON Schema of
recipes.
"""

import dataclasses
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import NoneType
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError, check_name, excerpt, unknown
from coprefl_flwr.named import Value as Value

_KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}

COUNT, NUMBERS, WORDS = "count", "numbers", "words"
"""Types that a string option can also accept: an int, a list of numbers, a list of strings."""


def option(default: Any, meaning: str, **others: Any) -> Any:
    """Declare an option: return a field for a dataclass, or an entry for a client's `options`.

    `default` is the value if the user sets none; None means "not set", if the field's type allows
    None. `others` are further parameters of `Option`, such as `minimum`.
    """
    return field(default=default, metadata={"meaning": meaning, **others})


def same_option(owner: type[Any], name: str, **changes: Any) -> Any:
    """Declare the option `name` of the dataclass `owner` in another dataclass.

    `changes` are arguments of `option`, such as `default`, whose values differ there.
    """
    declaration = owner.__dataclass_fields__[name]
    return option(**{"default": declaration.default, **declaration.metadata, **changes})


@dataclass(frozen=True)
class Option:
    """A declared option, which is called `name` in Python and `key` in run-config and recipes.

    Parameters
    ----------
    name, key : str
        The names. By default, the key is the name with hyphens.
    default : Any
        The value if the user sets none.
    kinds : tuple[type, ...]
        The types of the values. They include NoneType if the option may stay unset.
    meaning, unit : str
        The meaning and the unit that the tables of the documentation show.
    minimum, maximum, above : float, optional
        Limits of a number. A value equal to `above` is not allowed.
    choices : tuple[str, ...]
        The allowed strings. If empty, all strings are allowed.
    own : str
        A kind of user code (see `coprefl_flwr.plugins`) whose places are allowed in addition to
        `choices`. If "", no place is allowed.
    takes : tuple[str, ...]
        Types that a string option also accepts: COUNT, and in a recipe NUMBERS or WORDS.
    counts : bool
        Whether the numbers in a result depend on the option.
    later : bool
        Whether a method got the option after results were stored. The default is then left out of
        the keys of results, so that stored results are found again.
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
    takes: tuple[str, ...] = ()
    counts: bool = True
    later: bool = False

    @property
    def kind(self) -> type:
        """The type of the option's values that are not None."""
        return next(kind for kind in self.kinds if kind is not NoneType)

    @cached_property
    def _adapter(self) -> "TypeAdapter[Any]":
        """The Pydantic adapter that checks the type and the limits of a value."""
        limits: dict[str, Any] = {"ge": self.minimum, "le": self.maximum, "gt": self.above}
        limits["allow_inf_nan"] = False if self.kind is float else None
        annotation: Any = Annotated[self.kind, Field(strict=True, **limits)]
        return TypeAdapter(annotation)

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a value that is not None."""
        if self.kind in _KINDS:
            return self._adapter.json_schema()
        return {"type": ["string", "object"]}  # An object, written as a string or a mapping.

    def read(self, value: object) -> Any:
        """Return a value of the run-config in the option's type, or None for "" if None is allowed.

        Raises a SettingsError, which begins with the key, if the type is wrong or if the value is
        outside the limits.
        """
        if value == "" and NoneType in self.kinds:
            return None
        if COUNT in self.takes and type(value) is int:
            value = str(value)
        if isinstance(value, list) and value and self.takes:
            numeric = NUMBERS in self.takes and all(type(number) is int for number in value)
            words = ("," if numeric else " ").join(map(str, value))
            value = f"list:{words}" if numeric else words
        return self.checked(value, self.key)

    def checked(self, value: Any, name: str) -> Any:
        """Return a value in the option's type, or raise a SettingsError that begins with `name`."""
        if value is None and NoneType in self.kinds:
            return None
        value = value.item() if isinstance(value, np.generic) else value
        try:
            if self.kind not in _KINDS:  # Such as Method; settings may have its string.
                return self.kind.read(value)  # type: ignore[attr-defined]
            value = self._adapter.validate_python(value)
        except TypeError as error:
            raise SettingsError(f"{name} = {excerpt(repr(value))}: {error}", self.key) from None
        except ValidationError as error:
            outside = error.errors()[0]["type"].startswith(("greater", "less"))
            wanted = self.limits if outside else _KINDS[self.kind]
            shown = excerpt(repr(value) if isinstance(value, str) else value)
            raise SettingsError(f"{name} = {shown}: must be {wanted}", self.key) from None
        if self.choices and value not in self.choices and not self._is_own(value):
            raise SettingsError(f"{name}: {unknown('value', value, self.choices)}", self.key)
        return value

    def _is_own(self, value: str) -> bool:
        """Return whether a string is an allowed place of user code, which must exist."""
        if not self.own or not plugins.is_place(self.own, value):
            return False
        plugins.check(self.own, value)
        return True

    @property
    def limits(self) -> str:
        """The limits of the option in words, or "" if the option has no limits."""
        if self.choices:
            return "one of " + ", ".join(self.choices) + (", or module:NAME" if self.own else "")
        if self.minimum is not None and self.maximum is not None:
            return f"between {self.minimum} and {self.maximum}"
        bounds = {"above": self.above, "at least": self.minimum, "at most": self.maximum}
        return " and ".join(f"{word} {n}" for word, n in bounds.items() if n is not None)


_DECLARED: dict[type, Mapping[str, Option]] = {}


def declared(owner: type[Any]) -> Mapping[str, Option]:
    """Return {key: option} of the options that a class declares, in the order of declaration.

    A dataclass declares its options by fields that `option` made. Any other class declares them in
    its attribute `options`, to which the `options` of its base classes are added. The entry None
    removes an option of a base class.
    """
    if owner in _DECLARED:
        return _DECLARED[owner]
    if dataclasses.is_dataclass(owner):
        fields = {field.name: field for field in dataclasses.fields(owner)}
    else:
        of_each = [vars(base).get("options", {}) for base in reversed(owner.__mro__)]
        fields = {name: field for options in of_each for name, field in options.items()}
    known = {name: field for name, field in fields.items() if field and "meaning" in field.metadata}
    options = [_option(owner, name, field) for name, field in known.items()]
    return _DECLARED.setdefault(owner, {option.key: option for option in options})


def _option(owner: type[Any], name: str, field: "dataclasses.Field[Any]") -> Option:
    """Return the Option of a field; outside a dataclass, its type is the type of its default."""
    kinds: tuple[type, ...] = (type(field.default),)
    if field.type is not None:
        # Other fields are left out: their types may be imported for type checkers only.
        alone = types.SimpleNamespace(__annotations__={name: field.type})
        hint = typing.get_type_hints(alone, vars(sys.modules[owner.__module__]))[name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    declaration = {"key": name.replace("_", "-"), **field.metadata}
    return Option(name=name, default=field.default, kinds=kinds, **declaration)


def checked_options(values: Mapping[str, Any], known: Mapping[str, Option]) -> dict[str, Any]:
    """Return {Python name: value} after checking each value against its option in `known`.

    Raises a SettingsError, which names the option, for an unknown option or a wrong value.
    """
    by_name = {option.name: option for option in known.values()}
    for name in values:
        check_name("option", name, by_name)
    return {name: by_name[name].checked(value, name) for name, value in values.items()}


def check_declared(owner: Any) -> None:
    """Raise a SettingsError if an option of `owner` has a wrong type or is outside its limits.

    Values get the option's type: a number of NumPy becomes a number of Python, because JSON and
    messages cannot hold the former, and a method's text becomes a Method.
    Attributes that do not exist yet are skipped: a subclass may set an attribute after the
    constructor of its base class, which calls this function.
    """
    for option in declared(type(owner)).values():
        if hasattr(owner, option.name):
            checked = option.checked(getattr(owner, option.name), option.name)
            object.__setattr__(owner, option.name, checked)


class Checked:
    """A base class for dataclasses: the options are checked when an object is created."""

    def __post_init__(self) -> None:
        """Raise a SettingsError if an option has a wrong type or is outside its limits."""
        check_declared(self)
