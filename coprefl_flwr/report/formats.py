"""Tables as plain text, Markdown, LaTeX and HTML."""

import re
import textwrap
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from coprefl_flwr.report.tables import DAGGER, HERE, NONE, PAPER, PARTS, P, Table

TEXT_WIDTH = 80  # characters of a line of plain text, at most
LOG_WIDTH = 68  # the same in the log, where each line begins with its level
_NAMES_WIDTH = 24  # minimum width of the column of names, unless all names are shorter


def terminal_width() -> int:
    """Return the width of plain text in characters: 80, or up to 120 in a wide terminal."""
    console = Console()
    return max(TEXT_WIDTH, min(console.width, 120)) if console.is_terminal else TEXT_WIDTH


def text(table: Table, width: int = TEXT_WIDTH) -> str:
    """Return measured numbers and p-values in at most `width` characters; a star marks the best.

    Columns that do not fit are in another table below. Long names are wrapped.
    """
    cells = table.texts(str, "{}*")
    names = [_joined(name) for name in table.names]
    metrics: list[list[list[str]]] = []  # Each with the column of its p-values, if there is one.
    for heading, part in table.columns:
        column = [heading if part == HERE else part, *cells[heading, part]]
        star = " " * bool(table.best[heading, part].any())
        column = [text if text.endswith("*") else text + star for text in column]
        column = [text.rjust(max(map(len, column))) for text in column]
        if part == HERE:
            metrics.append([column])
        elif part == P:
            metrics[-1].append(column)
    room = width - min(_NAMES_WIDTH, max(map(cell_len, names)))
    groups: list[list[list[str]]] = [[]]
    for columns in metrics:
        needed = sum(2 + cell_len(heading) for heading, *_ in [*groups[-1], *columns])
        if groups[-1] and needed > room:
            groups.append([])
        groups[-1] += columns
    lines = [table.title, ""] if table.title else []
    lines += [*textwrap.wrap(table.above, width), ""] if table.above else []
    for group in groups:
        lines += [*_grid(cells.index.names[0], names, group, width), ""]
    notes = " ".join(table.sentences("*"))
    return "\n".join(lines + textwrap.wrap(notes, width)).rstrip("\n")


def _joined(parts: Sequence[str]) -> str:
    """Return the names of a row as one name, whose mark does not begin a line."""
    mark = f" {DAGGER}"
    name = ":".join(part for part in parts if part not in ("", NONE))
    if cell_len(name) > _NAMES_WIDTH:
        name = name.replace(",", ", ")  # A long name is wrapped at spaces.
    return name.replace(mark, "") + mark * (mark in name)


def _grid(first: object, names: list[str], columns: list[list[str]], width: int) -> list[str]:
    """Return the lines of columns of equal widths, after a column of names, which are wrapped."""
    numbers = ["  " + "  ".join(texts) for texts in zip(*columns, strict=True)]
    room = max(1, width - cell_len(numbers[0]))
    wrapped = [textwrap.wrap(name, room) or [""] for name in (str(first), *names)]
    wide = max(cell_len(part) for parts in wrapped for part in parts)
    lines = []
    for (part, *others), texts in zip(wrapped, numbers, strict=True):
        lines += [(set_cell_size(part, wide) + texts).rstrip(), *others]
    return [lines[0], "─" * (wide + cell_len(numbers[0])), *lines[1:]]


def markdown(*tables: Table) -> str:
    """Return tables in Markdown, one below the other, each with title, notes and failed runs."""
    lines = []
    for table in tables:
        cells = table.texts(escaped, "**{}**")
        heads = [*cells.index.names, *(h if p == HERE else p for h, p in table.columns)]
        names = cells.index.nlevels
        lines += [f"## {escaped(table.title)}", ""] if table.title else []
        lines += [escaped(table.above), ""] if table.above else []
        lines += [_bars(map(escaped, map(str, heads)))]
        lines += ["|" + ":--|" * names + "--:|" * (len(heads) - names)]
        for of_row, texts in zip(table.names, cells.to_numpy(), strict=True):
            lines.append(_bars([*map(escaped, of_row), *texts]))
        if table.notes:
            lines += ["", escaped(" ".join(table.sentences("bold")))]
        if table.failed:
            lines += ["", "Missing runs:", "", *(f"- {escaped(line)}" for line in table.failed)]
        lines.append("")
    return "\n".join(lines)


