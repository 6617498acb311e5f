"""A name with the values of its options, which is written as NAME:key=value,key=value."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from coprefl_flwr.errors import SettingsError

Value = bool | int | float | str

_AS_IN_PAPERS = (
    "Centralised CoPreFL Cyclic FedAdam FedAvg FedAvgM FedDyn FedMeta FedPCL FedProto FedProx "
    "FedRep FedYogi MOON NCM Per-FedAvg pFedMe SCAFFOLD Solo"
)
DISPLAYED = {"qffl": "q-FFL"} | {name.lower(): name for name in _AS_IN_PAPERS.split()}
"""{method in settings: its name in papers}, of the built-in methods whose two names differ."""

_VARIANTS = ("-std", "-sgd", "-hybrid", "-refined")

_OPTIONS = re.compile(r":(?=[A-Za-z][\w-]*=)")


def split_options(text: str) -> tuple[str, str]:
    """Split a string before the first `key=`: return its place, and its options or ""."""
    place, *options = _OPTIONS.split(text, maxsplit=1)
    return place, "".join(options)


@dataclass(frozen=True)
class Named:
    """A name, which is a word or a place, and the values of its options.

    The value of an option may itself be a Named, as of a Flower wrapper that wraps a strategy.
    """

    name: str
    options: tuple[tuple[str, "Value | Named"], ...] = ()

    @classmethod
    def parse(cls, text: str, between: str = ",") -> "Named":
        """Return the Named that a string NAME or NAME:key=value,key=value describes.

        `between` separates the options. Raises a SettingsError for an option without a value.
        """
        name, options = split_options(text)
        pairs = [pair.partition("=") for pair in options.split(between)] if options else []
        for key, equals, _ in pairs:
            if not equals:
                raise SettingsError(f"{text}: '{key}' has no value; write {key}=VALUE")
        return cls(name).having({key: parsed(value) for key, _, value in pairs})

    @classmethod
    def read(cls, value: object) -> "Named":
        """Return the Named that is the value of an option.

        `value` is a Named, or a string with `&` instead of commas between its options. Raises a
        TypeError for a value of any other type.
        """
        if isinstance(value, str):
            return cls.parse(value, "&")
        if isinstance(value, Named):
            return value
        raise TypeError("must be a text")

    def __str__(self) -> str:
        """Return the string from which `parse` makes this object."""
        return f"{self.name}:{written(self.options)}" if self.options else self.name

    def having(self, options: Mapping[str, "Value | Named"]) -> "Named":
        """Return a copy with these options, which replace existing options with the same keys."""
        return replace(self, options=tuple({**dict(self.options), **options}.items()))

    def changed(self, change: Callable[[str], str]) -> "Named":
        """Return a copy in which `change` was applied to the name and to every string option."""
        texts = {key: change(value) for key, value in self.options if isinstance(value, str)}
        inner = {
            key: value.changed(change) for key, value in self.options if isinstance(value, Named)
        }
        return replace(self, name=change(self.name)).having({**texts, **inner})


def written(options: Iterable[tuple[str, Value | Named]], between: str = ",") -> str:
    """Return options as a string, key=value,key=value, with `between` as the separator."""

    def text(value: Value | Named) -> str:
        if isinstance(value, Named) and value.options:
            return f"{value.name}:{written(value.options, '&')}"
        if isinstance(value, bool):
            return str(value).lower()
        # A "+" would begin the next phase of a method: 1e16 instead of 1e+16.
        return str(value).replace("e+", "e") if isinstance(value, float) else str(value)

    return between.join(f"{key}={text(value)}" for key, value in options)


def parsed(text: str) -> Value:
    """Return the value of an option from its string: a bool, an int, a float or else the string."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def display_names(texts: Iterable[str]) -> dict[str, str]:
    """Return the name to display for each method, such as "CoPreFL" for "coprefl:gamma=0.5".

    If several texts would have the same name, each name ends with those options that not all of
    these texts have. A text is displayed unchanged if its name is still the name of another text.
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
    unique = list(names.values())
    return {text: name if unique.count(name) == 1 else text for text, name in names.items()}


def as_file_name(text: str, signs: str) -> str:
    """Return a text with hyphens instead of all characters but letters, digits and `signs`.

    Letters are those of all scripts, with their accents. Equal texts have equal names, although
    Unicode has several ways to write an accent.
    """
    text = unicodedata.normalize("NFC", text)
    kept = (c if unicodedata.category(c)[0] in "LMN" or c in signs else "\0" for c in text)
    return re.sub("\0+", "-", "".join(kept))


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
