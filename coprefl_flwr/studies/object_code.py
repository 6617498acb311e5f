"""A hash of the code of objects that a Python program passes: networks, strategies, metrics.

Settings name code by its place, and `content_hashes` hashes the file. An object has no place. Its
hash covers the compiled code of its functions and classes, so comments do not count. It also covers
the functions, classes and constants of user modules that the code names, the values of closures and
defaults, and the attributes of objects. Code of Python, of installed packages and of this package
counts only by its name, as do global lists, dicts and objects, which the code itself may change.
"""

import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device)
WRAPPERS = (functools.partial, staticmethod, classmethod, property, functools.cached_property)

MOST_BYTES = 2**20
"""Maximum size of an array whose values count. A larger array counts by its dtype and shape."""

OF_PYTORCH = frozenset(vars(nn.Module()))
"""Names of the attributes that every layer has."""


def code_hash(*objects: Any) -> str:
    """Return the SHA-256 of the objects' code, or "" if all of it is in installed packages."""
    return _digest(objects) if any(map(_is_users, objects)) else ""


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
        users = _is_users(layer)
        keys = sorted(vars(layer).keys() - OF_PYTORCH) if own_attributes or not users else []
        # The private attributes of PyTorch's layers are not settings.
        shown = [key for key in keys if users or not key.startswith("_")]
        parts.append([name, type(layer), {key: vars(layer)[key] for key in shown}])
    return _digest(parts)


def _texts(what: Any, seen: set[int]) -> Iterator[str]:
    """Yield texts that together describe an object; `seen` has the ids of earlier objects."""
    kind = type(what).__qualname__
    if isinstance(what, PLAIN):
        yield f"{kind} {what!r}"
    elif isinstance(what, nn.Parameter | nn.Module) and not isinstance(what, type):
        yield kind  # `network_hash` and the hash of the weights cover them.
    elif isinstance(what, Tensor | np.ndarray | np.generic):
        array = what.detach().cpu() if isinstance(what, Tensor) else np.asarray(what)
        yield f"{kind} {array.dtype} {tuple(array.shape)}"
        yield repr(array.tolist()) if array.nbytes <= MOST_BYTES else ""
    elif isinstance(what, Mapping | SimpleNamespace):
        items = (vars(what) if isinstance(what, SimpleNamespace) else what).items()
        yield f"{kind} {len(items)}"
        for item in items:
            yield from _texts(item, seen)
    elif isinstance(what, list | tuple):
        yield f"{kind} {len(what)}"
        for part in what:
            yield from _texts(part, seen)
    elif isinstance(what, set | frozenset):  # Its order differs between processes.
        yield f"{kind} {sorted(' '.join(_texts(part, seen)) for part in what)}"
    elif id(what) in seen or not _is_users(what):
        yield str(getattr(what, "__qualname__", kind))
    else:
        seen.add(id(what))
        yield from _texts(_parts(what), seen)


def _parts(what: Any) -> list[Any]:
    """Return the parts of a user's function, class or object on which its results may depend."""
    if isinstance(what, functools.partial):
        return [what.func, what.args, what.keywords]
    if isinstance(what, property):
        return [what.fget, what.fset]
    if isinstance(what, functools.cached_property):
        return [what.func]
    if isinstance(what, MethodType):
        return [what.__func__, what.__self__]
    if isinstance(what, type):
        members = {key: value for key, value in vars(what).items() if not _is_internal(key, value)}
        return [what.__qualname__, *what.__bases__, members]
    if isinstance(what, FunctionType):
        cells = [_content(cell) for cell in what.__closure__ or ()]
        named = _named(what.__code__, what.__globals__)
        return [*_code(what.__code__), cells, what.__defaults__, what.__kwdefaults__, named]
    if hasattr(what, "__wrapped__"):  # Such as a method of a class, or a cached function.
        return [what.__wrapped__]
    return [type(what), vars(what) if hasattr(what, "__dict__") else None]


def _is_users(what: Any) -> bool:
    """Return whether an object, or its class, is defined in a module that is not installed."""
    if isinstance(what, WRAPPERS):
        return True
    what = getattr(what, "__wrapped__", what)
    kind = what if isinstance(what, type | FunctionType | MethodType) else type(what)
    name = kind.__module__ or ""
    return not _is_installed(name, getattr(sys.modules.get(name), "__file__", None) or "")


def _is_installed(name: str, file: str) -> bool:
    top = name.partition(".")[0]
    folders = any(folder in file for folder in ("site-packages", "dist-packages"))
    return folders or top == "coprefl_flwr" or top in sys.stdlib_module_names


def _is_internal(key: str, value: Any) -> bool:
    """Return whether a member of a class is made by Python, such as `__module__`."""
    functions = (FunctionType, staticmethod, classmethod, property)
    return key.startswith("__") and not isinstance(value, functions)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # The variable has no value yet.
        return None


def _code(code: CodeType) -> list[Any]:
    """Return the compiled instructions, names and constants of a function."""
    inner = [_code(part) if isinstance(part, CodeType) else part for part in code.co_consts]
    return [code.co_code, code.co_names, code.co_varnames, inner]


def _named(code: CodeType, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the functions, classes and constants that a function names, by their names.

    A user's module gives those of its members that the function names.
    """
    found = dict[str, Any]()
    for name in (name for name in code.co_names if name in known and not name.startswith("__")):
        value = known[name]
        if isinstance(value, ModuleType):
            if not _is_installed(value.__name__, getattr(value, "__file__", None) or ""):
                found[name] = {key: vars(value)[key] for key in code.co_names if key in vars(value)}
                found[name] = {k: v for k, v in found[name].items() if _is_constant(v)}
        elif _is_constant(value):
            found[name] = value
    for part in code.co_consts:
        found |= _named(part, known) if isinstance(part, CodeType) else {}
    return {name: found[name] for name in sorted(found)}


def _is_constant(value: Any) -> bool:
    """Return whether a global object is code or a constant, which a program does not change."""
    kinds = (*PLAIN, tuple, frozenset, type, FunctionType, MethodType, *WRAPPERS)
    return isinstance(value, kinds) or hasattr(value, "__wrapped__")


def _digest(parts: Any) -> str:
    try:
        texts = [*_texts(list(parts), set())]
    except RecursionError:  # A container that contains itself, or objects nested very deeply.
        texts = [type(part).__qualname__ for part in parts]
    return hashlib.sha256("\0".join(texts).encode(errors="replace")).hexdigest()
