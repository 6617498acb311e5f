"""Find a user's code by name: methods, models, datasets, partitions, metrics, trackers.

A place is a string that names a function or a class: `module:NAME`, `path/file.py:NAME`, the name
of an entry point of the group `coprefl_flwr`, or a name that was given to `register`. Options may
follow the place, as in `net.py:Net:width=32,depth=3`.

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
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from coprefl_flwr.errors import SettingsError, one_line, unknown
from coprefl_flwr.files import expanded
from coprefl_flwr.named import parse, split_options

GROUP = "coprefl_flwr"
"""The group of Python entry points in which places are looked up."""

KINDS = (
    *("method", "model", "dataset", "partition", "metric", "measurement", "tracker", "start"),
    "client-wrapper",
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

Result = TypeVar("Result")

Registered = dict[tuple[str, str], tuple[Any, bytes]]
REGISTERED: Registered = {}
"""{(kind, name): (registered object, its source)}; Ray workers get a copy of this dict."""

_known: ContextVar[dict[tuple[Any, ...], Any] | None] = ContextVar("known", default=None)
"""Results of `once`, by function and arguments, in a block of `unchanged`."""

_showing = ContextVar("showing", default="")
"""The name of the command that only shows results, or "" if code may be run."""


def register(kind: str, name: str, what: Any) -> None:
    """Register a class or function, such as a notebook's, under a name that settings can use.

    The name is known in this process and its Ray workers. `kind` is one of KINDS. `name` begins
    with a letter and has only letters, digits, `_` and `-`. The source of `what` must be readable,
    because results are stored under a hash of it. Other arguments raise a SettingsError.
    """
    if kind not in KINDS:
        raise SettingsError(unknown("kind", kind, KINDS))
    if not re.fullmatch(r"[^\W\d_][\w-]*", name):
        raise SettingsError(f"name {name!r}: must be letters, digits, '_' and '-'")
    REGISTERED[kind, name] = what, _source(name, what)


def is_place(kind: str, text: str) -> bool:
    """Return whether a string has the form of a place or is a registered name."""
    place, _ = split_options(text)
    where, colon, name = _target(kind, place).rpartition(":")
    written = bool(colon) and name.isidentifier() and (where.endswith(".py") or _is_dotted(where))
    return written or (kind, place) in REGISTERED


def brought(kind: str) -> list[str]:
    """Return the names that were registered for a kind, and the names of all entry points."""
    return [name for its_kind, name in REGISTERED if its_kind == kind] + list(_entry_points())


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
        module = once(_module_of, expanded(where), place)
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
    if not is_without_code():
        find(kind, text)


def call(what: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call the function of a place, with the options of the place as keyword arguments.

    `what` is the place with its options, and `function` is the function that the place names.
    Raises a SettingsError for an option that the function does not have, and for any exception that
    the function raises.
    """
    options = {key.replace("-", "_"): value for key, value in parse(what)[1].items()}
    parameters = list(inspect.signature(function).parameters.values())
    known = [
        parameter.name
        for parameter in parameters[len(arguments) :]
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        for key in options:
            if key not in known:
                raise SettingsError(f"{what}: {unknown('option', key, known)}")
    return _run(what, functools.partial(function, *arguments, **options), "failed")


def resolved(text: str, folder: Path) -> str:
    """Return a place with the absolute path of its file; a relative path begins in `folder`."""
    where = split_options(text)[0].rpartition(":")[0]
    return whole_path(where, folder) + text[len(where) :] if where.endswith(".py") else text


def whole_path(file: str, folder: Path) -> str:
    """Return the absolute path of a file; a relative path begins in `folder`.

    Raises a SettingsError if the path holds white space, `+` or `;`, which separate the entries of
    some settings.
    """
    path = str((folder / expanded(file)).resolve())
    if sign := re.search(r"[\s+;]", path):
        problem = f"{path}: the path of a file in settings must not contain {sign[0]!r}"
        raise SettingsError(f"{problem}; move the file, or rename it or its folder")
    return path


def without_folders(text: str) -> str:
    """Return a place without the folder of its file, so that all machines write the same place."""
    where = split_options(text)[0].rpartition(":")[0]
    return Path(where).name + text[len(where) :] if where.endswith(".py") else text


def hash_at(kind: str, text: str) -> str:
    """Return the SHA-256 of the source of the code at a place, or "" if there is no such file.

    The source is the file of the place and all files that the file imports, directly or indirectly,
    from its folder or package. If the file is in an installed package, the source is that file
    only. No code is run.
    """
    return once(_hash_at, kind, text)


@contextmanager
def unchanged() -> Iterator[None]:
    """Read the code at each place only once in this block, such as while a study runs.

    If a file of the user changes meanwhile, its first text counts until the end of the block.
    """
    known = _known.get()
    before = _known.set({} if known is None else known)
    try:
        yield
    finally:
        _known.reset(before)


def once(make: Callable[..., Result], *arguments: Any) -> Result:
    """Return `make(*arguments)`, which is called only once in a block of `unchanged`."""
    known = _known.get()
    if known is None:
        return make(*arguments)
    if (make, *arguments) not in known:
        known[make, *arguments] = make(*arguments)
    result: Result = known[make, *arguments]
    return result


def _content(path: Path) -> bytes:
    return once(Path.read_bytes, path)


def _hash_at(kind: str, text: str) -> str:
    place, _ = split_options(text)
    if (kind, place) in REGISTERED:
        return _digest([REGISTERED[kind, place][1]])
    where = _entry_points().get(place, place).rpartition(":")[0]
    file = expanded(where) if where.endswith(".py") else _file_of(where)
    if file is None or not file.is_file():
        return ""
    file, libraries = file.resolve(), ("purelib", "platlib", "stdlib")
    installed = any(file.is_relative_to(sysconfig.get_path(name)) for name in libraries)
    files = {file} if installed else {file, *_imported(file).values()}
    return _digest(_content(path) for path in sorted(files))


# ---- code that COPREFL_ALLOW allows -------------------------------------------------------------


@contextmanager
def without_code(command: str) -> Iterator[None]:
    """Allow only code that COPREFL_ALLOW lists, while `command` shows results in this block."""
    before = _showing.set(command)
    try:
        yield
    finally:
        _showing.reset(before)


def is_without_code() -> bool:
    """Return whether the running command only shows results (see `without_code`)."""
    return bool(_showing.get())


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
    text, command = os.environ.get(VARIABLE, "").strip(), _showing.get()
    if place.rpartition(":")[0] in BUILT_IN or not (text or command) or is_listed(place):
        return
    if not command:
        raise SettingsError(f"{place}: {VARIABLE} = {text} does not list this code; add it")
    raise SettingsError(
        f"{place}: `{command}` runs no code that a recipe names; use `coprefl run`, which also "
        f"writes the report, or list this code in {VARIABLE}"
    )


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
    """Return `module:NAME` for the name of an entry point or a partitioner, or else `place`."""
    if kind == "partition" and re.fullmatch(r"[A-Z][a-z]+[A-Z]\w+", place):
        return f"flwr_datasets.partitioner:{place}"
    return _entry_points().get(place, place)


@functools.cache
def _entry_points() -> Mapping[str, str]:
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=GROUP)}


