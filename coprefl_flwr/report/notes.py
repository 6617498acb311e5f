"""What a reader must know to read a comparison's table."""

from collections.abc import Sequence

import pandas as pd

from coprefl_flwr.report.columns import column
from coprefl_flwr.report.comparison import Comparison
from coprefl_flwr.report.fairness import METRICS
from coprefl_flwr.report.table import MARK, Note


def notes(comparison: Comparison, numbers: pd.DataFrame, *, marked: bool) -> list[Note]:
    """Return the sentences below a table of these numbers; `marked`: some are marked as best."""
    found = [Note(text) for text in (_values(comparison, marked), *_missing(comparison, numbers))]
    if numbers["p-holm"].notna().any():
        found += [Note(text, "p") for text in _test(comparison)]
    elif len(comparison.units) < 2:
        found.append(Note("One unit: no standard deviation and no test."))
    if comparison.paper:
        found.append(Note(f"paper: {comparison.source or 'as printed'}.", "paper"))
    return found


def _values(comparison: Comparison, marked: bool) -> str:
    units = comparison.units
    what = "Mean ± sample standard deviation over" if len(units) > 1 else "Values of"
    text = f"{what} {count_units(units)}"
    if any(column(metric).title.endswith("%") for metric in comparison.metrics):
        text += "; accuracies in %"
    if "variance" in comparison.metrics:
        text += "; variance over the clients of a task, in %²"
    return text + (f"; {MARK}: best." if marked else ".")


def count_units(units: Sequence[str]) -> str:
    """Return "10 tasks of 2 seeds", "3 seeds", or "4 units" where they are named otherwise."""
    seeds = {unit.partition(",")[0] for unit in units if unit.startswith("seed ")}
    tasks = [unit for unit in units if ", task " in unit]
    if not all(unit.startswith("seed ") for unit in units) or 0 < len(tasks) < len(units):
        return _count(len(units), "unit")
    of = f"{_count(len(tasks), 'task')} of " if tasks else ""
    return of + _count(len(seeds), "seed")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _missing(comparison: Comparison, numbers: pd.DataFrame) -> list[str]:
    """Say which metrics all lack for some units (the pre-training's), and which lines lack more."""
    counts = {(row, metric): n for row, metric, n in numbers[["row", "metric", "n"]].values}
    rows = [row.name for row in comparison.measured]
    most = {metric: max(counts[row, metric] for row in rows) for metric in comparison.metrics}
    titles: dict[int, list[str]] = {}
    for metric, n in most.items():
        if 0 < n < len(comparison.units):
            titles.setdefault(n, []).append(column(metric).title)
    found = [f"{', '.join(names)}: {_count(n, 'value')} a row." for n, names in titles.items()]
    for row in rows:
        # A row that is not pre-trained has none of the pre-training's metrics.
        fewer = [
            metric
            for metric in comparison.metrics
            if counts[row, metric] < most[metric] and (counts[row, metric] or metric in METRICS)
        ]
        if fewer:
            least, of = min(counts[row, m] for m in fewer), max(most[m] for m in fewer)
            found.append(f"{row} has {least} of {of} values, and is not marked best.")
    return found


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
