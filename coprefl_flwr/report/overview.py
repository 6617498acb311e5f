"""One metric of all comparisons: a line per row, a column per comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coprefl_flwr.report.cells import Cell
from coprefl_flwr.report.rows import NONE, Table


@dataclass(frozen=True)
class Overview:
    """A metric in all comparisons.

    Parameters
    ----------
    metric : str
        Which.
    titles : Sequence[str]
        Those of the comparisons.
    rows : Mapping[str, Sequence[Cell]]
        Row -> a cell per comparison; a dash where a comparison has no such row.
    """

    metric: str
    titles: Sequence[str]
    rows: Mapping[str, Sequence[Cell]]


def overviews(tables: Sequence[Table]) -> list[Overview]:
    """Return an overview of each metric that several comparisons have; none for one comparison.

    A row is found by its label, whatever was chosen for it, but by its name where a comparison has
    the label more than once.
    """
    metrics = dict.fromkeys(m for table in tables for m in table.comparison.metrics)
    found = []
    for metric in metrics:
        having = [table for table in tables if metric in table.comparison.metrics]
        if len(having) > 1:
            found.append(_overview(metric, having))
    return found


def _overview(metric: str, tables: Sequence[Table]) -> Overview:
    columns = [_column(table, metric) for table in tables]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = {name: [column.get(name, Cell(NONE)) for column in columns] for name in names}
    return Overview(metric, [t.comparison.title or t.comparison.name for t in tables], rows)


def _column(table: Table, metric: str) -> dict[str, Cell]:
    measured = table.rows[: len(table.comparison.measured)]
    labels = [row.label for row in measured]
    return {
        row.label if labels.count(row.label) == 1 else row.name: row.entries[metric].cell
        for row in measured
    }
