"""Read YAML into plain values, with the line of each value for messages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import read_text


class _Loader(yaml.SafeLoader):
    """PyYAML's loader of plain values, with 1e-3 as a number and dates as texts."""


_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")  # YAML 1.1 reads 1e-3 as a string.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, [*"-+0123456789"])
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)

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

    Raises a SettingsError with file and line if the file is missing or not YAML, if a mapping has a
    key twice, or if a tag asks for another type than a plain value.
    """
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, name: str) -> tuple[Any, Lines]:
    """Read YAML as `read_yaml` does; error messages begin with `name`."""
    lines: Lines = {}
    try:
        root = yaml.compose(text, Loader=_Loader)
        value = None if root is None else _value(root, (), name, lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        problem = str(error.problem)
        hint = _HINT if _SPACING.search(problem) else ""
        raise SettingsError(f"{name}{line}: not YAML: {problem}{hint}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    if root is None:
        raise SettingsError(f"{name} is empty")
    return value, lines


def _value(node: yaml.Node, path: Keys, name: str, lines: Lines) -> Any:
    """Return the value of a node, and add the lines of all its parts to `lines`."""
    place = f"{name}, line {node.start_mark.line + 1}"
    # The line of a key is there before: its value may begin on a later line.
    lines.setdefault(path, place)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, at), name, lines) for at, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        try:
            return _Loader("").construct_object(node)
        except ValueError as error:
            raise SettingsError(f"{place}: {error}") from error
    mapping: dict[str, Any] = {}
    for key, value in node.value:
        of_key = f"{name}, line {key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise SettingsError(f"{of_key}: a key must be a text")
        if key.value in mapping:
            raise SettingsError(f"{of_key}: the key '{key.value}' occurs twice")
        lines[(*path, key.value)] = of_key
        mapping[key.value] = _value(value, (*path, key.value), name, lines)
    return mapping
