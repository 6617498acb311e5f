"""Read YAML into plain values, with the line of each value for messages."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coprefl_flwr.errors import SettingsError, excerpt
from coprefl_flwr.files import read_text

PLAIN = ("null", "bool", "int", "float", "str", "map", "seq")
"""Kinds of values that a file may hold; a tag such as !!python/object names another."""

LONGEST_NUMBER = 400
"""Characters of a number, at most: reading a number in base 60 takes time quadratic in these."""
MOST_VALUES, DEEPEST = 100_000, 50
"""Number of values of a file with all aliases expanded, and nesting depth, both at most."""

# YAML 1.1 reads 1e-3 as a string. It is read as a number here.
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")

# Messages of the parser for a tab, a wrong indentation, or a misplaced colon.
_SPACING = re.compile(r"\\t|mapping values are not allowed|expected (':'|<block end>)")
_HINT = "; indent with spaces; a key needs a space after its colon; quote a value with ': ' in it"

Keys = tuple[str | int, ...]
"""Path from the root of a file to a value: keys of mappings and indices of lists."""
Lines = dict[Keys, str]
"""The place of each value, as in messages: "FILE, line 7"."""


@dataclass
class Places:
    """The place of each part of a recipe, for messages: file and line, or a `--set` option."""

    name: str  # of the file
    lines: Lines

    def of(self, *keys: str | int) -> str:
        """Return the place of a part, or else the place of the nearest part that contains it."""
        inside = [keys[:end] for end in range(len(keys), 0, -1)]
        return next((self.lines[part] for part in inside if part in self.lines), self.name)

    def of_setting(self, key: str) -> str:
        """Return the place of a setting or of a key of the recipe; "" if `key` is not set."""
        return self.lines.get(("settings", key)) or self.lines.get((key,), "")

    def overlay(self, keys: Keys) -> None:
        """Use the lines of the overlay at `keys` for the parts that the overlay changes."""
        depth = len(keys)
        inside = [part for part in self.lines if part[:depth] == keys and len(part) > depth]
        self.lines |= {part[depth:]: self.lines[part] for part in inside}

    def replace(self, keys: Keys, lines: Lines) -> None:
        """Replace the lines of the part at `keys`, and of all parts inside, by `lines`."""
        others = {part: line for part, line in self.lines.items() if part[: len(keys)] != keys}
        self.lines = others | {(*keys, *inner): line for inner, line in lines.items()}

    @contextmanager
    def at(self, *keys: str | int) -> Iterator[None]:
        """Prefix an error raised inside with the place of a part."""
        try:
            yield
        except SettingsError as error:
            raise SettingsError(f"{self.of(*keys)}: {error}", *error.keys) from error


def read_yaml(path: Path) -> tuple[Any, Lines]:
    """Return the content of a YAML file, and the line of each value.

    Raises a SettingsError with file and line if the file is missing, too large or not YAML, if a
    mapping has a key twice, if a tag asks for another type than a plain value, or if a number is
    larger than any float.
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
        raise SettingsError(f"{name}: not YAML: brackets are nested too deeply") from None
    if root is None:
        raise SettingsError(f"{name} is empty")
    reader = _Reader(name)
    return reader.value(root, (), ()), reader.lines


class _Reader:
    """Converts the YAML nodes of a file to plain values, and stores their lines."""

    def __init__(self, name: str) -> None:
        self.name, self.values = name, 0
        self.lines: Lines = {}

    def value(self, node: yaml.Node, path: Keys, parents: tuple[yaml.Node, ...]) -> Any:
        """Return the value of a node; `parents` are the nodes that contain it."""
        # `mapping` stores the key's line before: the value may begin on a later line.
        self.lines.setdefault(path, self.place(node))
        self.values += 1
        kind = self.kind(node)
        if len(parents) > DEEPEST:
            raise self.error(node, f"more than {DEEPEST} lists or mappings within each other")
        if self.values > MOST_VALUES:  # Aliases of aliases grow exponentially.
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
        """Return a mapping, whose keys are strings."""
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            self.kind(key)
            if not isinstance(key, yaml.ScalarNode):
                raise self.error(key, "a key must be a text")
            if key.value in mapping:
                raise self.error(key, f"the key '{key.value}' occurs twice")
            self.lines[(*path, key.value)] = self.place(key)
            mapping[key.value] = self.value(value, (*path, key.value), (*parents, node))
        return mapping

    def scalar(self, node: yaml.Node, kind: str) -> Any:
        """Return a number, a string, a boolean or None."""
        unquoted = isinstance(node, yaml.ScalarNode) and node.style is None
        means_number = unquoted and _EXPONENT.fullmatch(node.value)
        if kind == "str" and not means_number:
            return node.value
        if len(node.value) > LONGEST_NUMBER:
            longest = f"a {kind} has at most {LONGEST_NUMBER} characters"
            raise self.error(node, f"{excerpt(node.value)!r}: {longest}")
        try:
            loader = yaml.SafeLoader("")
            value = float(node.value) if kind == "str" else loader.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, OverflowError) as error:
            raise self.error(node, f"{excerpt(node.value)!r} is not of the type {kind}") from error
        if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
            raise self.error(node, f"{excerpt(node.value)!r} is not a finite number")
        return value

    def kind(self, node: yaml.Node) -> str:
        """Return the kind of a node, one of `PLAIN`."""
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if kind == "timestamp":  # A date in a title is a text.
            return "str"
        if kind not in PLAIN:
            raise self.error(node, f"the tag {node.tag} is not allowed, only plain values are")
        return kind

    def place(self, node: yaml.Node) -> str:
        """Return the place where a node begins: "FILE, line 7"."""
        return f"{self.name}, line {node.start_mark.line + 1}"

    def error(self, node: yaml.Node, problem: str) -> SettingsError:
        """Return an error that names the line of a node."""
        return SettingsError(f"{self.place(node)}: {problem}")
