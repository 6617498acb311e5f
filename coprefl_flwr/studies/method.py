"""Methods as a user chooses them: one or more phases in sequence, each with its options.

The string of a method is METHOD:key=value,key=value, with a "+" between phases. Run-config, the
command line and the names of rows contain such strings. Only the classes here parse and print them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import METHODS, RANDOM, Algorithm, find_method
from coprefl_flwr.models.weights import FILE, is_external
from coprefl_flwr.named import Named, as_file_name


@dataclass(frozen=True)
class Method:
    """A method: an algorithm or a sequence of algorithms, with the options that the user set.

    A method pre-trains a starting model, trains a task, computes a head or trains a model for every
    client. Each phase names an algorithm and its options. A method of a single phase may also be
    `random`, a kind of head, or the place (file or module:NAME) of external weights.
    """

    phases: tuple[Named, ...]

    @classmethod
    def parse(cls, text: str) -> "Method":
        """Parse the string of a method; a SettingsError for an option without a value."""
        return cls(tuple(map(Named.parse, text.split("+"))))

    @classmethod
    def read(cls, value: object) -> "Method":
        """Return a Method from a Method or from its string; a TypeError for any other type."""
        if isinstance(value, str):
            return cls.parse(value.strip())
        if isinstance(value, Method):
            return value
        raise TypeError("must be a text")

    def __str__(self) -> str:
        """Return the string of the method, which `parse` accepts."""
        return "+".join(map(str, self.phases))

    @property
    def without_folders(self) -> str:
        """The string of the method, with file names instead of paths."""
        return str(self.changed(lambda phase: phase.changed(plugins.without_folders)))

    @property
    def is_external(self) -> bool:
        """Whether the text names external weights, such as a file, instead of an algorithm."""
        first, *others = self.phases
        built_in = first.name.partition(":")[0] in (RANDOM, *METHODS)
        return not (built_in or others) and is_external(str(first))

    @property
    def algorithms(self) -> list[Algorithm]:
        """The algorithms of the phases; empty if the method trains nothing.

        Raises a SettingsError for an unknown algorithm.
        """
        if self in NO_METHODS or self.is_external:
            return []
        return [find_method(phase.name) for phase in self.phases if phase.name != RANDOM]

    def changed(self, change: Callable[[Named], Named]) -> "Method":
        """Return a method whose phases are the results of `change` on each phase."""
        return Method(tuple(map(change, self.phases)))

    def resolved(self, folder: Path) -> "Method":
        """Return the method with absolute paths; relative paths are taken from `folder`."""

        def whole(text: str) -> str:
            if text.startswith(FILE):
                return FILE + plugins.whole_path(text.removeprefix(FILE), folder)
            return plugins.resolved(text, folder)

        return self.changed(lambda phase: phase.changed(whole))

    def with_rounds(self, rounds: int) -> "Method":
        """Return the method with this number of rounds in the last phase."""
        *others, last = self.phases
        return Method((*others, last.having({"rounds": rounds})))


class Methods(tuple[Method, ...]):
    """A tuple of the methods that a study compares."""

    @classmethod
    def read(cls, value: object) -> "Methods":
        """Return Methods from Methods, from one Method, or from strings separated by spaces."""
        if isinstance(value, str):
            return cls(map(Method.parse, value.replace(";", " ").split()))
        return value if isinstance(value, Methods) else cls([Method.read(value)])

    def __str__(self) -> str:
        """Return the strings of the methods, separated by spaces."""
        return " ".join(map(str, self))

    @property
    def without_folders(self) -> str:
        """The strings of the methods, with file names instead of paths."""
        return " ".join(method.without_folders for method in self)

    def check(self, allowed: Sequence[str]) -> None:
        """Raise a SettingsError if there is no method, or if two share a string or a folder."""
        if not self:
            raise SettingsError(f"method is empty: name at least one of {', '.join(allowed)}")
        folders = [folder_of(method.without_folders) for method in self]
        for method, folder in zip(self, folders, strict=True):
            if self.count(method) > 1:
                raise SettingsError(f"method contains '{method}' twice")
            if folders.count(folder) > 1:
                raise SettingsError(
                    f"method: two methods like '{method}' need the folder {folder}/"
                )


START = Method.parse(RANDOM)
"""The method `random`: the starting model is the random initialisation, without training."""

FRESH, KEEP = NO_METHODS = (Method.parse("fresh"), Method.parse("keep"))
"""Heads that need no round of computation: random weights, or the pre-trained last layer."""


def folder_of(name: str) -> str:
    """Return a name as the name of a folder: other characters become hyphens."""
    folder = as_file_name(name, ".")
    return "-" if folder in (".", "..") else folder  # These two name other folders.