def _bars(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escaped(text: str) -> str:
    """Return a text with Markdown's special characters escaped, also for tables."""
    return text.translate({ord(character): f"\\{character}" for character in "\\`*_[]<>&|~#"})


_LATEX = str.maketrans({
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    "±": r"$\pm$", "†": r"\textdagger{}", "²": r"\textsuperscript{2}",
    "–": "--", "−": "$-$", "×": r"$\times$",  # noqa: RUF001
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$",  # noqa: RUF001
    "μ": r"$\mu$", "η": r"$\eta$", "ζ": r"$\zeta$",
})  # fmt: skip


def latex(*tables: Table) -> str:
    r"""Return `table` environments for a document with `\usepackage{booktabs}`.

    The best numbers are bold. The paper's numbers and p-values are below the measured ones: side by
    side they would not fit a page.
    """
    return "\n".join(map(_environment, tables))


def _environment(table: Table) -> str:
    cells = table.texts(_for_latex, r"\textbf{{{}}}")
    heads = [heading for heading, part in table.columns if part == HERE]
    names = cells.index.nlevels
    lines = []
    for of_row, texts in zip(table.names, cells.to_dict("records"), strict=True):
        for part in PARTS:
            shown = [texts.get((heading, part), "") for heading in heads]
            if part == HERE:
                lines.append([*map(_for_latex, of_row), *shown])
            elif {*shown} - {"", _for_latex(NONE)}:
                lines.append([rf"\quad {part}", *[""] * (names - 1), *shown])
    titles = [_for_latex(str(head)) for head in [*cells.index.names, *heads]]
    styler = pd.DataFrame(lines, columns=pd.Index(titles)).style.hide(axis="index")
    caption = " ".join([f"{table.title or table.label}.", table.above, *table.sentences("bold")])
    return styler.to_latex(
        hrules=True,
        caption=_for_latex(caption),
        label=f"tab:{table.label}",  # Not escaped: a label is never typeset.
        column_format="l" * names + "r" * len(heads),
        position_float="centering",
    )


def _for_latex(text: str) -> str:
    return text.translate(_LATEX)


def html(table: Table) -> str:
    """Return a table in HTML, without its style.

    Cells have the classes "text" (names of rows), "group" (measured numbers), "aside" (p-values and
    the paper's numbers) and "best".
    """
    cells = table.cells.reset_index()
    if table.reference is not None:
        is_reference = cells.index == table.reference
        cells[cells.columns[0]] += np.where(is_reference, " (reference)", "")
    parts = cells.columns.get_level_values(1)
    of_parts = {"": "text", HERE: "group", PAPER: "aside", P: "aside"}
    classes = pd.DataFrame([[of_parts[part] for part in parts]] * len(cells), columns=cells.columns)
    best = table.best.reset_index(drop=True).reindex(columns=cells.columns, fill_value=False)
    classes = classes.mask(best, classes + " best")
    if {*parts} == {"", HERE}:
        heads = cells.columns.get_level_values(0)
    else:  # The names are headings of the second line, next to the parts of the others.
        names = [("", str(name)) for name in table.cells.index.names]
        heads = pd.MultiIndex.from_tuples([*names, *table.columns])
    cells.columns = classes.columns = heads
    styler = cells.style.hide(axis="index").set_td_classes(classes)
    styler = styler.format(escape="html").format_index(escape="html", axis="columns")
    page = styler.to_html(table_uuid=re.sub(r"\W+", "-", table.title))
    return page.partition("</style>\n")[2]  # The style is empty.
