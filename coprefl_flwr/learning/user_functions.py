"""Functions of the user that settings name by a place, or that a Python program passes."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from coprefl_flwr import plugins
from coprefl_flwr.arrays import checksum_of
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.models.arrays import as_array
from coprefl_flwr.named import Choice
from coprefl_flwr.object_code import code_hash, network_hash


@dataclass(frozen=True)
class UserFunction(Choice):
    """A function by its place, with options, or as an object in Python.

    A place may also name a class, whose object is made with the options and is then called.
    """

    function: Callable[..., Any] | None = None

    setting: ClassVar[str]
    """The key of the setting, which is also the kind of the user's code (see `plugins.KINDS`)."""
    built_in: ClassVar[tuple[str, ...]] = ()
    """Names that are no places."""

    @classmethod
    def read(cls, value: Any) -> Self:
        """Return an object of this class from a function, a text, or a mapping with `name`."""
        if callable(value) and not isinstance(value, cls | type):
            return cls(getattr(value, "__name__", type(value).__name__), function=value)
        return super().read(value)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: another process finds the function of a pickled object again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @functools.cached_property
    def loaded(self) -> Any:
        """The function; a SettingsError if the place does not exist."""
        kind = self.setting
        if self.function is not None:
            return self.function
        if not plugins.is_place(kind, self.name):
            line = unknown(kind, self.name, [*self.built_in, *plugins.brought(kind)])
            raise SettingsError(f"{line}, or module:NAME", kind)
        found, options = plugins.find(kind, self.name), self.arguments
        if not isinstance(found, type):
            return functools.partial(found, **options)
        # Several numbers, such as the weights of classes, become a tensor.
        for name, value in options.items():
            if isinstance(value, tuple):
                options[name] = torch.tensor(value, dtype=torch.float32)
        return plugins.call(self.name, functools.partial(found, **options), ())

    def identity(self) -> dict[str, str]:
        """Return the function and a hash of its code, by the key of the setting."""
        function, kind = self.function, self.setting
        if isinstance(function, nn.Module):  # With its values, such as the weights of classes.
            values = {name: as_array(value) for name, value in function.state_dict().items()}
            text = checksum_of(values, network_hash(function))
        else:
            text = plugins.hash_at(kind, self.name) if function is None else code_hash(function)
        return {kind: f"{self} {text}"}


def described(value: Any) -> str:
    """Return the dtype and the shape of a tensor or of each of several, or the name of a type."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {described(one)}" for name, one in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(described, value))
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
