"""Find a user's code by name: methods, models, datasets, partitions, metrics, trackers.

A place is a string that names a function or a class: `module:NAME`, `path/file.py:NAME`, or a name
that was given to `register`. Options may follow the place, as in `net.py:Net:width=32,depth=3`.

The environment variable COPREFL_ALLOW lists the code that settings and model files may name:

    COPREFL_ALLOW=none                    no code, built-in parts only
    COPREFL_ALLOW=my_lab,nets/,a.b:Net    the code of a package, the files of a folder, one name
    COPREFL_ALLOW=all                     all code, also code that the model.json of a folder names

If COPREFL_ALLOW is not set, settings may name any code, but a model.json may name no code. The
author of settings can run programs on this machine anyway, but a folder with a model may come from
anyone. Code that the program itself registered is always allowed. Commands that only show results
(`without_code`) treat a recipe like a model.json.
"""

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from coprefl_flwr.errors import SettingsError, check_name, one_line, unknown
from coprefl_flwr.files import expanded
from coprefl_flwr.named import parse, split_options

KINDS = (
    *("method", "model", "dataset", "partition", "metric", "measurement", "tracker", "start"),
    *("client-wrapper", "loss", "augment"),
)
"""The kinds of code that a user can bring."""

METRIC = "metric:"
"""The prefix of the name of a user's own metric in replies, rows and columns."""

VARIABLE = "COPREFL_ALLOW"
BUILT_IN = (
    *("coprefl_flwr.clients", "coprefl_flwr.strategies"),
    *("flwr.serverapp.strategy", "flwr_datasets.partitioner"),
)
"""Modules whose classes settings may always name."""

Registered = dict[tuple[str, str], tuple[Any, str]]
REGISTERED: Registered = {}
"""{(kind, name): (registered object, hash of its code)}; Ray workers get a copy of this dict."""

SHOWING = ContextVar("showing", default="")
"""The name of the command that only shows results, or "" if code may be run."""


def register(kind: str, name: str, what: Any) -> None:
    """Register a class or function, such as a notebook's, under a name that settings can use.

    The name is known in this process and its Ray workers. `kind` is one of KINDS. `name` begins
    with a letter and has only letters, digits, `_` and `-`. Results are stored under a hash of the
    code of `what` (see `object_code`). Other arguments raise a SettingsError.
    """
    # Imported here, because the import takes seconds and only programs register code.
    from coprefl_flwr.object_code import code_hash

    check_name("kind", kind, KINDS)
    if not re.fullmatch(r"[^\W\d_][\w-]*", name):
        raise SettingsError(f"name {name!r}: must be letters, digits, '_' and '-'")
    REGISTERED[kind, name] = what, code_hash(what)


def is_place(kind: str, text: str) -> bool:
    """Return whether a string has the form of a place or is a registered name."""
    place, _ = split_options(text)
    where, colon, name = _target(kind, place).rpartition(":")
    written = bool(colon) and name.isidentifier() and (where.endswith(".py") or _is_dotted(where))
    return written or (kind, place) in REGISTERED


def brought(kind: str) -> list[str]:
    """Return the names that were registered for a kind."""
    return [name for its_kind, name in REGISTERED if its_kind == kind]


def find(kind: str, text: str) -> Any:
    """Return the function, class or other object that a place names.

    Raises a SettingsError, with the place, the reason and the nearest existing name, if there is no
    such object. Raises a SettingsError too if COPREFL_ALLOW does not allow the code.
    """
    place, _ = split_options(text)
    if (kind, place) in REGISTERED:
        return REGISTERED[kind, place][0]
    target = _target(kind, place)
    check_allowed(target)
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        module = _module_of(expanded(where), place)
    elif _is_dotted(where):
        module = _run(place, functools.partial(importlib.import_module, where))
    else:
        raise SettingsError(f"{place}: write module:NAME or path/file.py:NAME")
    if hasattr(module, name):
        return getattr(module, name)
    public = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
    raise SettingsError(f"{place}: {unknown('name', name, public)}")


def check(kind: str, text: str) -> None:
    """Check that `text` names code of this kind. Commands that only show results check nothing."""
    if not SHOWING.get():
        find(kind, text)


