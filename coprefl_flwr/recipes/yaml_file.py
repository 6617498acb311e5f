"""YAML as plain values, and the place of each of them for messages."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coprefl_flwr.errors import SettingsError, short
from coprefl_flwr.files import read_text

PLAIN = ("null", "bool", "int", "float", "str", "map", "seq")
"""Kinds of values that a file may hold; a tag such as !!python/object names another."""

LONGEST_NUMBER = 400
"""Characters of a number: the time to read one in base 60 grows with their square."""
MOST_VALUES, DEEPEST = 100_000, 50
"""Values that a file may hold with its aliases written out, and how deep they may be nested."""

# YAML 1.1 reads 1e-3 as a text; everybody means the number.
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")

# What the parser says of a tab, a wrong indentation, or a colon in the wrong place.
_SPACING = re.compile(r"\\t|mapping values are not allowed|expected (':'|<block end>)")
_HINT = "; indent with spaces; a key needs a space after its colon; quote a value with ': ' in it"

Keys = tuple[str | int, ...]
"""Keys, and positions in lists, from the root of a file to a value."""
Lines = dict[Keys, str]
"""Where each value is, as messages name it: "FILE, line 7"."""


@dataclass
class Places:
    """Where the parts of a recipe are, for messages: in its file, in an overlay, or in `--set`."""

    name: str  # of the file
    lines: Lines

    def of(self, *keys: str | int) -> str:
        """Return the place of a part, or else of the nearest part that contains it."""
        inside = [keys[:end] for end in range(len(keys), 0, -1)]
        return next((self.lines[part] for part in inside if part in self.lines), self.name)

    def of_setting(self, key: str) -> str:
        """Return the place of a setting, or of a key of the recipe; "" where neither is set."""
        return self.lines.get(("settings", key)) or self.lines.get((key,), "")

    def overlay(self, keys: Keys) -> None:
        """Let the parts of the overlay at `keys` be where that has them."""
        depth = len(keys)
        inside = [part for part in self.lines if part[:depth] == keys and len(part) > depth]
        self.lines |= {part[depth:]: self.lines[part] for part in inside}

    def replace(self, keys: Keys, lines: Lines) -> None:
        """Let what is at `keys`, and its parts, be at these lines."""
        others = {part: line for part, line in self.lines.items() if part[: len(keys)] != keys}
        self.lines = others | {(*keys, *inner): line for inner, line in lines.items()}

    @contextmanager
    def at(self, *keys: str | int) -> Iterator[None]:
        """Give an error raised inside the place of a part."""
        try:
            yield
        except SettingsError as error:
            raise SettingsError(f"{self.of(*keys)}: {error}", *error.keys) from error


def read_yaml(path: Path) -> tuple[Any, Lines]:
    """Return what a YAML file holds, and the line of each value.

    Raises a SettingsError with file and line, if there is no such file, it is not YAML, a mapping
    has a key twice, a tag asks for something else than a plain value, a number is larger than any
    float, or the file is larger than any recipe.
    """
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, name: str) -> tuple[Any, Lines]:
    """Read YAML as `read_yaml` does; error messages begin with `name`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        problem = str(error.problem)
        hint = _HINT if _SPACING.search(problem) else ""
        raise SettingsError(f"{name}{line}: not YAML: {problem}{hint}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise SettingsError(f"{name}: not YAML: brackets within brackets, too deep") from None
    if root is None:
        raise SettingsError(f"{name} is empty")
    reader = _Reader(name)
    return reader.value(root, (), ()), reader.lines


class _Reader:
    """Turns the nodes of a file into plain values, and notes their lines."""

    def __init__(self, name: str) -> None:
        self.name, self.values = name, 0
        self.lines: Lines = {}

    def value(self, node: yaml.Node, path: Keys, parents: tuple[yaml.Node, ...]) -> Any:
        """Return the value of a node that is nested in the parents."""
        # The line of a key is noted before: its value may begin a line below.
        self.lines.setdefault(path, self.place(node))
        self.values += 1
        kind = self.kind(node)
        if len(parents) > DEEPEST:
            raise self.error(node, f"more than {DEEPEST} lists or mappings within each other")
        if self.values > MOST_VALUES:  # Aliases of aliases double with every line.
            raise self.error(node, f"more than {MOST_VALUES} values, with all aliases written out")
        if any(parent is node for parent in parents):
            raise self.error(node, "an alias that contains itself")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, parents)
        if isinstance(node, yaml.SequenceNode):
            within = (*parents, node)
            return [self.value(item, (*path, at), within) for at, item in enumerate(node.value)]
        return self.scalar(node, kind)

    def mapping(self, node: yaml.Node, path: Keys, parents: tuple[yaml.Node, ...]) -> Any:
        """Return a mapping, whose keys are texts."""
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            self.kind(key)
            if not isinstance(key, yaml.ScalarNode):
                raise self.error(key, "a key must be a text")
            if key.value in mapping:
                raise self.error(key, f"the key '{key.value}' is there twice")
            self.lines[(*path, key.value)] = self.place(key)
            mapping[key.value] = self.value(value, (*path, key.value), (*parents, node))
        return mapping

    def scalar(self, node: yaml.Node, kind: str) -> Any:
        """Return a number, a text, a truth value or nothing."""
        unquoted = isinstance(node, yaml.ScalarNode) and node.style is None
        means_number = unquoted and _EXPONENT.fullmatch(node.value)
        if kind == "str" and not means_number:
            return node.value
        if len(node.value) > LONGEST_NUMBER:
            longest = f"a {kind} has at most {LONGEST_NUMBER} characters"
            raise self.error(node, f"{short(node.value)!r}: {longest}")
        try:
            loader = yaml.SafeLoader("")
            value = float(node.value) if kind == "str" else loader.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, OverflowError) as error:
            raise self.error(node, f"{short(node.value)!r} is no {kind}") from error
        if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
            raise self.error(node, f"{short(node.value)!r} is not a finite number")
        return value

    def kind(self, node: yaml.Node) -> str:
        """Return which of the plain kinds a node is."""
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if kind == "timestamp":  # A date in a title is a text.
            return "str"
        if kind not in PLAIN:
            raise self.error(node, f"{node.tag} is not allowed; plain values only")
        return kind

    def place(self, node: yaml.Node) -> str:
        """Return where a node begins."""
        return f"{self.name}, line {node.start_mark.line + 1}"

    def error(self, node: yaml.Node, problem: str) -> SettingsError:
        """Return an error that names the line of a node."""
        return SettingsError(f"{self.place(node)}: {problem}")
