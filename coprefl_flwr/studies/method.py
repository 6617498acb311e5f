"""Methods as a user chooses them: phases that follow each other, each with its own options.

The text of a method, METHOD:key=value,key=value with a "+" between phases, is read and printed by
the classes here alone: run-config, the command line and the names of rows have it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import METHODS, RANDOM, Algorithm, find_method
from coprefl_flwr.models.weights import FILE, is_external
from coprefl_flwr.named import Named


@dataclass(frozen=True)
class Method:
    """What makes a starting model, runs a task, or gives every client its own model.

    Each phase names an algorithm and the options that are set for it. One phase alone may also be
    `random`, a kind of head, or the place of weights that were made elsewhere.
    """

    phases: tuple[Named, ...]

    @classmethod
    def parse(cls, text: str) -> "Method":
        """Read its text; a SettingsError for an option without a value."""
        return cls(tuple(map(Named.parse, text.split("+"))))

    @classmethod
    def read(cls, value: object) -> "Method":
        """Return a setting's value, which may be the text; a TypeError for any other value."""
        if isinstance(value, str):
            return cls.parse(value.strip())
        if isinstance(value, Method):
            return value
        raise TypeError("must be a text")

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return "+".join(map(str, self.phases))

    @property
    def portable(self) -> str:
        """The text without the folders of files."""
        return str(self.changed(lambda phase: phase.changed(plugins.portable)))

    @property
    def is_external(self) -> bool:
        """Whether it is no method but weights that were made elsewhere."""
        first, *others = self.phases
        built_in = first.name.partition(":")[0] in (RANDOM, *METHODS)
        return not (built_in or others) and is_external(str(first))

    @property
    def algorithms(self) -> list[Algorithm]:
        """The algorithms of its phases, none of what trains nothing.

        Raises a SettingsError if there is no such algorithm.
        """
        if self in UNTRAINED or self.is_external:
            return []
        return [find_method(phase.name) for phase in self.phases if phase.name != RANDOM]

    def changed(self, change: Callable[[Named], Named]) -> "Method":
        """Return the same with each of its phases changed."""
        return Method(tuple(map(change, self.phases)))

    def resolved(self, folder: Path) -> "Method":
        """Return the same with the whole paths of files, which are looked for in a folder."""

        def whole(text: str) -> str:
            if text.startswith(FILE):
                return FILE + plugins.whole_path(text.removeprefix(FILE), folder)
            return plugins.resolved(text, folder)

        return self.changed(lambda phase: phase.changed(whole))

    def with_rounds(self, rounds: int) -> "Method":
        """Return the same with this many rounds of the last phase."""
        *others, last = self.phases
        return Method((*others, last.having({"rounds": rounds})))


class Methods(tuple[Method, ...]):
    """The methods that a study compares."""

    @classmethod
    def read(cls, value: object) -> "Methods":
        """Return a setting's value: methods, one, or texts with spaces between them."""
        if isinstance(value, str):
            return cls(map(Method.parse, value.replace(";", " ").split()))
        return value if isinstance(value, Methods) else cls([Method.read(value)])

    def __str__(self) -> str:
        """Return the texts, with spaces between them."""
        return " ".join(map(str, self))

    @property
    def portable(self) -> str:
        """The texts without the folders of files."""
        return " ".join(method.portable for method in self)

    def check(self, allowed: Sequence[str]) -> None:
        """Raise a SettingsError for no method, or two of one text or of one folder."""
        if not self:
            raise SettingsError(f"method is empty: name some of {', '.join(allowed)}")
        folders = [folder_of(method.portable) for method in self]
        for method, folder in zip(self, folders, strict=True):
            if self.count(method) > 1:
                raise SettingsError(f"method names '{method}' twice")
            if folders.count(folder) > 1:
                raise SettingsError(f"method: '{method}' and another would share {folder}/")


START = Method.parse(RANDOM)
"""The starting model that is not trained."""

FRESH, KEEP = NO_METHODS = (Method.parse("fresh"), Method.parse("keep"))
"""Heads that a task begins with as they are, without a round that computes them."""

UNTRAINED = (START, *NO_METHODS)


def folder_of(name: str) -> str:
    """Return a name as part of a path."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name)
