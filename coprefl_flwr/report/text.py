"""Tables for a terminal."""

import textwrap
from collections.abc import Sequence

from coprefl_flwr.report.cells import TEXT_WIDTH, text_column, text_table
from coprefl_flwr.report.columns import column
from coprefl_flwr.report.comparison import Comparison
from coprefl_flwr.report.note import note
from coprefl_flwr.report.rows import table

_NAMES = 24
"""Characters of a line that the names get at least."""


def text_tables(comparison: Comparison) -> str:
    """Return what was measured, at most 100 characters wide, the best of each column starred.

    Metrics that do not fit beside the others stand in a table below. Neither the paper's figures
    nor p-values are in it.
    """
    found = table(comparison)
    rows = found.rows[: len(comparison.measured)]
    columns = [
        text_column(column(metric).title, [row.entries[metric].cell for row in rows])
        for metric in comparison.metrics
    ]
    lines = [comparison.title, ""] if comparison.title else []
    for part in _fitting(columns):
        lines += [*text_table("Method", [row.name for row in rows], part), ""]
    # Without the sentences on what is not shown here.
    said = [text for text in note(found, "*") if not text.startswith(("p:", "paper:", "The tasks"))]
    return "\n".join(lines + textwrap.wrap(" ".join(said), TEXT_WIDTH))


def _fitting(columns: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    """Return the columns in parts that fit beside the names."""
    parts: list[list[Sequence[str]]] = []
    room = 0
    for lines in columns:
        width = 2 + len(lines[0])
        if not parts or width > room:
            parts.append([])
            room = TEXT_WIDTH - _NAMES
        parts[-1].append(lines)
        room -= width
    return parts
