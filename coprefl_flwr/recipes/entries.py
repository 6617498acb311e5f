"""Entries of a recipe's file, checked one by one; an error has its line."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import read_json
from coprefl_flwr.named import Named
from coprefl_flwr.options import Option, Value
from coprefl_flwr.plugins import METRIC, is_without_code
from coprefl_flwr.recipes.yaml_file import Located, entries_of, part_of
from coprefl_flwr.report.columns import COLUMNS, OWN_HEADINGS, Heading, is_column
from coprefl_flwr.report.comparison import Printed
from coprefl_flwr.studies.client_metrics import own_metric
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.settings import STARTS, checked

OWN_COLUMNS: dict[str, tuple[str, str, str]] = {}
"""Name, title and better way of metrics of the user's own, by the places that a recipe names."""

MOST_VALUES = 1000
"""Values of a setting that are compared or searched."""

Choices = Mapping[str, tuple[Value, ...]]
"""Settings, each with its values: one, or several that are compared or searched."""


def choices_of(
    tree: Mapping[str, Located], key: str, own: Mapping[str, Option] = MappingProxyType({})
) -> Choices:
    """Read {setting: value or list of values} under a key."""
    return {name: values_of(name, entry, own) for name, entry in part_of(tree, key).items()}


def values_of(
    key: str, entry: Located, own: Mapping[str, Option] = MappingProxyType({})
) -> tuple[Value, ...]:
    """Read a setting's value, or the list of them; `own` are options of a user's own methods."""
    found: list[Value] = []
    if len(entry.listed(key)) > MOST_VALUES:
        raise entry.error(f"{key}: more than {MOST_VALUES} values")
    for value in map(_structured, entry.listed(key)):
        if isinstance(value.value, dict | list) or value.value is None:
            raise value.error(f"{key}: must be a plain value")
        try:
            read = own[key].read if key in own else functools.partial(checked, key)
            found.append(read(value.value))
        except SettingsError as error:
            raise value.error(str(error)) from error
        if found.count(found[-1]) > 1:
            raise value.error(f"{key} names {found[-1]} twice")
    return tuple(found)


def _structured(entry: Located) -> Located:
    """Return a method within a method, {method: NAME, OPTION: VALUE}, as one value."""
    if not isinstance(entry.value, dict) or "method" not in entry.value:
        return entry
    options = {key: one.plain() for key, one in entry.value.items()}
    return entry.holding(Named(str(options.pop("method"))).having(options))


def metric_of(entry: Located, what: str) -> str:
    """Read the name of a metric that a report can show."""
    metric = str(entry.value)
    if not metric.startswith(METRIC) and plugins.is_place("metric", metric):
        metric = own_column(metric, entry)
    return metric if is_column(metric) else entry.one_of(what, list(COLUMNS))


def own_column(place: str, entry: Located) -> str:
    """Return the column of a metric of the user's own, and remember how it is shown."""
    if not is_without_code():
        try:
            found = own_metric(place)
        except SettingsError as error:
            raise entry.error(str(error)) from error
        OWN_COLUMNS[place] = found.name, found.title, found.better
    if place not in OWN_COLUMNS:
        raise entry.error(f"{place}: `coprefl run` has not stored how this metric is shown")
    name, title, better = OWN_COLUMNS[place]
    OWN_HEADINGS[f"{METRIC}{name}"] = Heading(title, "lower" if better == "lower" else "higher")
    return f"{METRIC}{name}"


def known_columns(file: Path) -> None:
    """Know the user's own metrics that a run stored, if it did, for reports without their code."""
    stored = read_json(file) if file.exists() else {}
    for place, told in stored.items() if isinstance(stored, dict) else ():
        if isinstance(told, list) and len(told) == 3 and all(isinstance(one, str) for one in told):
            OWN_COLUMNS[place] = told[0], told[1], told[2]


def named_method(entry: Located) -> tuple[str, Located, dict[str, Located]]:
    """Return the label, the method and the settings of NAME or {LABEL: {method: NAME, ...}}.

    The method's entry holds a `Method`, however it is written.
    """
    if isinstance(entry.value, str | Method):
        return str(entry.value), _method(entry), {}
    given = entry.mapping("a method")
    if len(given) > 1:
        raise entry.error("a method is one LABEL: {settings}")
    label, inner = next(iter(given.items()))
    options = {} if inner.value in ({}, None) else dict(inner.mapping(label))
    return label, _method(options.pop("method", Located(label, entry.place))), options


