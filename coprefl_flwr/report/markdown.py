"""Tables in Markdown."""

import re
from collections.abc import Sequence

from coprefl_flwr.report.columns import column
from coprefl_flwr.report.note import note
from coprefl_flwr.report.overview import Overview
from coprefl_flwr.report.rows import Row, Table


def markdown(table: Table) -> str:
    """Return a comparison's heading, table and note; the best numbers are in bold."""
    titles = ["Method", *["Chosen"][: table.is_chosen]]
    parts = [(m, part) for m in table.comparison.metrics for part in table.parts(m)]
    headings = [column(metric).title if part == "here" else part for metric, part in parts]
    lines = [
        f"## {escaped(table.comparison.title or table.comparison.name)}",
        "",
        *_head(titles, headings),
        *(_line([*_names(table, row), *_cells(row, parts)]) for row in table.rows),
        "",
        escaped(" ".join(note(table, "bold"))),
    ]
    failed = [f"- {escaped(line)}" for line in table.comparison.failed]
    if failed:
        lines += ["", "Failed:", "", *failed]
    return "\n".join(lines) + "\n"


def markdown_overview(overview: Overview) -> str:
    """Return one metric of all comparisons as a table."""
    lines = [
        f"## {column(overview.metric).title}, all tables",
        "",
        *_head(["Method"], [escaped(title) for title in overview.titles]),
    ]
    for name, cells in overview.rows.items():
        texts = [f"**{cell.text}**" if cell.best else cell.text for cell in cells]
        lines.append(_line([escaped(name), *texts]))
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, in a table too."""
    return re.sub(r"([\\`*_\[\]<>&|~#])", r"\\\1", text)


def _head(names: Sequence[str], headings: Sequence[str]) -> list[str]:
    return [_line([*names, *headings]), "|" + ":--|" * len(names) + "--:|" * len(headings)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _names(table: Table, row: Row) -> list[str]:
    return [escaped(row.label), *[escaped(row.chosen)][: table.is_chosen]]


def _cells(row: Row, parts: Sequence[tuple[str, str]]) -> list[str]:
    cells = []
    for metric, part in parts:
        entry = row.entries[metric]
        text = entry.text(part)
        cells.append(f"**{text}**" if part == "here" and entry.cell.best else escaped(text))
    return cells
