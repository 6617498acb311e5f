"""The numbers behind the tables, as CSV."""

import csv
import io
import math
from collections.abc import Iterable, Sequence

from coprefl_flwr.report.rows import Row, Table

_RESULT = (
    "comparison",
    "row",
    "label",
    "chosen",
    "metric",
    "mean",
    "std",
    "n",
    "difference",
    "difference-std",
    "pairs",
    "p",
    "p-holm",
    "paper-mean",
    "paper-std",
    "source",
)


def results_csv(tables: Sequence[Table]) -> bytes:
    """Return a line per row and metric, numbers in full, what is missing left empty.

    "difference" is the row less its comparison's reference over the "pairs" of units that both
    have, "p" that of the paired t-test, "p-holm" the one in the tables.
    """
    lines = [
        [
            table.comparison.name,
            row.name,
            row.label,
            row.chosen,
            metric,
            *_measured(row, metric),
            *_of_paper(table, row, metric),
        ]
        for table in tables
        for row in table.rows
        for metric in table.comparison.metrics
    ]
    return _csv(_RESULT, lines)


def units_csv(tables: Sequence[Table]) -> bytes:
    """Return a line per measured row and unit, with all metrics."""
    metrics = list(dict.fromkeys(m for table in tables for m in table.comparison.metrics))
    lines = [
        [
            table.comparison.name,
            row.name,
            unit,
            *(
                _number(row.values[metric][position]) if metric in table.comparison.metrics else ""
                for metric in metrics
            ),
        ]
        for table in tables
        for row in table.comparison.measured
        for position, unit in enumerate(table.comparison.units)
    ]
    return _csv(["comparison", "row", "unit", *metrics], lines)


def _measured(row: Row, metric: str) -> list[object]:
    entry = row.entries[metric]
    found, less = entry.summary, entry.against.difference
    return [
        _number(found.mean),
        _number(found.std),
        found.n,
        _number(less.mean),
        _number(less.std),
        less.n,
        _number(entry.against.p),
        _number(entry.p),
    ]


def _of_paper(table: Table, row: Row, metric: str) -> list[object]:
    figure = row.entries[metric].paper
    if figure is None:
        return ["", "", ""]
    return [_number(figure[0]), _number(figure[1]), table.comparison.source]


def _number(value: float | None) -> object:
    return "" if value is None or math.isnan(value) else float(value)


def _csv(names: Sequence[str], lines: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(lines)
    return text.getvalue().encode()
