"""Entries of a recipe's file, checked one by one; an error has its line."""

from collections.abc import Mapping

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.options import Value
from coprefl_flwr.recipes.yaml_file import Located, part_of
from coprefl_flwr.report.columns import COLUMNS, is_column
from coprefl_flwr.studies.settings import STARTS, checked

Choices = Mapping[str, tuple[Value, ...]]
"""Settings, each with its values: one, or several that are compared or searched."""


def choices_of(tree: Mapping[str, Located], key: str) -> Choices:
    """Read {setting: value or list of values} under a key."""
    return {name: values_of(name, entry) for name, entry in part_of(tree, key).items()}


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


def metric_of(entry: Located, what: str) -> str:
    """Read the name of a metric that a report can show."""
    metric = str(entry.value)
    return metric if is_column(metric) else entry.one_of(what, list(COLUMNS))


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
    entry = part_of(tree, "settings").get("study", Located(STARTS, ""))
    kind, *others = values_of("study", entry)
    if others:
        raise entry.error("study: all runs of a recipe are of one kind")
    return str(kind)
