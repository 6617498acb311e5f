"""Tables as plain text, Markdown and LaTeX; `page.html.md` has the HTML form."""

import io
import textwrap
from collections.abc import Iterable

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from coprefl_flwr.report.tables import DAGGER, HERE, NONE, PARTS, P, Table

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
    mark = f" {DAGGER}"
    names = [":".join(part for part in name if part not in ("", NONE)) for name in table.names]
    names = [name.replace(mark, "") + mark * (mark in name) for name in names]
    metrics: list[list[list[str]]] = []  # Each with the column of its p-values, if there is one.
    for at, (heading, part) in enumerate(table.columns):
        if part == HERE:
            metrics.append([_aligned(heading, table, at)])
        elif part == P:
            metrics[-1].append(_aligned(P, table, at))
    room = width - min(_NAMES_WIDTH, max(map(cell_len, names)))
    groups: list[list[list[str]]] = [[]]
    for columns in metrics:
        needed = sum(2 + cell_len(heading) for heading, *_ in [*groups[-1], *columns])
        if groups[-1] and needed > room:
            groups.append([])
        groups[-1] += columns
    lines = [table.title, ""] if table.title else []
    for group in groups:
        lines += [*_grid(table.cells.index.names[0], names, group, width), ""]
    notes = " ".join(table.sentences("*", HERE, P))
    return "\n".join(lines + textwrap.wrap(notes, width)).rstrip("\n")


def _aligned(heading: str, table: Table, at: int) -> list[str]:
    """Return a column's heading and cells, padded to one width, with ± and stars aligned."""
    cells = [line[at] for line in table.lines()]
    deviations = [text.partition(" ± ")[2] for _, text, _ in cells]
    wide = max(map(len, deviations))
    room = " " * (wide + len(" ± ") if wide else 0)
    star = " " * (table.best is not None)
    texts = [heading + star]
    for (_, cell, best), deviation in zip(cells, deviations, strict=True):
        mean = cell.partition(" ± ")[0]
        cell = f"{mean} ± {deviation:>{wide}}" if deviation else f"{mean}{room}"
        texts.append(cell + ("*" if best else star))
    width = max(map(cell_len, texts))
    return [" " * (width - cell_len(text)) + text for text in texts]


def _grid(first: object, names: list[str], columns: list[list[str]], width: int) -> list[str]:
    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column(Text(str(first)), overflow="fold")
    for heading, *_ in columns:
        grid.add_column(Text(heading), no_wrap=True)
    for cells in zip(names, *(column[1:] for column in columns), strict=True):
        grid.add_row(*map(Text, cells))
    console = Console(
        width=width,
        file=io.StringIO(),
        color_system=None,
        force_terminal=False,
        force_jupyter=False,  # In a notebook it would leave an empty output next to the text.
    )
    with console.capture() as shown:
        console.print(grid)
    return [line.rstrip() for line in shown.get().splitlines()]


def markdown(*tables: Table) -> str:
    """Return tables in Markdown, one below the other, each with title, notes and failed runs."""
    lines = []
    for table in tables:
        heads = [*table.cells.index.names, *(h if p == HERE else p for h, p in table.columns)]
        names = len(table.cells.index.names)
        lines += [f"## {escaped(table.title)}", ""] if table.title else []
        lines += [_bars(map(escaped, map(str, heads)))]
        lines += ["|" + ":--|" * names + "--:|" * (len(heads) - names)]
        for row_names, line in zip(table.names, table.lines(), strict=True):
            cells = [f"**{escaped(t)}**" if best else escaped(t) for _, t, best in line]
            lines.append(_bars([*map(escaped, row_names), *cells]))
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
    heads = [heading for heading, part in table.columns if part == HERE]
    names = len(table.cells.index.names)
    lines = []
    for row_names, line in zip(table.names, table.lines(), strict=True):
        by_part: dict[str, dict[int, str]] = {part: {} for part in PARTS}
        metric = -1  # Two metrics may have the same heading.
        for (_, part), (_, cell, best) in zip(table.columns, line, strict=True):
            metric += part == HERE
            shown = cell.translate(_LATEX)
            by_part[part][metric] = rf"\textbf{{{shown}}}" if best else shown
        for part, cells in by_part.items():
            if part == HERE or {*cells.values()} - {NONE.translate(_LATEX)}:
                below = [rf"\quad {part}", *[""] * (names - 1)]
                first = [name.translate(_LATEX) for name in row_names] if part == HERE else below
                lines.append([*first, *(cells.get(number, "") for number in range(len(heads)))])
    titles = [str(head).translate(_LATEX) for head in [*table.cells.index.names, *heads]]
    styler = pd.DataFrame(lines, columns=pd.Index(titles)).style.hide(axis="index")
    caption = f"{table.title or table.label}. {' '.join(table.sentences('bold'))}"
    return styler.to_latex(
        hrules=True,
        caption=caption.translate(_LATEX),
        label=f"tab:{table.label}",  # Not escaped: a label is never typeset.
        column_format="l" * names + "r" * len(heads),
        position_float="centering",
    )
