"""What a user's file imports of the files beside it."""

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from coprefl_flwr.errors import SettingsError

_read: dict[Path, bytes] = {}


def beside(file: Path) -> dict[str, Path]:
    """Return {module: file} of what a file imports from its own folder, also through others."""
    found: dict[str, Path] = {}
    waiting, root = [file], file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    while waiting:
        one = waiting.pop()
        for folder in dict.fromkeys((file.parent, root)):
            for name, other in _imported(one, folder):
                if name not in found:
                    found[name] = other
                    waiting.append(other)
    return found


def _imported(file: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the modules in `folder` that a file names in its import lines, with their files."""
    for level, name in _import_lines(file.read_bytes()):
        start, parts = file.parents[level - 1] if level else folder, Path(*name.split("."))
        for other in (start / parts.with_suffix(".py"), start / parts / "__init__.py"):
            if other.is_file() and other.is_relative_to(folder):
                relative = other.relative_to(folder).with_suffix("")
                yield ".".join(relative.parts).removesuffix(".__init__"), other


@functools.lru_cache(maxsize=256)
def _import_lines(text: bytes) -> tuple[tuple[int, str], ...]:
    """Return (dots before it, name) of all that the text of a file imports."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # Said when it is imported.
        return ()
    found = [(0, one.name) for node in nodes if isinstance(node, ast.Import) for one in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{one.name}".lstrip(".") for one in node.names)]
            found += [(node.level, name) for name in names if name]
    return tuple(found)


def forget_changed(others: Mapping[str, Path]) -> None:
    """Have Python read again what was read of these files, if their text is another now."""
    for name, file in others.items():
        text, module = file.read_bytes(), sys.modules.get(name)
        if _read.get(file) != text and str(getattr(module, "__file__", "")) == str(file):
            del sys.modules[name]
        _read[file] = text


@contextmanager
def without_bytecode() -> Iterator[None]:
    """Have Python keep no .pyc of what is imported meanwhile.

    It knows a .pyc by the second and the size of its source: of two texts of one second and one
    size it would run the first again.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def check_beside(place: str, others: Mapping[str, Path]) -> None:
    """Raise a SettingsError if a name that a file imports was taken by another folder's file."""
    for name, other in others.items():
        origin = getattr(sys.modules.get(name), "__file__", None)
        if origin and Path(origin).resolve() != other.resolve():
            raise SettingsError(
                f"{place} imports {name}, which is already the module at {origin}: rename one"
            )
