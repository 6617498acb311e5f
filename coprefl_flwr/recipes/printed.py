"""What the papers printed, as a recipe holds it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coprefl_flwr.options import Value
from coprefl_flwr.recipes.entries import known_keys, metric_of, part_of, values_of
from coprefl_flwr.recipes.yaml_file import Located


@dataclass(frozen=True)
class PaperTable:
    """What the paper printed for one combination of the compared settings.

    Parameters
    ----------
    rows : Mapping[str, Mapping[str, tuple[float, float | None]]]
        Label -> metric -> (mean, standard deviation).
    """

    table: str
    where: Mapping[str, Value]
    rows: Mapping[str, Mapping[str, tuple[float, float | None]]]


def without_others(
    entry: Located, settings: Mapping[str, tuple[Value, ...]], names: Sequence[str]
) -> Located:
    """Return what the paper printed for the tables and rows that a changed recipe still has."""
    given = dict(entry.mapping("paper"))
    if "tables" not in given:
        return entry
    tables = []
    for table in given["tables"].listed("tables"):
        parts = dict(table.mapping("a table"))
        where = part_of(parts, "where").items()
        left = {name: row for name, row in part_of(parts, "rows").items() if name in names}
        if left and all(values_of(k, v)[0] in settings.get(k, ()) for k, v in where):
            parts["rows"] = parts["rows"].holding(left)
            tables.append(table.holding(parts))
    given["tables"] = given["tables"].holding(tables)
    return entry.holding(given if tables else {})


def paper_tables(
    entry: Located, settings: Mapping[str, tuple[Value, ...]], names: Sequence[str]
) -> tuple[PaperTable, ...]:
    """Read the printed tables of a recipe with these settings, whose rows have these names."""
    given = entry.mapping("paper")
    known_keys(given, ("columns", "tables"), "key")
    if "columns" not in given or "tables" not in given:
        raise entry.error("paper needs 'columns' and 'tables'")
    columns = [metric_of(one, "column") for one in given["columns"].listed("columns")]
    found = []
    for table in given["tables"].listed("tables"):
        parts = table.mapping("a table")
        known_keys(parts, ("table", "where", "rows"), "key")
        if "rows" not in parts:
            raise table.error("a table of the paper needs 'rows'")
        where = {key: _compared(key, one, settings) for key, one in part_of(parts, "where").items()}
        known_keys(part_of(parts, "rows"), names, "row")
        rows = {name: _printed(row, columns) for name, row in part_of(parts, "rows").items()}
        title = str(parts["table"].value) if "table" in parts else ""
        found.append(PaperTable(title, where, rows))
    return tuple(found)


def _compared(key: str, entry: Located, settings: Mapping[str, tuple[Value, ...]]) -> Value:
    """Read the value of a setting that a table is about, which the recipe must have."""
    value, has = values_of(key, entry)[0], settings.get(key, ())
    if value not in has:
        values = ", ".join(map(str, has)) or "not set"
        raise entry.error(f"where: {key} = {value}; in the settings it is {values}")
    return value


_NUMBER = r"-?\d+(?:\.\d+)?"


def _printed(entry: Located, columns: Sequence[str]) -> dict[str, tuple[float, float | None]]:
    """Read "83.29±2.61 34.69 -": mean and standard deviation, a mean alone, or nothing."""
    words = str(entry.value).replace(" ± ", "±").split()
    if len(words) != len(columns):
        raise entry.error(f"{len(words)} figures for {len(columns)} columns")
    found: dict[str, tuple[float, float | None]] = {}
    for metric, word in zip(columns, words, strict=True):
        match = re.fullmatch(rf"({_NUMBER})(?:±({_NUMBER}))?", word)
        if match:
            found[metric] = (float(match[1]), float(match[2]) if match[2] else None)
        elif word != "-":
            raise entry.error(f"'{word}' is no figure; write 83.29±2.61, 83.29 or -")
    return found
