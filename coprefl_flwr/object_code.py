"""A hash of the code of objects that a Python program passes: networks, strategies, metrics.

Settings name code by its place, and `plugins.hash_at` hashes the file. An object has no place. It
is pickled as by `datasets.fingerprint.Hasher`. Hasher alone would name the functions and classes of
a user's modules, so an edit of them would not change the hash. Here each of them counts by its
instructions and constants, the values of closures and defaults, its base classes and members, and
by the functions, classes and constants that it names.

The hash does not see: code of installed packages and of this package, which count by their names;
global lists, dicts and objects, which the code itself may change; code that is found only when it
runs (`getattr`, a text that is evaluated); files that the code reads; and weights of networks,
which are hashed separately. Comments do not count.
"""

import hashlib
import io
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from coprefl_flwr.errors import prefixed

CODE = (FunctionType, type, ModuleType)
CONSTANTS = (*CODE, bool, int, float, complex, str, bytes, tuple, frozenset, torch.dtype)
"""The types of global objects that count: code, and what a program does not change."""

NO_SETTINGS = frozenset(vars(nn.Module())) | {"generation_config"}
"""Names of the attributes that every layer has, and of one that models of transformers have.

It says how a model generates text, and holds a number that differs between processes.
"""


def code_hash(*objects: Any) -> str:
    """Return the SHA-256 of the objects with their code.

    Raises a SettingsError, with the reason, if a value cannot be pickled.
    """
    from datasets.utils._dill import Pickler  # Imported here, because the import takes a second.

    waiting, hashed = [*objects], hashlib.sha256()

    class PicklerOfValues(Pickler):  # type: ignore[misc]
        """Pickles values. Code and networks are named, and the user's code is hashed later."""

        def persistent_id(self, what: Any) -> str | None:
            if isinstance(what, nn.Module | nn.Parameter):
                return type(what).__qualname__
            if not isinstance(what, CODE):
                return None
            if is_users(what) and not any(what is other for other in waiting):
                waiting.append(what)
            return str(getattr(what, "__qualname__", what.__name__))

        def reducer_override(self, what: Any) -> Any:
            # The order of a frozenset differs between processes.
            ordered = isinstance(what, frozenset)
            return (frozenset, (sorted(what, key=code_hash),)) if ordered else NotImplemented

    for what in waiting:  # The pickler adds code to this list.
        values = io.BytesIO()
        name = getattr(what, "__qualname__", "a network or another object")
        problem = f"{name}: its changes would not be noticed, as it cannot be pickled"
        with prefixed(problem, of=Exception):  # An object may raise any exception.
            PicklerOfValues(values).dump(list(_parts(what)))
        hashed.update(values.getvalue())
    return hashed.hexdigest()


def is_users(what: Any) -> bool:
    """Return whether a function, class or module is in no installed package."""
    name = what.__name__ if isinstance(what, ModuleType) else what.__module__ or ""
    file, top = getattr(sys.modules.get(name), "__file__", None) or "", name.partition(".")[0]
    if top == "__main__":
        return True
    return not (top == "coprefl_flwr" or top in sys.stdlib_module_names or "-packages" in file)


def _parts(what: Any) -> Iterator[Any]:
    """Yield the values and the code on which the results of a part may depend."""
    if isinstance(what, FunctionType):
        yield from (*_code(what.__code__), what.__defaults__, what.__kwdefaults__, what.__closure__)
        names = sorted(set(_names(what.__code__)) & what.__globals__.keys())
        yield _constants({name: what.__globals__[name] for name in names})
    elif isinstance(what, ModuleType):
        yield _constants(vars(what))
    elif isinstance(what, type):
        yield what.__bases__
        code = (FunctionType, staticmethod, classmethod, property)
        yield {k: v for k, v in vars(what).items() if not _is_internal(k) or isinstance(v, code)}
    else:
        yield what


def _code(code: CodeType) -> list[Any]:
    """Return the compiled instructions, names and constants of a function."""
    inner = [_code(part) if isinstance(part, CodeType) else part for part in code.co_consts]
    return [code.co_code, code.co_names, code.co_varnames, inner]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        yield from _names(part) if isinstance(part, CodeType) else ()


def _constants(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in values.items()
        if not _is_internal(name)
        and (isinstance(value, CONSTANTS) or hasattr(value, "__wrapped__"))
    }


def _is_internal(name: str) -> bool:
    return name.startswith(("__", "_abc_"))


def network_hash(network: nn.Module, *, own_attributes: bool = True) -> str:
    """Return the SHA-256 of a network without its weights.

    It covers the layers with their attributes, the code of the user's layers, the names of the
    trainable parameters, and the buffers that are not in `state_dict()`. Without `own_attributes`
    it leaves out the attributes of the user's layers, such as counters.
    """
    stored = network.state_dict().keys()
    parts: list[Any] = [n for n, weight in network.named_parameters() if weight.requires_grad]
    parts += [item for item in network.named_buffers() if item[0] not in stored]
    for name, layer in network.named_modules(remove_duplicate=False):
        users = is_users(type(layer))
        keys = sorted(vars(layer).keys() - NO_SETTINGS) if own_attributes or not users else []
        # The private attributes of PyTorch's layers are not settings.
        shown = [key for key in keys if users or not key.startswith("_")]
        parts.append([name, type(layer), {key: vars(layer)[key] for key in shown}])
    return code_hash(parts)
