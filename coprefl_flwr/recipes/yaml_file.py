"""Read YAML into plain values, with the line of each value for messages."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coprefl_flwr.errors import SettingsError, prefixed
from coprefl_flwr.files import read_text

Keys = tuple[str | int, ...]
"""Path from the root of a file to a value: keys of mappings and indices of lists."""
Lines = dict[Keys, str]
"""The place of each value, as in messages: "FILE, line 7"."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with keys and dates as texts, and 1e-3 as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node; raise a MarkedYAMLError if it has a key twice."""
        mapping: dict[Any, Any] = {}
        for of_key, value in node.value:
            key = self.construct_scalar(of_key)
            if key in mapping:
                problem, mark = f"the key '{key}' occurs twice", of_key.start_mark
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
            mapping[key] = self.construct_object(value, deep=True)
        return mapping


_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")  # YAML 1.1 reads 1e-3 as a string.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, [*"-+0123456789"])
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)


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

    def copy(self, source: Keys, target: Keys) -> None:
        """Use the lines of the part at `source`, and of all parts inside, for `target` too."""
        of_source = [part for part in self.lines if part[: len(source)] == source]
        self.lines |= {(*target, *part[len(source) :]): self.lines[part] for part in of_source}

    def replace(self, keys: Keys, lines: Lines) -> None:
        """Replace the lines of the part at `keys`, and of all parts inside, by `lines`."""
        others = {part: line for part, line in self.lines.items() if part[: len(keys)] != keys}
        self.lines = others | {(*keys, *inner): line for inner, line in lines.items()}

    def at(self, *keys: str | int) -> AbstractContextManager[None]:
        """Return a context that begins the message of an error with the place of a part."""
        return prefixed(self.of(*keys))


def read_yaml(path: Path) -> tuple[Any, Lines]:
    """Return the content of a YAML file, and the line of each value.

    Raises a SettingsError with file and line if the file is missing or not YAML, if a mapping has a
    key twice, or if a tag asks for another type than a plain value.
    """
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, name: str) -> tuple[Any, Lines]:
    """Read YAML as `read_yaml` does; error messages begin with `name`."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        value = None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", error)).split())
        raise SettingsError(f"{name}{line}: not YAML: {problem}") from error
    numbers = _numbers(root, ()) if root else ()
    return value, {keys: f"{name}, line {number}" for keys, number in numbers}


def _numbers(node: yaml.Node, keys: Keys) -> Iterator[tuple[Keys, int]]:
    """Return the keys and the line's number of every value; a key's line is that of its value."""
    for at, part in enumerate(node.value if isinstance(node, yaml.CollectionNode) else ()):
        start, value = part if isinstance(part, tuple) else (part, part)
        inside = (*keys, start.value if isinstance(part, tuple) else at)
        yield inside, start.start_mark.line + 1
        yield from _numbers(value, inside)
