"""A name with the options that are set for it, and its text: NAME:key=value,key=value."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from coprefl_flwr.errors import SettingsError

Value = bool | int | float | str

_AS_IN_PAPERS = (
    "Centralised CoPreFL Cyclic FedAdam FedAvg FedAvgM FedDyn FedMeta FedPCL FedProto FedProx "
    "FedRep FedYogi MOON NCM Per-FedAvg pFedMe SCAFFOLD Solo"
)
DISPLAYED = {"qffl": "q-FFL"} | {name.lower(): name for name in _AS_IN_PAPERS.split()}
"""Names of built-in methods as papers write them, where that differs from the setting's word."""

_VARIANTS = ("-std", "-sgd", "-hybrid", "-refined")

_OPTIONS = re.compile(r":(?=[A-Za-z][\w-]*=)")


def split_options(text: str) -> tuple[str, str]:
    """Return a place, and the options behind the first `:` that is followed by `key=`."""
    place, *options = _OPTIONS.split(text, maxsplit=1)
    return place, "".join(options)


@dataclass(frozen=True)
class Named:
    """What is named by a word or a place, and the options that are set for it.

    The value of an option may be such a thing itself: a wrapper of Flower's wraps a strategy.
    """

    name: str
    options: tuple[tuple[str, "Value | Named"], ...] = ()

    @classmethod
    def parse(cls, text: str, between: str = ",") -> "Named":
        """Read NAME or NAME:key=value,key=value."""
        name, options = split_options(text)
        pairs = [pair.partition("=") for pair in options.split(between)] if options else []
        for key, equals, _ in pairs:
            if not equals:
                raise SettingsError(f"{text}: '{key}' has no value; write {key}=VALUE")
        return cls(name).having({key: parsed(value) for key, _, value in pairs})

    @classmethod
    def read(cls, value: object) -> "Named":
        """Return an option's value of this type, which may be a text with `&` for the comma.

        Raises a TypeError for any other value.
        """
        if isinstance(value, str):
            return cls.parse(value, "&")
        if isinstance(value, Named):
            return value
        raise TypeError("must be a text")

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.name}:{written(self.options)}" if self.options else self.name

    def having(self, options: Mapping[str, "Value | Named"]) -> "Named":
        """Return the same with these options, which take the place of others of their keys."""
        return replace(self, options=tuple({**dict(self.options), **options}.items()))

    def changed(self, change: Callable[[str], str]) -> "Named":
        """Return the same with its name, and every text among its options, changed."""
        texts = {key: change(value) for key, value in self.options if isinstance(value, str)}
        inner = {
            key: value.changed(change) for key, value in self.options if isinstance(value, Named)
        }
        return replace(self, name=change(self.name)).having({**texts, **inner})

    def texts(self) -> Iterator[str]:
        """Yield its name, and every text among its options."""
        yield self.name
        for _, value in self.options:
            if isinstance(value, Named):
                yield from value.texts()
            elif isinstance(value, str):
                yield value


def written(options: Iterable[tuple[str, Value | Named]], between: str = ",") -> str:
    """Return options as texts have them: key=value,key=value."""

    def text(value: Value | Named) -> str:
        if isinstance(value, Named) and value.options:
            return f"{value.name}:{written(value.options, '&')}"
        return str(value).lower() if isinstance(value, bool) else str(value)

    return between.join(f"{key}={text(value)}" for key, value in options)


def parsed(text: str) -> Value:
    """Return a value that is written within a method: true, a whole number, a number, or a text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def display_names(texts: Iterable[str]) -> dict[str, str]:
    """Return the name of each method for readers: "CoPreFL" for "coprefl:gamma=0.5".

    Options are part of a name only where texts have the same name without them, and only those
    that differ. A text is its own name if another text would have the same name.
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


def _without_options(text: str) -> str:
    """Return the name of a method for readers; of a schedule, the names of its phases."""
    phases = [split_options(phase)[0] for phase in text.split("+")]
    return "+".join(_displayed(phase) for phase in phases)


def _options_of(text: str) -> list[str]:
    """Return the options of all phases, each as key=value."""
    phases = [split_options(phase)[1] for phase in text.split("+")]
    return [option for options in phases if options for option in options.split(",")]


def _displayed(name: str) -> str:
    for variant in _VARIANTS:
        if name.endswith(variant):
            return _displayed(name.removesuffix(variant)) + variant
    return DISPLAYED.get(name, name)
