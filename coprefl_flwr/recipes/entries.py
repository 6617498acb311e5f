"""Entries of a recipe's file, checked one by one; an error has its line."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.options import Value, unknown
from coprefl_flwr.recipes.yaml_file import Located
from coprefl_flwr.report.columns import COLUMNS, is_column
from coprefl_flwr.studies.settings import STARTS, checked

Read = TypeVar("Read")


def known_keys(mapping: Mapping[str, Located], known: Iterable[str], what: str) -> None:
    """Raise a SettingsError with the line of the first key that is not known."""
    for key, entry in mapping.items():
        if key not in known:
            raise entry.error(unknown(what, key, known))


def part_of(tree: Mapping[str, Located], key: str) -> Mapping[str, Located]:
    """Return the mapping under a key; an empty one where there is no such key."""
    return tree[key].mapping(key) if key in tree else {}


def each_once(entry: Located, what: str, read: Callable[[Located], Read]) -> tuple[Read, ...]:
    """Read the entries of a list, or the one value; what stands there again is left out."""
    return tuple(dict.fromkeys(read(one) for one in entry.listed(what)))


def values_of(key: str, entry: Located) -> tuple[Value, ...]:
    """Read a setting's value, or the list of them."""
    found: list[Value] = []
    for value in entry.listed(key):
        if isinstance(value.value, dict | list) or value.value is None:
            raise value.error(f"{key}: must be a plain value")
        try:
            found.append(checked(key, value.value))
        except SettingsError as error:
            raise value.error(str(error)) from error
        if found.count(found[-1]) > 1:
            raise value.error(f"{key} names {found[-1]} twice")
    return tuple(found)


def whole(entry: Located | None, default: int, minimum: int, what: str) -> int:
    """Read a whole number of at least `minimum`; the default where there is no entry."""
    if entry is None:
        return default
    if not isinstance(entry.value, int) or isinstance(entry.value, bool) or entry.value < minimum:
        raise entry.error(f"{what} = {entry.value}: must be a whole number, at least {minimum}")
    return entry.value


def one_of(entry: Located | None, default: str, allowed: Iterable[str], what: str) -> str:
    """Read one of the allowed texts; the default where there is no entry."""
    if entry is None:
        return default
    if entry.value not in allowed:
        raise entry.error(f"{what}: {unknown('value', str(entry.plain()), allowed)}")
    return str(entry.value)


def metric_of(entry: Located, what: str) -> str:
    """Read the name of a metric that a report can show."""
    metric = str(entry.value)
    return metric if is_column(metric) else one_of(entry, "", COLUMNS, what)


def named_method(entry: Located) -> tuple[str, Located, dict[str, Located]]:
    """Return the label, the method and the settings of "NAME" or {LABEL: {method: NAME, ...}}."""
    if isinstance(entry.value, str):
        return entry.value, entry, {}
    given = entry.mapping("a method")
    if len(given) > 1:
        raise entry.error("a method is one LABEL: {settings}")
    label, inner = next(iter(given.items()))
    options = {} if inner.value in ({}, None) else dict(inner.mapping(label))
    return label, options.pop("method", Located(label, entry.place)), options


def study_of(tree: Mapping[str, Located]) -> str:
    """Return the kind of study that a recipe's runs are: its setting `study`."""
    settings = part_of(tree, "settings")
    kinds = values_of("study", settings["study"]) if "study" in settings else (STARTS,)
    if len(kinds) > 1:
        raise settings["study"].error("study: all runs of a recipe are of one kind")
    return str(kinds[0])