_read: dict[Path, bytes] = {}
"""The content of every file that a user's file imports, as of the last import."""


def _module_of(file: Path, place: str) -> ModuleType:
    """Return the module of a file; if the file or a file that it imports changed, load it again."""
    if not file.is_file():
        near = [path.name for path in file.parent.glob("*.py")]
        raise SettingsError(f"{place}: {unknown('file', file.name, near)}")
    file = file.resolve()
    others = _imported(file)
    texts = {path: _content(path) for path in (file, *others.values())}
    name = f"{file.stem}_{_digest([str(file).encode(), *texts.values()])[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    # Modules that import a changed module still refer to the old module, so all are loaded again.
    changed = any(_read.get(path, texts[path]) != texts[path] for path in others.values())
    for other, path in others.items():
        if (changed or path not in _read) and _origin(other) == path:
            del sys.modules[other]
        _read[path] = texts[path]
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    module = sys.modules[name] = ModuleType(name)  # Dataclasses look up modules there.
    module.__file__ = str(file)
    # Python compares only the second and the size of the source, and could load an old .pyc file.
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        _run(place, lambda: exec(compile(texts[file], str(file), "exec"), vars(module)))
        for other, path in others.items():
            if (_origin(other) or path) != path:
                problem = f"but the module at {_origin(other)} has this name: rename one file"
                raise SettingsError(f"{place} imports {other}, {problem}")
    except SettingsError:
        del sys.modules[name]
        raise
    finally:
        sys.dont_write_bytecode = bytecode
    return module


