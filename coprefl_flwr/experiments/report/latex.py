r"""Tables in LaTeX, for a document with `\usepackage{booktabs}`."""

import re
from collections.abc import Sequence

from coprefl_flwr.experiments.report.columns import COLUMNS
from coprefl_flwr.experiments.report.note import note
from coprefl_flwr.experiments.report.rows import Row, Table

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
    """Return a `table` environment with caption and label; the best numbers are bold."""
    comparison = table.comparison
    names = 1 + table.is_chosen
    columns = "l" * names + "".join("r" * len(table.parts(m)) for m in comparison.metrics)
    caption = " ".join([f"{comparison.title or comparison.name}.", *note(table, "bold")])
    lines = [
        r"\begin{table}",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{escaped(caption)}}}",
        # Not escaped: a label is never typeset, and the name holds nothing that LaTeX acts on.
        rf"\label{{tab:{comparison.name}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *_head(table, names),
        r"\midrule",
        *(_line(table, row) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return a text that LaTeX prints as it is."""
    return re.sub("|".join(map(re.escape, _ESCAPES)), lambda found: _ESCAPES[found[0]], text)


def _head(table: Table, names: int) -> list[str]:
    """Return the metrics, and below them "here", "paper" and "p" where there is more than one."""
    metrics = table.comparison.metrics
    parts = [table.parts(metric) for metric in metrics]
    titles = ["Method", *["Chosen"][: table.is_chosen]]
    if not table.is_split:
        return [_row([*titles, *(escaped(COLUMNS[metric].title) for metric in metrics)])]
    spans, rules, first = [], [], names + 1
    for metric, part in zip(metrics, parts, strict=True):
        spans.append(rf"\multicolumn{{{len(part)}}}{{c}}{{{escaped(COLUMNS[metric].title)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + len(part) - 1}}}")
        first += len(part)
    below = [name for part in parts for name in part]
    return [_row([*[""] * names, *spans]), " ".join(rules), _row([*titles, *below])]


def _line(table: Table, row: Row) -> str:
    cells = [escaped(row.label), *[escaped(row.chosen)][: table.is_chosen]]
    for metric in table.comparison.metrics:
        entry = row.entries[metric]
        for part in table.parts(metric):
            text = escaped(entry.text(part))
            cells.append(rf"\textbf{{{text}}}" if part == "here" and entry.cell.best else text)
    return _row(cells)


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
