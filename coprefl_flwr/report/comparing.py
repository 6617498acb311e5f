"""A comparison's numbers, its table, and one metric of several comparisons in a table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from coprefl_flwr.report.columns import column
from coprefl_flwr.report.comparison import Comparison, Measured
from coprefl_flwr.report.forms import plain
from coprefl_flwr.report.notes import notes
from coprefl_flwr.report.statistics import Paired, Summary, holm, paired, summarise
from coprefl_flwr.report.table import Line, Number, Part, Table, best_of, mean_and_std


def text_tables(comparison: Comparison) -> str:
    """Return what was measured as text: neither the paper's numbers nor p-values are in it."""
    return plain(table(comparison))


def numbers(comparison: Comparison) -> pd.DataFrame:
    """Return a row per line and metric: first what was measured, then what only the paper has.

    Its columns are those of `results.csv`. "difference" is the line less the comparison's
    reference over the "pairs" of units that both have, "p" that of the paired t-test, "p-holm" the
    same corrected for the lines of the metric's column (Holm). Missing numbers are nan.
    """
    tests = {metric: _tests(comparison, metric) for metric in comparison.metrics}
    rows = [
        _measured(row, metric, *tests[metric][row.name])
        | _printed(comparison, metric, comparison.paper_of(row))
        for row in comparison.measured
        for metric in comparison.metrics
    ]
    known = {name for row in comparison.measured for name in (row.name, row.label)}
    rows += [
        {"row": label, "label": label, "chosen": "", "metric": metric, "n": 0, "pairs": 0}
        | _printed(comparison, metric, paper)
        for label, paper in comparison.paper.items()
        if label not in known
        for metric in comparison.metrics
    ]
    found = pd.DataFrame(rows)
    found.insert(0, "comparison", comparison.name)
    return found


def units(comparison: Comparison) -> pd.DataFrame:
    """Return a row per measured line and unit, with all metrics: those of `units.csv`."""
    parts = []
    for row in comparison.measured:
        key = {"comparison": comparison.name, "row": row.name, "unit": list(comparison.units)}
        values = {metric: row.values[metric] for metric in comparison.metrics}
        parts.append(pd.DataFrame({**key, **values}))
    return pd.concat(parts)


def table(comparison: Comparison) -> Table:
    """Return the comparison's table."""
    found = numbers(comparison)
    best = {
        (row, metric)
        for metric, of_metric in found.groupby("metric", sort=False)
        for row in _best(str(metric), of_metric)
    }
    measured = {row.name for row in comparison.measured}
    names = ["Method", "Chosen"] if found["chosen"].any() else ["Method"]
    lines = [
        Line(
            [of_row["label"].iloc[0], of_row["chosen"].iloc[0]][: len(names)],
            [
                _cell(entry, (row, entry["metric"]) in best, here=row in measured)
                for _, entry in of_row.iterrows()
            ],
            reference=row == comparison.tested_against.name,
        )
        for row, of_row in found.groupby("row", sort=False)
    ]
    return Table(
        names=names,
        titles=[column(metric).title for metric in comparison.metrics],
        lines=lines,
        notes=notes(comparison, found, marked=bool(best)),
        title=comparison.title or comparison.name,
        label=comparison.name,
        failed=comparison.failed,
    )


def overviews(comparisons: Sequence[Comparison], tables: Sequence[Table]) -> list[Table]:
    """Return a table of each metric that several comparisons have, with a column a comparison.

    A line is found by its label, whatever was chosen for it, but by its name where a comparison
    has the label more than once.
    """
    found = []
    for metric in dict.fromkeys(m for one in comparisons for m in one.metrics):
        having = [
            pair for pair in zip(comparisons, tables, strict=True) if metric in pair[0].metrics
        ]
        if len(having) > 1:
            columns = [_by_label(one, of, one.metrics.index(metric)) for one, of in having]
            names = dict.fromkeys(name for cells in columns for name in cells)
            lines = [Line([name], [cells.get(name, {}) for cells in columns]) for name in names]
            title = f"{column(metric).title}, all tables"
            found.append(Table(["Method"], [of.title for _, of in having], lines, title=title))
    return found


def _by_label(comparison: Comparison, of: Table, at: int) -> dict[str, Mapping[Part, Number]]:
    """Return the measured cells of a column, by label, or name where a label is not alone."""
    labels = [row.label for row in comparison.measured]
    return {
        row.label if labels.count(row.label) == 1 else row.name: {"here": line.cells[at]["here"]}
        for row, line in zip(comparison.measured, of.lines, strict=False)
    }


def _tests(comparison: Comparison, metric: str) -> dict[str, tuple[Paired, float]]:
    """Return for each line its test against the reference, and the p-value Holm makes of it."""
    reference = comparison.tested_against.values[metric]
    tests = {row.name: paired(row.values[metric], reference) for row in comparison.measured}
    if not column(metric).tested:
        tests = {name: Paired(test.difference, math.nan) for name, test in tests.items()}
    adjusted = holm({name: test.p for name, test in tests.items()})
    return {name: (test, adjusted[name]) for name, test in tests.items()}


def _measured(row: Measured, metric: str, test: Paired, adjusted: float) -> dict[str, Any]:
    found, less = summarise(row.values[metric]), test.difference
    return {
        "row": row.name, "label": row.label, "chosen": row.chosen, "metric": metric,
        "mean": found.mean, "std": found.std, "n": found.n,
        "difference": less.mean, "difference-std": less.std, "pairs": less.n,
        "p": test.p, "p-holm": adjusted,
    }  # fmt: skip


def _printed(
    comparison: Comparison, metric: str, paper: Mapping[str, tuple[float, float | None]]
) -> dict[str, Any]:
    """Return what the paper has of a line's metric."""
    if metric not in paper:
        return {"paper-mean": math.nan, "paper-std": math.nan, "source": ""}
    mean, std = paper[metric]
    spread = math.nan if std is None else float(std)
    return {"paper-mean": float(mean), "paper-std": spread, "source": comparison.source}


def _best(metric: str, found: pd.DataFrame) -> list[str]:
    """Return the lines that are best; none that lacks units that others have.

    Where all are equal, a mark on every line says nothing.
    """
    full = found[(found["n"] == found["n"].max()) & (found["n"] > 0)]
    shown = [round(mean, column(metric).decimals) for mean in full["mean"].tolist()]
    best = best_of(shown, column(metric).better)
    return list(full["row"].iloc[sorted(best)]) if len(best) < len(full) else []


def _cell(entry: "pd.Series[Any]", best: bool, *, here: bool) -> dict[Part, Number]:
    """Return what is shown of a line's metric, by part."""
    kind = column(entry["metric"])
    cell: dict[Part, Number] = {}
    if here:
        found = Summary(entry["mean"], entry["std"], entry["n"])
        cell["here"] = mean_and_std(found, f",.{kind.decimals}f", best)
    if not math.isnan(entry["paper-mean"]):
        # Qualities with the papers' two decimals, costs in as many as it takes.
        spec = ".2f" if kind.tested else ",.10g"
        cell["paper"] = mean_and_std(Summary(entry["paper-mean"], entry["paper-std"], 1), spec)
    if not math.isnan(entry["p-holm"]):
        p = entry["p-holm"]
        cell["p"] = Number("< 0.001" if p < 0.001 else f"{p:.3f}")
    return cell