def _run(place: str, load: Callable[[], Any], what: str = "does not import") -> Any:
    """Return the result of `load()`; any exception of the place's code becomes a SettingsError."""
    try:
        return load()
    except SettingsError:
        raise
    except (Exception, SystemExit) as error:
        raise SettingsError(f"{place} {what}: {one_line(error)}") from error


def _origin(module: str) -> Path | None:
    """Return the file of a module in `sys.modules`, or None if there is no such module or file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).resolve() if file else None


def _imported(file: Path) -> dict[str, Path]:
    """Return {module: file} of all direct and indirect imports from a file's folder or package."""
    root = next(source for source in file.parents if not (source / "__init__.py").is_file())
    files, waiting, looked_for = dict[str, Path](), [file], set[tuple[Any, ...]]()
    for source in waiting:  # The loop adds files to this list.
        for level, names in _import_lines(_content(source)):
            for folder in (file.parent, root):
                start = source.parents[level - 1] if 0 < level <= len(source.parents) else folder
                if (folder, start, names) in looked_for:  # Files share imports.
                    continue
                looked_for.add((folder, start, names))
                for other in _sources(start.joinpath(*names)):
                    if other.is_relative_to(folder):
                        parts = other.relative_to(folder).with_suffix("").parts
                        module = ".".join(parts).removesuffix(".__init__")
                        waiting += [] if module in files else [other]
                        files[module] = other
    return files


@functools.lru_cache(maxsize=256)
def _import_lines(text: bytes) -> list[tuple[int, tuple[str, ...]]]:
    """Return (number of leading dots, parts of the name) of all imports in the text of a file."""
    # Importing `a.b` also imports the package `a`, so both names are returned.
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # The import reports it.
        return []
    imports = [node for node in nodes if isinstance(node, ast.Import)]
    whole = [(0, alias.name) for node in imports for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            module = f"{node.module}." if node.module else ""
            whole += [(node.level, module + alias.name) for alias in node.names]
    lines = [(level, tuple(name.split("."))) for level, name in whole]
    parts = ((level, p[:n]) for level, p in lines for n in range(not level, len(p) + 1))
    return list(dict.fromkeys(parts))  # Names from one module share its packages.


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


def _source(name: str, what: Any) -> bytes:
    """Return the source of the files or notebook cells that define a registered object."""
    # Included are the source of a method's client and of base classes in the same module.
    parts = [what, getattr(what, "client", None), getattr(what, "fn", None)]
    classes = [part for part in parts if isinstance(part, type)]
    own = [base for kind in classes for base in kind.__mro__ if base.__module__ == kind.__module__]
    codes = [getattr(value, "__code__", None) for base in own for value in vars(base).values()]
    codes += [getattr(part, "__code__", None) for part in parts]
    files = {code.co_filename for code in codes if code}
    files |= {str(getattr(sys.modules.get(base.__module__), "__file__", "")) for base in own}
    lines = [line for file in sorted(files) for line in linecache.getlines(file)]
    if not lines:
        raise SettingsError(
            f"{name}: its source code cannot be read, so its results cannot be stored; write the "
            "code into a file"
        )
    return "".join(lines).encode()