def _method(entry: Located) -> Located:
    if isinstance(entry.value, Method):
        return entry
    try:
        return entry.holding(Method.parse(entry.text("method").replace(" ", "")))
    except SettingsError as error:
        raise entry.error(str(error)) from error


def study_of(tree: Mapping[str, Located]) -> str:
    """Return the kind of study that a recipe's runs are: its setting `study`."""
    entry = part_of(tree, "settings").get("study", Located(STARTS, ""))
    kind, *others = values_of("study", entry)
    if others:
        raise entry.error("study: all runs of a recipe are of one kind")
    return str(kind)


# ---- what the paper printed ----------------------------------------------------------------------


@dataclass(frozen=True)
class PaperTable:
    """What the paper printed for one combination of the compared settings, by label."""

    table: str
    where: Mapping[str, Value]
    rows: Mapping[str, Printed]


def with_tables(paper: Located, tables: list[Located]) -> Located:
    """Return what the paper printed with other tables; nothing where none of its own is left."""
    given = paper.mapping("paper")
    if "tables" not in given:
        return paper
    return paper.holding({**given, "tables": given["tables"].holding(tables)} if tables else {})


def without_others(entry: Located, settings: Choices, names: Sequence[str]) -> Located:
    """Return what the paper printed for the tables and rows that a changed recipe still has."""
    found = []
    for table in entries_of(entry.mapping("paper"), "tables"):
        parts = table.mapping("a table")
        where = part_of(parts, "where").items()
        left = {name: row for name, row in part_of(parts, "rows").items() if name in names}
        if left and all(values_of(k, v)[0] in settings.get(k, ()) for k, v in where):
            found.append(table.holding({**parts, "rows": parts["rows"].holding(left)}))
    return with_tables(entry, found)


def paper_tables(entry: Located, settings: Choices, names: Sequence[str]) -> tuple[PaperTable, ...]:
    """Read the printed tables of a recipe with these settings, whose rows have these names."""
    given = entry.mapping("paper", ("columns", "tables"))
    if "columns" not in given or "tables" not in given:
        raise entry.error("paper needs 'columns' and 'tables'")
    columns = [metric_of(one, "column") for one in entries_of(given, "columns")]
    found = []
    for table in entries_of(given, "tables"):
        parts = table.mapping("a table", ("table", "where", "rows"))
        if "rows" not in parts:
            raise table.error("a table of the paper needs 'rows'")
        where = {key: compared(key, one, settings) for key, one in part_of(parts, "where").items()}
        rows = parts["rows"].mapping("rows", names, "row")
        title = str(parts["table"].value) if "table" in parts else ""
        printed = {name: printed_figures(row, columns) for name, row in rows.items()}
        found.append(PaperTable(title, where, printed))
    return tuple(found)


def compared(key: str, entry: Located, settings: Choices) -> Value:
    """Read a value of a setting by which a table is told, which the recipe must have."""
    value, has = values_of(key, entry)[0], settings.get(key, ())
    if value not in has:
        values = ", ".join(map(str, has)) or "not set"
        raise entry.error(f"where: {key} = {value}; in the settings it is {values}")
    return value


def printed_figures(entry: Located, columns: Sequence[str]) -> Printed:
    """Read "83.29±2.61 34.69 -": mean and standard deviation, a mean alone, or nothing."""
    words = str(entry.value).replace(" ± ", "±").split()
    if len(words) != len(columns):
        raise entry.error(f"{len(words)} figures for {len(columns)} columns")
    found: dict[str, tuple[float, float | None]] = {}
    for metric, word in zip(columns, words, strict=True):
        match = re.fullmatch(r"(-?\d+(?:\.\d+)?)(?:±(-?\d+(?:\.\d+)?))?", word)
        if match:
            found[metric] = (float(match[1]), float(match[2]) if match[2] else None)
        elif word != "-":
            raise entry.error(f"'{word}' is no figure; write 83.29±2.61, 83.29 or -")
    return found
