r"""Tables in LaTeX, for a document with `\usepackage{booktabs}`."""

import re
from collections.abc import Sequence

from coprefl_flwr.report.columns import column
from coprefl_flwr.report.note import note
from coprefl_flwr.report.rows import Row, Table

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "²": r"\textsuperscript{2}",
    "–": "--",  # noqa: RUF001
    "−": "$-$",  # noqa: RUF001
    "×": r"$\times$",  # noqa: RUF001
    "α": r"$\alpha$",  # noqa: RUF001
    "β": r"$\beta$",
    "γ": r"$\gamma$",  # noqa: RUF001
    "μ": r"$\mu$",
    "η": r"$\eta$",
    "ζ": r"$\zeta$",
}


def latex(table: Table) -> str:
    """Return a `table` environment with caption and label; the best numbers are bold.

    The paper's figures and p-values stand below the measured ones: side by side they would not fit
    a page.
    """
    comparison = table.comparison
    metrics = comparison.metrics
    titles = ["Method", *["Chosen"][: table.is_chosen], *(column(m).title for m in metrics)]
    columns = "l" * (1 + table.is_chosen) + "r" * len(metrics)
    caption = " ".join([f"{comparison.title or comparison.name}.", *note(table, "bold")])
    lines = [
        r"\begin{table}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{escaped(caption)}}}",
        # Not escaped: a label is never typeset, and the name holds nothing that LaTeX acts on.
        rf"\label{{tab:{comparison.name}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _row([escaped(title) for title in titles]),
        r"\midrule",
        *_body(table),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return a text that LaTeX prints as it is."""
    return re.sub("|".join(map(re.escape, _ESCAPES)), lambda found: _ESCAPES[found[0]], text)


def _body(table: Table) -> list[str]:
    blocks = [_lines(table, row) for row in table.rows]
    gap = [r"\addlinespace"] if any(len(block) > 1 for block in blocks) else []
    return blocks[0] + [line for block in blocks[1:] for line in gap + block]


def _lines(table: Table, row: Row) -> list[str]:
    """Return the measured line, and those of the paper's figures and of p where there are any."""
    entries = [row.entries[metric] for metric in table.comparison.metrics]
    chosen = [escaped(row.chosen)][: table.is_chosen]
    here = [
        rf"\textbf{{{escaped(entry.cell.text)}}}" if entry.cell.best else escaped(entry.cell.text)
        for entry in entries
    ]
    lines = [_row([escaped(row.label), *chosen, *here])]
    for part in ("paper", "p"):
        texts = [escaped(entry.text(part)) for entry in entries]
        if any(texts):
            lines.append(_row([rf"\quad {part}", *[""] * len(chosen), *texts]))
    return lines


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
