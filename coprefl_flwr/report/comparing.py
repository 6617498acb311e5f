"""A comparison's numbers, its table, and one metric of several comparisons in a table."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from coprefl_flwr.report.columns import column
from coprefl_flwr.report.comparison import Comparison, Measured, Printed
from coprefl_flwr.report.fairness import METRICS
from coprefl_flwr.report.forms import plain
from coprefl_flwr.report.statistics import Summary, holm, paired, summarise
from coprefl_flwr.report.table import (
    MARK,
    Line,
    Note,
    Number,
    Part,
    Table,
    best_of,
    mean_and_std,
)


def text_tables(comparison: Comparison) -> str:
    """Return what was measured as text: neither the paper's numbers nor p-values are in it."""
    return plain(table(comparison))


def numbers(comparison: Comparison) -> pd.DataFrame:
    """Return a row per line and metric: first what was measured, then what only the paper has.

    Its columns are those of `results.csv`. "difference" is the line less the comparison's
    reference over the "pairs" of units that both have, "p" that of the paired t-test, "p-holm" the
    same corrected for the lines of the metric's column (Holm). Missing numbers are nan.
    """
    lines = [(row, comparison.paper_of(row)) for row in comparison.measured]
    known = {name for row in comparison.measured for name in (row.name, row.label)}
    nothing = dict.fromkeys(comparison.metrics, [math.nan] * len(comparison.units))
    lines += [
        (Measured(label, "", nothing), printed)
        for label, printed in comparison.paper.items()
        if label not in known
    ]
    found = pd.DataFrame(
        [_entry(comparison, metric, *line) for line in lines for metric in comparison.metrics]
    )
    found["p-holm"] = found.groupby("metric")["p"].transform(holm)
    return found


def _entry(comparison: Comparison, metric: str, row: Measured, printed: Printed) -> dict[str, Any]:
    mean, std, n = summarise(row.values[metric])
    less, p = paired(row.values[metric], comparison.tested_against.values[metric])
    paper_mean, paper_std = printed.get(metric, (math.nan, None))
    return {
        "comparison": comparison.name, "row": row.name, "label": row.label, "chosen": row.chosen,
        "metric": metric, "mean": mean, "std": std, "n": n,
        "difference": less.mean, "difference-std": less.std, "pairs": less.n,
        "p": p if column(metric).tested else math.nan, "p-holm": math.nan,
        "paper-mean": float(paper_mean),
        "paper-std": math.nan if paper_std is None else float(paper_std),
        "source": comparison.source if metric in printed else "",
    }  # fmt: skip


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
    of_metrics = found.groupby("metric", sort=False)
    best = {at for metric, entries in of_metrics for at in _best(str(metric), entries)}
    measured = {row.name for row in comparison.measured}
    names = ["label", "chosen"] if found["chosen"].any() else ["label"]
    lines = [
        Line(
            entries[names].iloc[0].tolist(),
            [_cell(one, at in best, here=row in measured) for at, one in entries.iterrows()],
            reference=row == comparison.tested_against.name,
        )
        for row, entries in found.groupby("row", sort=False)
    ]
    return Table(
        names=["Method", "Chosen"][: len(names)],
        titles=[column(metric).title for metric in comparison.metrics],
        lines=lines,
        notes=_notes(comparison, found, marked=bool(best)),
        title=comparison.title or comparison.name,
        label=comparison.name,
        failed=comparison.failed,
    )


def _best(metric: str, found: pd.DataFrame) -> list[Any]:
    """Return the index of the best numbers; none of a line that lacks units that others have.

    Where all are equal, a mark on every line says nothing.
    """
    full = found[(found["n"] == found["n"].max()) & (found["n"] > 0)]
    shown = [round(mean, column(metric).decimals) for mean in full["mean"].tolist()]
    best = best_of(shown, column(metric).better)
    return [full.index[at] for at in best] if len(best) < len(full) else []


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


