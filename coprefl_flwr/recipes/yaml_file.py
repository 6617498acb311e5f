"""YAML with line numbers, and nothing but plain values in it."""

import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from coprefl_flwr.errors import SettingsError, short, unknown
from coprefl_flwr.files import read_text
from coprefl_flwr.studies.method import Method

PLAIN = ("null", "bool", "int", "float", "str", "map", "seq")
"""Kinds of values that a file may hold; a tag such as !!python/object names another."""

LONGEST_NUMBER = 400
"""Characters of a number: the time to read one in base 60 grows with their square."""
MOST_VALUES, DEEPEST = 100_000, 50
"""Values that a file may hold with its aliases written out, and how deep they may lie."""

# YAML 1.1 takes 1e-3 for a text; everybody means the number.
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


@dataclass(frozen=True)
class Located:
    """A value of the file and where it stands.

    Its methods raise a SettingsError with the place if the value, called `what`, is wrong.
    """

    value: Any  # bool, int, float, str, None, dict[str, Located] or list[Located]
    place: str  # "FILE, line 7"

    def error(self, message: str) -> SettingsError:
        """Return an error that names the place."""
        return SettingsError(f"{self.place}: {message}")

    def holding(self, value: Any) -> "Located":
        """Return another value that stands in the same place."""
        return replace(self, value=value)

    def mapping(
        self, what: str, known: Iterable[str] | None = None, noun: str = "key"
    ) -> Mapping[str, "Located"]:
        """Return the value, a mapping of at least one key, all of them known."""
        if not isinstance(self.value, dict):
            raise self.error(f"{what} must be a mapping (key: value)")
        if not self.value:
            raise self.error(f"{what} is empty")
        for key, entry in self.value.items():
            if known is not None and key not in known:
                raise entry.error(unknown(noun, key, known))
        return self.value

    def items(self) -> Iterator["Located"]:
        """Yield the entries of a list, or the value itself if it is no list."""
        if isinstance(self.value, list):
            yield from self.value
        else:
            yield self

    def listed(self, what: str) -> list["Located"]:
        """Return the entries of a list, or the one value; an empty list is an error."""
        entries = list(self.items())
        if not entries:
            raise self.error(f"{what} is an empty list")
        return entries

    def text(self, what: str) -> str:
        """Return the value, which must be a text."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.error(f"{what} must be a text")
        return self.value.strip()

    def whole(self, what: str, minimum: int) -> int:
        """Return the value, a whole number of at least `minimum`."""
        value: int = self.value
        if type(value) is not int or value < minimum:
            raise self.error(f"{what} = {short(value)}: must be a whole number, at least {minimum}")
        return value

    def one_of(self, what: str, allowed: Sequence[str]) -> str:
        """Return the value, one of the allowed texts."""
        if self.value not in allowed:
            raise self.error(f"{what}: {unknown('value', str(self.plain()), allowed)}")
        return str(self.value)

    def plain(self) -> Any:
        """Return the value without places."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [entry.plain() for entry in self.value]
        return str(self.value) if isinstance(self.value, Method) else self.value


def part_of(tree: Mapping[str, Located], key: str) -> Mapping[str, Located]:
    """Return the mapping under a key; an empty one where there is no such key."""
    return tree[key].mapping(key) if key in tree else {}


def entries_of(tree: Mapping[str, Located], key: str) -> list[Located]:
    """Return the entries of the list under a key; none where there is no such key."""
    return tree[key].listed(key) if key in tree else []


def read_yaml(path: Path) -> Located:
    """Read a YAML file.

    Raises a SettingsError with file and line, if there is no such file, it is not YAML, a key
    stands twice in a mapping, a tag would make something else than a plain value, a number is
    beyond what a float holds, or the file is larger than any recipe.
    """
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, name: str) -> Located:
    """Read YAML as `read_yaml` does; `name` stands in error messages."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise SettingsError(f"{name}{line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise SettingsError(f"{name}: not YAML: brackets within brackets, too deep") from None
    if root is None:
        raise SettingsError(f"{name} is empty")
    return _located(root, name, (), itertools.count())


def _located(
    node: yaml.Node, name: str, parents: tuple[yaml.Node, ...], values: Iterator[int]
) -> Located:
    place = f"{name}, line {node.start_mark.line + 1}"
    kind = _kind(node, place)
    if len(parents) > DEEPEST:
        raise SettingsError(f"{place}: more than {DEEPEST} lists or mappings within each other")
    if next(values) >= MOST_VALUES:  # Aliases of aliases double with every line.
        raise SettingsError(
            f"{place}: more than {MOST_VALUES} values, with all aliases written out"
        )
    if any(parent is node for parent in parents):
        raise SettingsError(f"{place}: an alias that contains itself")
    within = (*parents, node)
    if isinstance(node, yaml.MappingNode):
        return Located(_mapping(node, name, within, values), place)
    if isinstance(node, yaml.SequenceNode):
        return Located([_located(entry, name, within, values) for entry in node.value], place)
    unquoted = isinstance(node, yaml.ScalarNode) and node.style is None
    is_number = kind in ("int", "float") or (unquoted and _EXPONENT.fullmatch(node.value))
    if kind == "str" and not is_number:
        return Located(node.value, place)
    refused = SettingsError(f"{place}: {short(node.value)!r} is no {kind}")
    if len(node.value) > LONGEST_NUMBER:
        what = f"a {kind} has at most {LONGEST_NUMBER} characters"
        raise SettingsError(f"{place}: {short(node.value)!r}: {what}")
    try:
        value = float(node.value) if kind == "str" else yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError, LookupError, OverflowError) as error:
        raise refused from error
    if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
        raise SettingsError(f"{place}: {short(node.value)!r} is not a finite number")
    return Located(value, place)


def _kind(node: yaml.Node, place: str) -> str:
    """Return which of the plain kinds a node says it is."""
    kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
    if kind == "timestamp":  # A date in a title is a text.
        return "str"
    if kind not in PLAIN:
        raise SettingsError(f"{place}: {node.tag} is not allowed; plain values only")
    return kind


def _mapping(
    node: yaml.MappingNode, name: str, parents: tuple[yaml.Node, ...], values: Iterator[int]
) -> dict[str, Located]:
    found: dict[str, Located] = {}
    for key, value in node.value:
        place = f"{name}, line {key.start_mark.line + 1}"
        _kind(key, place)
        if not isinstance(key, yaml.ScalarNode):
            raise SettingsError(f"{place}: a key must be a text")
        if key.value in found:
            raise SettingsError(f"{place}: the key '{key.value}' stands twice")
        # Where the key stands: what it holds may begin a line below.
        found[key.value] = Located(_located(value, name, parents, values).value, place)
    return found
