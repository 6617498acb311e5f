"""What the papers printed, as a recipe holds it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coprefl_flwr.options import Value
from coprefl_flwr.recipes.entries import Choices, metric_of, values_of
from coprefl_flwr.recipes.yaml_file import Located, entries_of, part_of
from coprefl_flwr.report.comparison import Printed


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
        where = {key: _compared(key, one, settings) for key, one in part_of(parts, "where").items()}
        rows = parts["rows"].mapping("rows", names, "row")
        title = str(parts["table"].value) if "table" in parts else ""
        printed = {name: _printed(row, columns) for name, row in rows.items()}
        found.append(PaperTable(title, where, printed))
    return tuple(found)


def _compared(key: str, entry: Located, settings: Choices) -> Value:
    """Read the value of a setting that a table is about, which the recipe must have."""
    value, has = values_of(key, entry)[0], settings.get(key, ())
    if value not in has:
        values = ", ".join(map(str, has)) or "not set"
        raise entry.error(f"where: {key} = {value}; in the settings it is {values}")
    return value


def _printed(entry: Located, columns: Sequence[str]) -> Printed:
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
