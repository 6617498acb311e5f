"""The numbers of a table, computed once for all the forms it is written in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from coprefl_flwr.report.cells import Cell, best_of
from coprefl_flwr.report.columns import column
from coprefl_flwr.report.comparison import Comparison
from coprefl_flwr.report.statistics import Paired, Summary, holm, paired, summarise

NONE = "–"  # noqa: RUF001  The dash that typesets a missing number.
NO_SUMMARY = Summary(math.nan, math.nan, 0)


@dataclass(frozen=True)
class Entry:
    """A row's one metric.

    Parameters
    ----------
    cell : Cell
        Mean and standard deviation as shown, and whether it is the best of its column.
    summary : Summary
        Of the values.
    against : Paired
        Its comparison with the reference.
    p : float
        Holm-adjusted over the metric's column; nan where there is no test.
    paper : tuple[float, float | None] | None
        The paper's mean and standard deviation.
    paper_text : str
        The same as shown.
    """

    cell: Cell
    summary: Summary
    against: Paired
    p: float
    paper: tuple[float, float | None] | None
    paper_text: str

    def text(self, part: str) -> str:
        """Return what stands in the column `part` of `Table.parts`."""
        return {"here": self.cell.text, "paper": self.paper_text, "p": self.p_text}[part]

    @property
    def p_text(self) -> str:
        """The p-value as shown."""
        if math.isnan(self.p):
            return ""
        return "< 0.001" if self.p < 0.001 else f"{self.p:.3f}"


@dataclass(frozen=True)
class Row:
    """A line of a table: measured, or of the paper alone."""

    name: str
    label: str
    chosen: str
    entries: Mapping[str, Entry]


@dataclass(frozen=True)
class Table:
    """A comparison's numbers: the rows that were measured, then those that only the paper has."""

    comparison: Comparison
    rows: list[Row]

    def parts(self, metric: str) -> list[str]:
        """Return a metric's columns: "here", then "paper" and "p" where some row has them."""
        entries = [row.entries[metric] for row in self.rows]
        found = {"paper": any(e.paper for e in entries), "p": any(e.p_text for e in entries)}
        return ["here", *(part for part in found if found[part])]

    @property
    def is_split(self) -> bool:
        """Whether some metric has more than one column."""
        return any(len(self.parts(metric)) > 1 for metric in self.comparison.metrics)

    @property
    def is_chosen(self) -> bool:
        """Whether some row has a choice to show."""
        return any(row.chosen for row in self.rows)


def table(comparison: Comparison) -> Table:
    """Compute a comparison's table."""
    columns = {metric: _column(comparison, metric) for metric in comparison.metrics}
    measured = [
        Row(
            row.name,
            row.label,
            row.chosen,
            {metric: entries[row.name] for metric, entries in columns.items()},
        )
        for row in comparison.measured
    ]
    return Table(comparison, measured + _paper_rows(comparison))


def _column(comparison: Comparison, metric: str) -> dict[str, Entry]:
    """Return row name -> entry."""
    reference = comparison.tested_against
    summaries, tests = {}, {}
    for row in comparison.measured:
        values = row.values[metric]
        summaries[row.name] = summarise(values)
        test = paired(values, reference.values[metric])
        tests[row.name] = test if column(metric).tested else replace(test, p=math.nan)
    p = holm({name: test.p for name, test in tests.items()})
    cells = _cells(metric, summaries)
    return {
        row.name: Entry(
            cells[row.name],
            summaries[row.name],
            tests[row.name],
            p[row.name],
            *_of_paper(metric, comparison.paper_of(row)),
        )
        for row in comparison.measured
    }


def _cells(metric: str, summaries: Mapping[str, Summary]) -> dict[str, Cell]:
    """Return row name -> cell; a row that lacks units that others have is not marked best."""
    kind = column(metric)
    most = max(summary.n for summary in summaries.values())
    means = {name: shown(summary.mean, kind.decimals) for name, summary in summaries.items()}
    full = [name for name, summary in summaries.items() if summary.n == most > 0]
    numbers = [round(summaries[name].mean, kind.decimals) for name in full]
    best = best_of(numbers, lower=kind.better == "lower") if kind.better else set()
    # Where all are equal, a mark on every row says nothing.
    marked = {full[index] for index in best} if len(best) < len(full) else set()
    return {
        name: Cell(
            means[name],
            "" if math.isnan(summary.std) else shown(summary.std, kind.decimals),
            name in marked,
        )
        for name, summary in summaries.items()
    }


def shown(value: float, decimals: int) -> str:
    """Return a number as shown: nan is a dash, inf is "never"."""
    if math.isnan(value):
        return NONE
    return f"{value:,.{decimals}f}" if math.isfinite(value) else "never"


def _of_paper(
    metric: str, figures: Mapping[str, tuple[float, float | None]]
) -> tuple[tuple[float, float | None] | None, str]:
    """Return the paper's figure and how it is shown: qualities with the papers' two decimals."""
    figure = figures.get(metric)
    if figure is None:
        return None, ""
    style = ".2f" if column(metric).tested else ",.10g"
    return figure, " ± ".join(format(number, style) for number in figure if number is not None)


def _paper_rows(comparison: Comparison) -> list[Row]:
    """Return the rows of the paper that nothing was measured for."""
    used = {row.name for row in comparison.measured} | {row.label for row in comparison.measured}
    nothing = Paired(NO_SUMMARY, math.nan)
    return [
        Row(
            label,
            label,
            "",
            {
                metric: Entry(
                    Cell(NONE), NO_SUMMARY, nothing, math.nan, *_of_paper(metric, figures)
                )
                for metric in comparison.metrics
            },
        )
        for label, figures in comparison.paper.items()
        if label not in used
    ]
