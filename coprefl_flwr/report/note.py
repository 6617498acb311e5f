"""What a reader must know to read a table."""

from collections.abc import Sequence

from coprefl_flwr.report.columns import column
from coprefl_flwr.report.fairness import METRICS
from coprefl_flwr.report.rows import Table


def note(table: Table, mark: str) -> list[str]:
    """Return the sentences below a table whose best numbers are marked by `mark`."""
    return [
        _numbers(table, mark),
        *_fewer(table),
        *_incomplete(table),
        *_test(table),
        *_paper(table),
    ]


def _numbers(table: Table, mark: str) -> str:
    units = table.comparison.units
    what = "Mean ± sample standard deviation over" if len(units) > 1 else "Values of"
    text = f"{what} {count_units(units)}"
    if any(column(metric).title.endswith("%") for metric in table.comparison.metrics):
        text += "; accuracies in %"
    if "variance" in table.comparison.metrics:
        text += "; variance over the clients of a task, in %²"
    if any(entry.cell.best for row in table.rows for entry in row.entries.values()):
        text += f"; {mark}: best"
    return text + "."


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


def _fewer(table: Table) -> list[str]:
    """Say which metrics have a value for some of the units only (the pre-training's: a seed)."""
    counts: dict[int, list[str]] = {}
    for metric in table.comparison.metrics:
        most = max(row.entries[metric].summary.n for row in table.rows)
        if 0 < most < len(table.comparison.units):
            counts.setdefault(most, []).append(column(metric).title)
    return [f"{', '.join(titles)}: {_count(n, 'value')} a row." for n, titles in counts.items()]


def _incomplete(table: Table) -> list[str]:
    """Say which rows lack units that others have."""
    sentences = []
    measured = table.rows[: len(table.comparison.measured)]
    for row in measured:
        least, of = len(table.comparison.units), 0
        for metric, entry in row.entries.items():
            most = max(other.entries[metric].summary.n for other in measured)
            # A row that is not pre-trained has none of the pre-training's metrics.
            if entry.summary.n < most and (entry.summary.n or metric in METRICS):
                least, of = min(least, entry.summary.n), max(of, most)
        if of:
            sentences.append(f"{row.name} has {least} of {of} values, and is not marked best.")
    return sentences


def _test(table: Table) -> list[str]:
    comparison = table.comparison
    against = comparison.tested_against.name
    if not any("p" in table.parts(metric) for metric in comparison.metrics):
        few = len(comparison.units) < 2
        return ["One unit: no standard deviation and no test."] if few else []
    tasks = all(", task " in unit for unit in comparison.units)
    seeds = all(unit.startswith("seed ") for unit in comparison.units)
    unit = "tasks" if tasks else "seeds" if seeds else "units"
    sentences = [
        f"p: two-sided paired t-test against {against} over the {unit} that both rows have, "
        "Holm-corrected for the rows of its column."
    ]
    if tasks:
        sentences.append(
            "The tasks of one seed share a pre-trained model, so p speaks of other tasks for these "
            "models, not of other pre-trainings."
        )
    return sentences


def _paper(table: Table) -> list[str]:
    comparison = table.comparison
    if not comparison.paper:
        return []
    return [f"paper: {comparison.source or 'as printed'}."]
