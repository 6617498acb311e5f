"""Names with options, as texts NAME:key=value,key=value, and names for people and for files."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from coprefl_flwr.errors import SettingsError

Value = bool | int | float | str

_AS_IN_PAPERS = (
    "Centralised CoPreFL Cyclic FedAdam FedAvg FedAvgM FedBABU FedCGS FedCOF FedDyn FedETF FedMeta "
    "FedPCL FedProto FedProx FedRep FedYogi FRL MOON NCM Per-FedAvg pFedMe SCAFFOLD Solo"
)
DISPLAYED = {"qffl": "q-FFL"} | {name.lower(): name for name in _AS_IN_PAPERS.split()}
"""{method in settings: its name in papers}, of the built-in methods whose two names differ."""

_VARIANTS = ("-std", "-sgd", "-hybrid", "-refined")

_OPTIONS = re.compile(r":(?=[A-Za-z][\w-]*=)")


def split_options(text: str) -> tuple[str, str]:
    """Split a string before the first `key=`: return its place, and its options or ""."""
    place, *options = _OPTIONS.split(text, maxsplit=1)
    return place, "".join(options)


def parse(text: str) -> tuple[str, dict[str, Value]]:
    """Return the name and the options of a text NAME or NAME:key=value,key=value.

    Raises a SettingsError for an option without a value.
    """
    name, options = split_options(text)
    pairs = [pair.partition("=") for pair in options.split(",")] if options else []
    for key, equals, _ in pairs:
        if not equals:
            raise SettingsError(f"{text}: '{key}' has no value; write {key}=VALUE")
    return name, {key: parsed(value) for key, _, value in pairs}


def with_options(name: str, options: Iterable[tuple[str, Value]]) -> str:
    """Return the text that `parse` reads as this name and these options."""
    return f"{name}:{written}" if (written := written_options(options)) else name


def written_options(options: Iterable[tuple[str, Value]]) -> str:
    """Return options as a text, key=value,key=value.

    A value may be a place with separate options, as of a Flower wrapper that wraps a strategy.
    These are separated by `&`, because a comma ends the value.
    """

    def text(value: Value) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        # A "+" would begin the next phase of a method: 1e16 instead of 1e+16.
        text = str(value).replace("e+", "e") if isinstance(value, float) else str(value)
        return text.replace(",", "&")

    return ",".join(f"{key}={text(value)}" for key, value in options)


def parsed(text: str) -> Value:
    """Return the value of an option from its text: a bool, an int, a float or else the text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.replace("&", ",") if split_options(text)[1] else text


@dataclass(frozen=True)
class Choice:
    """A value that is chosen by its name, with options.

    It is written NAME:key=value,key=value, or in a recipe as a mapping of `name`, or another `key`,
    and the options.
    """

    name: str
    options: tuple[tuple[str, Value], ...] = ()
    key: ClassVar[str] = "name"

    @classmethod
    def read(cls, value: Any) -> Self:
        """Return a choice from a choice, a text or a mapping; a TypeError for any other type."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping) and isinstance(value.get(cls.key), str):
            options = {key: _one_text(entry) for key, entry in value.items() if key != cls.key}
            return cls(value[cls.key], tuple(options.items()))
        if not isinstance(value, str):
            raise TypeError(f"must be a text, or a mapping with the key {cls.key}")
        name, options = parse(value.strip())
        return cls(name, tuple(options.items()))

    def __str__(self) -> str:
        return with_options(self.name, self.options)

    @property
    def arguments(self) -> dict[str, Any]:
        """The options as arguments by name; several numbers, separated by `&`, are a tuple."""
        return {key.replace("-", "_"): _argument(value) for key, value in self.options}


def _argument(value: Value) -> Any:
    """Return the value of an option as an argument; YAML reads some numbers as texts: 1e-6."""
    if not isinstance(value, str):
        return value
    values = tuple(map(parsed, value.split("&")))
    return values if len(values) > 1 else values[0]


def _one_text(value: Any) -> Value:
    """Return the value of an option; several values become one text, separated by `&`."""
    return "&".join(map(str, value)) if isinstance(value, list | tuple) else value


def display_names(texts: Iterable[str]) -> dict[str, str]:
    """Return the name to display for each method, such as "CoPreFL" for "coprefl:gamma=0.5".

    If several texts would have the same name, each name ends with those options that not all of
    these texts have.
    """
    alike: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        alike.setdefault(_without_options(text), []).append(text)
    names = {}
    for name, of_name in alike.items():
        options = {text: _options_of(text) for text in of_name}
        shared = set[str].intersection(*map(set, options.values()))
        for text, own in options.items():
            differ = [option for option in own if option not in shared]
            names[text] = f"{name}:{','.join(differ)}" if differ else name
    # The same options may be those of different phases.
    counts = Counter(names.values())
    return {text: name if counts[name] == 1 else text for text, name in names.items()}


def as_file_name(text: str, signs: str) -> str:
    """Return a text with hyphens instead of all characters but letters, digits and `signs`.

    Letters are those of all scripts, with their accents. Equal texts have equal names, although
    Unicode has several ways to write an accent.
    """
    text = unicodedata.normalize("NFC", text)
    kept = (c if unicodedata.category(c)[0] in "LMN" or c in signs else "\0" for c in text)
    return re.sub("\0+", "-", "".join(kept))


def folder_of(name: str) -> str:
    """Return a name as the name of a folder: other characters become hyphens."""
    return as_file_name(name, ".")


def _without_options(text: str) -> str:
    """Return the name to display for a method, or the names of all phases of a schedule."""
    phases = [split_options(phase)[0] for phase in text.split("+")]
    return "+".join(_displayed(phase) for phase in phases)


def _options_of(text: str) -> list[str]:
    """Return the options of all phases of a method, each as a string key=value."""
    phases = [split_options(phase)[1] for phase in text.split("+")]
    return [option for options in phases if options for option in options.split(",")]


def _displayed(name: str) -> str:
    for variant in _VARIANTS:
        if name.endswith(variant):
            return _displayed(name.removesuffix(variant)) + variant
    return DISPLAYED.get(name, name)
