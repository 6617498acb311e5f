"""What a user brings, found by name: methods, models, datasets, partitions, metrics, trackers.

A place is `module:NAME`, `path/file.py:NAME`, an entry point of the group `coprefl_flwr`, or a name
that was given to `register`. Options may follow it, as in `net.py:Net:width=32,depth=3`.
"""

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from coprefl_flwr.allowed import check_allowed, is_without_code
from coprefl_flwr.errors import SettingsError, one_line, unknown
from coprefl_flwr.files import expanded
from coprefl_flwr.imports import beside, check_beside, forget_changed, without_bytecode

Value = bool | int | float | str

GROUP = "coprefl_flwr"
"""The group of entry points that are looked through."""

KINDS = ("method", "model", "dataset", "partition", "metric", "tracker", "start", "client-wrapper")
"""What can be brought."""

METRIC = "metric:"
"""What the name of a user's own metric begins with, in replies, rows and columns."""

_OPTIONS = re.compile(r":(?=[A-Za-z][\w-]*=)")
Registered = dict[tuple[str, str], tuple[Any, bytes]]
"""By kind and name, what was registered and its source."""

_registered: Registered = {}


def register(kind: str, name: str, what: Any) -> None:
    """Give a name, in this process and its Ray workers, to something that a notebook defines.

    Raises a SettingsError for a kind that is not one of KINDS, a name that is no identifier, or
    something whose source is not to be found, by which results are told from those of another.
    """
    if kind not in KINDS:
        raise SettingsError(unknown("kind", kind, KINDS))
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise SettingsError(f"name {name!r}: must be letters, digits, '_' and '-'")
    _registered[kind, name] = what, _source(name, what)


def is_registered(kind: str, name: str) -> bool:
    """Return whether a name was given to something in this process."""
    return (kind, name) in _registered


def registered() -> Registered:
    """Return all that was registered, for `adopt` in other processes."""
    return dict(_registered)


def adopt(known: Registered) -> None:
    """Register what was registered in another process, with the source that it has there."""
    _registered.update(known)


def split_options(text: str) -> tuple[str, str]:
    """Return a place, and the options behind the first `:` that is followed by `key=`."""
    place, *options = _OPTIONS.split(text, maxsplit=1)
    return place, "".join(options)


def options_of(text: str) -> dict[str, Value]:
    """Return the options that follow a place, by key."""
    _, written = split_options(text)
    pairs = [pair.partition("=") for pair in written.split(",")] if written else []
    for key, equals, _ in pairs:
        if not equals:
            raise SettingsError(f"{text}: '{key}' has no value; write {key}=VALUE")
    return {key: parsed(value) for key, _, value in pairs}


def parsed(text: str) -> Value:
    """Return a value that is written within a method: true, a whole number, a number, or a text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def is_place(kind: str, text: str) -> bool:
    """Return whether a text is a place, whether or not anything is there."""
    place, _ = split_options(text)
    if (kind, place) in _registered or place in _entry_points() or of_library(kind, place):
        return True
    where, colon, name = place.rpartition(":")
    return bool(colon) and name.isidentifier() and (where.endswith(".py") or _dotted(where))


def brought(kind: str) -> list[str]:
    """Return the names that were registered as a kind, and those of all entry points."""
    return [name for one, name in _registered if one == kind] + list(_entry_points())


def of_library(kind: str, text: str) -> bool:
    """Return whether a text is written as a class of flwr-datasets, such as `IidPartitioner`."""
    return kind == "partition" and bool(re.match(r"[A-Z][a-z]+[A-Z]\w+(:\w+=|$)", text))


def find(kind: str, text: str) -> Any:
    """Return what is at a place.

    Raises a SettingsError with the place, the reason and the nearest name that there is, or if it
    is code that COPREFL_ALLOW does not allow.
    """
    place, _ = split_options(text)
    if is_registered(kind, place):
        return _registered[kind, place][0]
    if place in _entry_points():
        entry = _entry_points()[place]
        check_allowed(entry.value, place)
        return _loaded(f"{place} ({entry.value})", entry.load)
    whole = place
    if of_library(kind, place):
        whole = f"flwr_datasets.partitioner:{place}"
    else:
        check_allowed(place)
    where, _, name = whole.rpartition(":")
    module = _of_file(Path(where), place) if where.endswith(".py") else _of_name(where, place)
    if hasattr(module, name):
        return getattr(module, name)
    public = [key for key, one in vars(module).items() if callable(one) and key[0] != "_"]
    raise SettingsError(f"{place}: {unknown('name', name, public)}")


def check(kind: str, text: str) -> None:
    """Raise a SettingsError as `find` does; what only shows results does not look for the code."""
    if not is_without_code():
        find(kind, text)


def resolved(text: str, folder: Path) -> str:
    """Return a place whose file, if it is a relative one, is looked for in `folder`."""
    place, _ = split_options(text)
    where = place.rpartition(":")[0]
    return whole_path(where, folder) + text[len(where) :] if where.endswith(".py") else text


def whole_path(file: str, folder: Path) -> str:
    """Return the whole path of a file, which counts from `folder` if it is a relative one.

    Raises a SettingsError if it cannot stand in a setting: spaces part the entries of some, and `+`
    what follows one another.
    """
    path = str((folder / expanded(file)).resolve())
    if found := re.search(r"[\s+;]", path):
        problem = f"{path}: {found[0]!r} cannot stand in the path of a file that settings name"
        raise SettingsError(f"{problem}; move it, or rename the folder")
    return path


def portable(text: str) -> str:
    """Return a place without the folder of its file: the same wherever that lies."""
    where, colon, _ = split_options(text)[0].rpartition(":")
    return Path(where).name + text[len(where) :] if colon and where.endswith(".py") else text


def hash_at(kind: str, text: str) -> str:
    """Return the SHA-256 of the text of what is at a place, "" if nothing is there.

    That is the file, and the files beside it that it imports, also through others. Of a package
    that is installed it is the one file. Nothing is run for it.
    """
    place, _ = split_options(text)
    if (kind, place) in _registered:
        return _digest([_registered[kind, place][1]])
    value = _entry_points()[place].value if place in _entry_points() else place
    where = value.rpartition(":")[0]
    file = expanded(where) if where.endswith(".py") else _file_of(where)
    if file is None or not file.is_file():
        return ""
    files = [file] if _installed(file) else [file, *sorted(set(beside(file).values()) - {file})]
    return _digest([one.read_bytes() for one in files])


def call(text: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call what is at a place, with the options of `text` as keyword arguments.

    Raises a SettingsError for an option that the function does not have, and for whatever the
    function raises.
    """
    options = {key.replace("-", "_"): value for key, value in options_of(text).items()}
    taken = list(inspect.signature(function).parameters.values())
    named = [one.name for one in taken[len(arguments) :] if one.kind is not one.VAR_KEYWORD]
    if not any(one.kind is one.VAR_KEYWORD for one in taken):
        for key in options:
            if key not in named:
                raise SettingsError(f"{text}: {unknown('option', key, named)}")
    return _loaded(text, functools.partial(function, *arguments, **options), "failed")


