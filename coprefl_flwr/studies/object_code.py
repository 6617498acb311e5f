"""A hash of the code of objects that a Python program passes: networks, strategies, metrics.

Settings name code by its place, and `content_hashes` hashes the file. An object has no place. Its
hash covers the compiled code of its functions and classes, so comments do not count. It also covers
what the code refers to in user modules, such as helper functions and constants, and the values of
closures and defaults. Code of Python, of installed packages and of this package counts only by its
name. A large array counts only by its type.
"""

import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from torch import nn

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def code_hash(*objects: Any) -> str:
    """Return the SHA-256 of the objects' code, or "" if all of it is in installed packages."""
    if not any(map(_is_users, objects)):
        return ""
    return _digest([text for one in objects for text in _texts(one, set())])


def network_hash(network: nn.Module) -> str:
    """Return the SHA-256 of a network without its weights.

    It covers the layers with their attributes, the code of the user's layers, the names of the
    trainable parameters, and the buffers that are not in `state_dict()`.
    """
    texts = [name for name, weight in network.named_parameters() if weight.requires_grad]
    stored = network.state_dict().keys()
    for name, buffer in network.named_buffers():
        if name not in stored:
            texts.append(f"{name} {_digest([str(buffer.tolist())])}")
    for name, layer in network.named_modules(remove_duplicate=False):
        texts += [name, *_texts(type(layer), set()), *_texts(_attributes(layer), set())]
    return _digest(texts)


def _attributes(layer: nn.Module) -> dict[str, Any]:
    """Return the attributes of a layer that are no weights, layers or internals of PyTorch."""
    own = {key: value for key, value in vars(layer).items() if not key.startswith("_")}
    return {key: own[key] for key in sorted(own) if key != "training"}


def _texts(what: Any, seen: set[int]) -> Iterator[str]:
    """Yield texts that together describe an object; `seen` has the ids of earlier objects."""
    if isinstance(what, PLAIN):
        yield f"{type(what).__name__} {what!r}"
    elif isinstance(what, Mapping):
        for key in what:
            yield from _texts(key, seen)
            yield from _texts(what[key], seen)
    elif isinstance(what, list | tuple):
        for part in what:
            yield from _texts(part, seen)
    elif isinstance(what, set | frozenset):  # Its order differs between processes.
        yield from sorted(text for part in what for text in _texts(part, seen))
    elif id(what) in seen or not _is_users(what):
        yield str(getattr(what, "__qualname__", type(what).__qualname__))
    else:
        seen.add(id(what))
        yield from _texts(_parts(what), seen)


def _parts(what: Any) -> list[Any]:
    """Return the parts of a user's function, class or object on which its results may depend."""
    if isinstance(what, functools.partial):
        return [what.func, what.args, what.keywords]
    if isinstance(what, staticmethod | classmethod):
        return [what.__func__]
    if isinstance(what, property):
        return [what.fget, what.fset]
    if isinstance(what, type):
        members = {key: value for key, value in vars(what).items() if not _is_internal(key, value)}
        return [what.__qualname__, *what.__bases__, members]
    if isinstance(what, FunctionType):
        cells = [_content(cell) for cell in what.__closure__ or ()]
        named = {key: what.__globals__[key] for key in _names(what.__code__, what.__globals__)}
        return [*_code(what.__code__), cells, what.__defaults__, what.__kwdefaults__, named]
    return [type(what), vars(what) if hasattr(what, "__dict__") else None]


def _is_users(what: Any) -> bool:
    """Return whether an object, or its class, is defined in a module that is not installed."""
    if isinstance(what, functools.partial | staticmethod | classmethod | property):
        return True
    kind = what if isinstance(what, type | FunctionType) else type(what)
    name = kind.__module__ or ""
    top, file = name.partition(".")[0], getattr(sys.modules.get(name), "__file__", None) or ""
    installed = any(folder in file for folder in ("site-packages", "dist-packages"))
    return not (installed or top == "coprefl_flwr" or top in sys.stdlib_module_names)


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


def _names(code: CodeType, known: Mapping[str, Any]) -> list[str]:
    """Return the names of global objects that a function or its inner functions may use."""
    names = {name for name in code.co_names if name in known and not name.startswith("__")}
    for part in code.co_consts:
        names |= set(_names(part, known)) if isinstance(part, CodeType) else set()
    return sorted(names)


def _digest(texts: list[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