def overviews(comparisons: Sequence[Comparison], tables: Sequence[Table]) -> list[Table]:
    """Return a table of each metric that several comparisons have, with a column a comparison.

    A line is found by its label, whatever was chosen for it, but by its name where a comparison
    has the label more than once.
    """
    found = []
    both = list(zip(comparisons, tables, strict=True))
    for metric in dict.fromkeys(m for one in comparisons for m in one.metrics):
        having = [(one, of) for one, of in both if metric in one.metrics]
        if len(having) < 2:
            continue
        columns: list[dict[str, Mapping[Part, Number]]] = [
            {
                one.short_name(row): {"here": line.cells[one.metrics.index(metric)]["here"]}
                for row, line in zip(one.measured, of.lines, strict=False)
            }
            for one, of in having
        ]
        names = dict.fromkeys(itertools.chain(*columns))
        lines = [Line([name], [cells.get(name, {}) for cells in columns]) for name in names]
        title = f"{column(metric).title}, all tables"
        found.append(Table(["Method"], [of.title for _, of in having], lines, title=title))
    return found


def _notes(comparison: Comparison, found: pd.DataFrame, *, marked: bool) -> list[Note]:
    """Return what a reader of a table must know; `marked`: some numbers are marked as best."""
    notes = [Note(text) for text in (_values(comparison, marked), *_missing(comparison, found))]
    if found["p-holm"].notna().any():
        notes += [Note(text, "p") for text in _test(comparison)]
    elif len(comparison.units) < 2:
        notes.append(Note("One unit: no standard deviation and no test."))
    if comparison.paper:
        notes.append(Note(f"paper: {comparison.source or 'as printed'}.", "paper"))
    return notes


def _values(comparison: Comparison, marked: bool) -> str:
    units = comparison.units
    what = "Mean ± sample standard deviation over" if len(units) > 1 else "Values of"
    text = f"{what} {_count_units(units)}"
    if any(column(metric).title.endswith("%") for metric in comparison.metrics):
        text += "; accuracies in %"
    if "variance" in comparison.metrics:
        text += "; variance over the clients of a task, in %²"
    return text + (f"; {MARK}: best." if marked else ".")


def _count_units(units: Sequence[str]) -> str:
    """Return "10 tasks of 2 seeds", "3 seeds", or "4 units" where they are named otherwise."""
    seeds = {unit.partition(",")[0] for unit in units if unit.startswith("seed ")}
    tasks = [unit for unit in units if ", task " in unit]
    if not all(unit.startswith("seed ") for unit in units) or 0 < len(tasks) < len(units):
        return _count(len(units), "unit")
    of = f"{_count(len(tasks), 'task')} of " if tasks else ""
    return of + _count(len(seeds), "seed")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _missing(comparison: Comparison, found: pd.DataFrame) -> list[str]:
    """Say which metrics all lack for some units (the pre-training's), and which lines lack more."""
    counts = found.pivot(index="row", columns="metric", values="n")
    counts = counts.loc[[row.name for row in comparison.measured], list(comparison.metrics)]
    most = counts.max()
    part = most[(most > 0) & (most < len(comparison.units))]
    notes = [
        f"{', '.join(column(str(metric)).title for metric in alike.index)}: "
        f"{_count(n, 'value')} a row."
        for n, alike in part.groupby(part, sort=False)
    ]
    for row, n in counts.iterrows():
        # A row that is not pre-trained has none of the pre-training's metrics.
        fewer = n[(n < most) & ((n > 0) | n.index.isin(list(METRICS)))]
        if len(fewer):
            of = most[fewer.index].max()
            notes.append(f"{row} has {fewer.min()} of {of} values, and is not marked best.")
    return notes


def _test(comparison: Comparison) -> list[str]:
    tasks = all(", task " in unit for unit in comparison.units)
    seeds = all(unit.startswith("seed ") for unit in comparison.units)
    unit = "tasks" if tasks else "seeds" if seeds else "units"
    sentences = [
        f"p: two-sided paired t-test against {comparison.tested_against.name} over the {unit} that "
        "both rows have, Holm-corrected for the rows of its column."
    ]
    if tasks:
        sentences.append(
            "The tasks of one seed share a pre-trained model, so p speaks of other tasks for these "
            "models, not of other pre-trainings."
        )
    return sentences