# ---- files and modules --------------------------------------------------------------------------


def _of_file(path: Path, place: str) -> ModuleType:
    """Return the module of a file, read again once its text is another."""
    file = expanded(path).resolve()
    if not file.is_file():
        near = [one.name for one in file.parent.glob("*.py")]
        raise SettingsError(f"{place}: there is no such file; {unknown('file', file.name, near)}")
    others = beside(file)
    texts = [one.read_bytes() for one in (file, *others.values())]
    name = f"{file.stem}_{_digest([str(file).encode(), *texts])[:12]}"
    if name not in sys.modules:
        forget_changed(others)
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise SettingsError(f"{place}: the file cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # Dataclasses look their module up while it is being read.
        try:
            with without_bytecode():
                _loaded(place, functools.partial(spec.loader.exec_module, module))
            check_beside(place, others)
        except SettingsError:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _of_name(module: str, place: str) -> ModuleType:
    if not _dotted(module):
        raise SettingsError(f"{place}: write module:NAME or path/file.py:NAME")
    found: ModuleType = _loaded(place, functools.partial(importlib.import_module, module))
    return found


def _loaded(place: str, load: Callable[[], Any], what: str = "does not import") -> Any:
    """Return what `load` gives; whatever it raises is a mistake of whoever wrote what is there."""
    try:
        return load()
    except SettingsError:
        raise
    except (Exception, SystemExit) as error:
        raise SettingsError(f"{place} {what}: {one_line(error)}") from error


@functools.cache
def _entry_points() -> Mapping[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}


def _dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _file_of(module: str) -> Path | None:
    """Return the file of a module, None if there is none; no package around it is imported."""
    first, *others = module.split(".")
    try:
        spec = importlib.util.find_spec(first) if _dotted(module) else None
    except (ImportError, ValueError):
        return None
    for name in others:
        inside = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(name, list(inside)) if inside else None
    return Path(spec.origin) if spec and spec.origin else None


_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))


def _installed(file: Path) -> bool:
    return any(file.is_relative_to(folder) for folder in _LIBRARIES)


def _source(name: str, what: Any) -> bytes:
    """Return the text of something registered, and of a method's client."""
    parts = [what, getattr(what, "client", None), getattr(what, "fn", None)]
    bases = [base for one in parts if isinstance(one, type) for base in one.__mro__[1:]]
    own = {getattr(one, "__module__", "") for one in parts}
    parts += [base for base in bases if base.__module__ in own]
    try:
        texts = [_text_of(one) for one in parts if inspect.isroutine(one) or isinstance(one, type)]
        if not texts:
            raise TypeError("neither a function nor a class")
    except (OSError, TypeError) as error:
        raise SettingsError(
            f"{name}: its source is not to be found, by which results are told from those of "
            "another; write it into a file"
        ) from error
    return "\n".join(texts).encode()


def _text_of(one: Any) -> str:
    """Return the text of a function or class; raises an OSError or TypeError if there is none."""
    try:
        return inspect.getsource(one)
    except (OSError, TypeError):
        if isinstance(one, type) and (text := _of_cell(one)):
            return text
        raise


def _of_cell(one: type) -> str:
    """Return the text of a class in a notebook, where Python finds that of its functions alone."""
    codes = [code for part in vars(one).values() if (code := getattr(part, "__code__", None))]
    for code in codes:
        lines = linecache.getlines(code.co_filename)
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.ClassDef) and node.name == one.__name__:
                first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
                if first <= code.co_firstlineno <= (node.end_lineno or first):
                    return "".join(lines[first - 1 : node.end_lineno])
    return ""


def _digest(texts: list[bytes]) -> str:
    hashes = [hashlib.sha256(text).hexdigest() for text in texts]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
