"""The forms a table is written in: plain text, Markdown, LaTeX. That of a page is in `writing`."""

import textwrap
from collections.abc import Iterable, Sequence

from coprefl_flwr.report.table import DAGGER, NONE, PARTS, Number, Table

TEXT_WIDTH = 100  # most characters of a line of plain text
_NAMES_WIDTH = 24  # characters that the names get at least, if any is as long


def plain(table: Table, width: int = TEXT_WIDTH) -> str:
    """Return a table as text at most so many characters wide, the best numbers starred.

    It has what was measured here alone. Columns that do not fit beside the others stand in a
    further table below, and long names are wrapped.
    """
    names = list(map(_name, table.lines))
    room = width - min(_NAMES_WIDTH, max(map(len, names)))
    groups: list[list[list[str]]] = [[]]
    for one in table.columns:
        column = _column(one.title, one.parts["here"], table.marks)
        if groups[-1] and sum(2 + len(title) for title, *_ in [*groups[-1], column]) > room:
            groups.append([])
        groups[-1].append(column)
    text = [table.title, ""] if table.title else []
    for columns in groups:
        text += [*_beside(table.names[0], names, columns, width), ""]
    return "\n".join(text + textwrap.wrap(table.note("*", ["here"]), width)).rstrip("\n")


def _name(line: Sequence[str]) -> str:
    """Return a line's names in one, as in a setting, with its mark behind them."""
    name = ":".join(text for text in line if text not in ("", NONE))
    mark = f" {DAGGER}"
    return name.replace(mark, "") + mark if mark in name else name


def _column(title: str, numbers: Sequence[Number], marks: bool) -> list[str]:
    """Return the title and a text per number, all of one width, with the signs ± aligned."""
    mean_width = max(len(one.mean) for one in numbers)
    std_width = max(len(one.std) for one in numbers)
    gap = std_width + len(" ± ") if std_width else 0
    texts = [title + " " * marks]
    for one in numbers:
        deviation = f" ± {one.std:>{std_width}}" if one.std else " " * gap
        texts.append(f"{one.mean:>{mean_width}}{deviation}{'*' if one.best else ' ' * marks}")
    width = max(map(len, texts))
    return [text.rjust(width) for text in texts]


def _beside(
    first: str, names: Sequence[str], columns: Sequence[Sequence[str]], most: int
) -> list[str]:
    """Return the lines of a table: names in its first column, below the heading `first`."""
    room = most - sum(2 + len(column[0]) for column in columns)
    wrapped = [textwrap.wrap(name, room) or [""] for name in names]
    width = max(len(first), *(len(line) for lines in wrapped for line in lines))
    header = "  ".join([first.ljust(width), *(column[0] for column in columns)])
    lines = [header.rstrip(), "-" * len(header)]
    for index, (name, *others) in enumerate(wrapped, 1):
        cells = [name.ljust(width), *(column[index] for column in columns)]
        lines += ["  ".join(cells).rstrip(), *others]
    return lines


def markdown(*tables: Table) -> str:
    """Return tables in Markdown, one below the other, each with title, notes and what failed."""
    lines = []
    for table in tables:
        parts = [(one.title, *item) for one in table.columns for item in one.parts.items()]
        titles = [title if part == "here" else part for title, part, _ in parts]
        lines += [f"## {escaped(table.title)}", ""] if table.title else []
        lines += [bars(map(escaped, [*table.names, *titles]))]
        lines += ["|" + ":--|" * len(table.names) + "--:|" * len(titles)]
        for at, names in enumerate(table.lines):
            found = [numbers[at] for _, _, numbers in parts]
            cells = [f"**{escaped(n.text)}**" if n.best else escaped(n.text) for n in found]
            lines.append(bars([*map(escaped, names), *cells]))
        if table.notes:
            lines += ["", escaped(table.note("bold"))]
        if table.failed:
            lines += ["", "Failed:", "", *(f"- {escaped(line)}" for line in table.failed)]
        lines.append("")
    return "\n".join(lines)


def bars(cells: Iterable[str]) -> str:
    """Return a line of a table in Markdown."""
    return "| " + " | ".join(cells) + " |"


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, in a table too."""
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


def latex(table: Table) -> str:
    r"""Return a `table` environment for a document with `\usepackage{booktabs}`.

    The best numbers are bold. The paper's numbers and p-values stand below the measured ones: side
    by side they would not fit a page.
    """
    columns = "l" * len(table.names) + "r" * len(table.columns)
    caption = f"{table.title or table.label}. {table.note('bold')}"
    blocks = [_block(table, at) for at in range(len(table.lines))]
    gap = [r"\addlinespace"] if any(len(block) > 1 for block in blocks) else []
    body = [text for block in blocks for text in [*gap, *block]][len(gap) :]
    head = [*table.names, *(one.title for one in table.columns)]
    lines = [
        r"\begin{table}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{_typeset(caption)}}}",
        # Not escaped: a label is never typeset, and the name holds nothing that LaTeX acts on.
        rf"\label{{tab:{table.label}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule", _ampersands(map(_typeset, head)), r"\midrule", *body, r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _block(table: Table, at: int) -> list[str]:
    """Return the measured line, and those of the paper's numbers and of p where there are any."""
    block = []
    for part in PARTS:
        found = [one.parts[part][at] if part in one.parts else Number("") for one in table.columns]
        texts = [rf"\textbf{{{_typeset(n.text)}}}" if n.best else _typeset(n.text) for n in found]
        below = [rf"\quad {part}", *[""] * (len(table.names) - 1)]
        if part == "here" or set(texts) - {"", _typeset(NONE)}:
            names = map(_typeset, table.lines[at]) if part == "here" else below
            block.append(_ampersands([*names, *texts]))
    return block


def _ampersands(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _typeset(text: str) -> str:
    """Return a text that LaTeX prints as it is."""
    return text.translate(_LATEX)