def call(what: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call the function of a place, with the options of the place as keyword arguments.

    `what` is the place with its options, and `function` is the function that the place names.
    Raises a SettingsError for an option that the function does not have, and for any exception that
    the function raises.
    """
    options = {key.replace("-", "_"): value for key, value in parse(what)[1].items()}
    return _run(what, functools.partial(function, *arguments, **options), "failed")


def resolved(text: str, folder: Path) -> str:
    """Return a place with the absolute path of its file; a relative path begins in `folder`."""
    where = split_options(text)[0].rpartition(":")[0]
    return whole_path(where, folder) + text[len(where) :] if where.endswith(".py") else text


def whole_path(file: str, folder: Path) -> str:
    """Return the absolute path of a file; a relative path begins in `folder`.

    Raises a SettingsError if the path holds white space or `+`, which separate the entries of some
    settings.
    """
    path = str((folder / expanded(file)).resolve())
    if sign := re.search(r"[\s+]", path):
        raise SettingsError(f"{path}: paths in settings must not contain {sign[0]!r}: rename it")
    return path


def without_folders(text: str) -> str:
    """Return a place without the folder of its file, so that all machines write the same place."""
    where = split_options(text)[0].rpartition(":")[0]
    return Path(where).name + text[len(where) :] if where.endswith(".py") else text


def hash_at(kind: str, text: str) -> str:
    """Return the SHA-256 of the source of the code at a place, or "" if there is no such file.

    The source is the file of the place and all files that the file imports, directly or indirectly,
    from its folder or package. If the file is in an installed package, the source is that file
    only. No code is run. A process reads the source once, as Python imports a module once: a later
    change of a file counts in the next process.
    """
    place, _ = split_options(text)
    if (kind, place) in REGISTERED:
        return REGISTERED[kind, place][1]
    where = place.rpartition(":")[0]
    file = expanded(where) if where.endswith(".py") else _file_of(where)
    return _hash_of(file.resolve()) if file and file.is_file() else ""


@functools.cache
def _hash_of(file: Path) -> str:
    libraries = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    installed = any(map(file.is_relative_to, libraries))
    files = [file] if installed else sorted(_files(file))
    return _digest(path.read_bytes() for path in files)


# ---- code that COPREFL_ALLOW allows -------------------------------------------------------------


@contextlib.contextmanager
def without_code(command: str) -> Iterator[None]:
    """Allow only code that COPREFL_ALLOW lists, while `command` shows results in this block."""
    before = SHOWING.set(command)
    try:
        yield
    finally:
        SHOWING.reset(before)


def is_listed(place: str) -> bool:
    """Return whether COPREFL_ALLOW has an entry for the code at `module:NAME` or `file.py:NAME`."""
    parts, wanted = _parts(place)
    for entry in os.environ.get(VARIABLE, "").split(","):
        inside, name = _parts(entry.strip())
        covers = parts[: len(inside)] == inside != ("none",) and name in ("", wanted)
        if covers or inside == ("all",):
            return True
    return False


def check_allowed(place: str) -> None:
    """Raise a SettingsError if settings may not name the code at a place."""
    text, command = os.environ.get(VARIABLE, "").strip(), SHOWING.get()
    if place.rpartition(":")[0] in BUILT_IN or not (text or command) or is_listed(place):
        return
    if not command:
        raise SettingsError(f"{place}: {VARIABLE} = {text} does not list this code; add it")
    how = f"use `coprefl run`, which also reports, or list this code in {VARIABLE}"
    raise SettingsError(f"{place}: `{command}` runs no code that a recipe names; {how}")


def _parts(text: str) -> tuple[tuple[str, ...], str]:
    """Return the parts of a file's path or a module's name, and the NAME after `:`, "" if none."""
    # Paths are absolute, so the first part is the root, which is no part of a module's name.
    where, _, name = text.rpartition(":")
    if not (where and name.isidentifier()):
        where, name = text, ""
    is_path = where.endswith(".py") or {"/", os.sep} & {*where} or where in (".", "..", "~")
    return expanded(where).resolve().parts if is_path else tuple(where.split(".")), name


# ---- files and modules --------------------------------------------------------------------------


def _target(kind: str, place: str) -> str:
    """Return `module:NAME` for the name of a partitioner of flwr-datasets, or else `place`."""
    if kind == "partition" and re.fullmatch(r"[A-Z][a-z]+[A-Z]\w+", place):
        return f"flwr_datasets.partitioner:{place}"
    return place


def _module_of(file: Path, place: str) -> ModuleType:
    """Return the module of a file, which is run once per process."""
    if not file.is_file():
        near = [path.name for path in file.parent.glob("*.py")]
        raise SettingsError(f"{place}: {unknown('file', file.name, near)}")
    file = file.resolve()
    name = f"{file.stem}_{_digest([str(file).encode()])[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    module = sys.modules[name] = ModuleType(name)  # Dataclasses look up modules there.
    module.__file__ = str(file)
    try:
        _run(place, lambda: exec(compile(file.read_bytes(), str(file), "exec"), vars(module)))
    except SettingsError:
        del sys.modules[name]  # The next call reads the file that the user has mended.
        raise
    return module


def _run(place: str, load: Callable[[], Any], what: str = "does not import") -> Any:
    """Return the result of `load()`; any exception of the place's code becomes a SettingsError."""
    try:
        return load()
    except SettingsError:
        raise
    except (Exception, SystemExit) as error:
        raise SettingsError(f"{place} {what}: {one_line(error)}") from error


def _files(file: Path) -> list[Path]:
    """Return a file of the user and all files that it imports from its folder or package.

    Indirect imports count.
    """
    root = next(source for source in file.parents if not (source / "__init__.py").is_file())
    files = [file]
    for source in files:  # The loop adds files to this list.
        for level, names in _imports(source.read_bytes()):
            for start in source.parents[level - 1 : level] if level else (file.parent, root):
                found = _sources(start.joinpath(*names))
                files += [other for other in found if other not in files]
    return files


def _imports(text: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of leading dots, parts of the name) of all imports in the text of a file."""
    names = list[tuple[int, str]]()
    with contextlib.suppress(SyntaxError, ValueError):  # The import itself reports them.
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names += [(0, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = f"{node.module}." if node.module else ""
                names += [(node.level, module + alias.name) for alias in node.names]
    for level, name in names:
        parts = name.split(".")  # Importing `a.b` also imports the package `a`.
        yield from ((level, parts[:n]) for n in range(not level, len(parts) + 1))


def _file_of(module: str) -> Path | None:
    """Return the file of a module, or None if there is none, without importing its packages."""
    first, *others = module.split(".")
    try:
        spec = importlib.util.find_spec(first) if _is_dotted(module) else None
    except (ImportError, ValueError):
        return None
    if others:
        folders = spec.submodule_search_locations if spec else None
        return next((f for folder in folders or () for f in _sources(Path(folder, *others))), None)
    return Path(spec.origin) if spec and spec.origin else None


def _sources(module: Path) -> list[Path]:
    """Return a list with the file of the module at a path without suffix, or an empty list."""
    return [path for path in (module / "__init__.py", Path(f"{module}.py")) if path.is_file()][:1]


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _digest(texts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).hexdigest()
