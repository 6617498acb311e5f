"""Tables: DataFrames of texts, with marks on the best cells, and with notes."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.columns import ACCURACY, Better
from coprefl_flwr.report.comparison import Comparison, counted, numbers, of_clients
from coprefl_flwr.report.training_checks import UNTRAINED
from coprefl_flwr.report.variance import LEVEL, variance_parts

HERE, PAPER, P = "here", "paper", "p (Holm)"
PARTS = (HERE, PAPER, P)
"""Kinds of columns: measured numbers, numbers printed in a paper, or p-values."""

NONE = "–"  # noqa: RUF001  The dash that typesets a missing number.
DAGGER = "†"
"""The mark after the name of a row that is never marked as best; a note gives the reason."""
MARK = "{mark}"
"""Placeholder in notes for the mark of the best numbers: "bold" or "*"."""
FEW = 5
"""Number of draws below which a note warns that they decide which row is the best."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table of texts. An empty cell has a dash, and a note gives the reason.

    `cells.index.names` are the headings of the columns with the rows' names. Each column of `cells`
    is labelled by a heading and one of `PARTS`.
    """

    cells: pd.DataFrame
    best: pd.DataFrame  # which cells are marked, of the same shape
    notes: Sequence[str] = ()
    title: str = ""
    label: str = ""  # LaTeX label of the table
    failed: Sequence[str] = ()  # a line per run that is missing
    reference: int | None = None  # index of the reference row
    above: str = ""  # a sentence above the table

    @property
    def names(self) -> list[list[str]]:
        """The names of each row."""
        return [list(name) if isinstance(name, tuple) else [name] for name in self.cells.index]

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The heading and the part of each column."""
        return cast("list[tuple[str, str]]", self.cells.columns.tolist())

    def texts(self, change: Callable[[str], str], mark: str) -> pd.DataFrame:
        """Return the changed texts; the best are formatted by `mark`, such as "**{}**"."""
        cells = self.cells.map(change)
        return cells.mask(self.best, cells.map(mark.format))

    def sentences(self, mark: str) -> list[str]:
        """Return the notes; `mark` is the mark of the best numbers."""
        return [note.replace(MARK, mark) for note in self.notes]


def simple(title: str, name: str, columns: Mapping[str, Sequence[str]], rows: Any) -> Table:
    """Return a table of texts by heading, without marks; `rows` are the rows' names."""
    index = pd.Index(rows, name=name, dtype=object)
    cells = pd.DataFrame({(heading, HERE): list(of) for heading, of in columns.items()}, index)
    return Table(cells, cells.map(lambda _: False), title=title)


# ---- the tables of a comparison -----------------------------------------------------------------


def tables(comparison: Comparison) -> list[Table]:
    """Return the table of tested metrics and, if they exist, those of costs and of variance."""
    tested = [metric for metric in comparison.metrics if comparison.column(metric).tested]
    others = [metric for metric in comparison.metrics if metric not in tested]
    parts = variance_table(comparison)
    if not tested or not others:
        return [table(comparison), *parts]
    costs = table(replace(comparison, metrics=others, failed=()), first=False)
    return [table(replace(comparison, metrics=tested)), costs, *parts]


def table(comparison: Comparison, first: bool = True) -> Table:
    """Return all metrics as one table. Only the `first` table of a comparison has all notes."""
    data = numbers(comparison)
    parts = [
        _column(comparison, str(metric), of_metric)
        for metric, of_metric in data.groupby("metric", sort=False)
    ]
    rows = comparison.rows
    labels = [
        row.label
        + f" ({row.unfinished})" * bool(row.unfinished)
        + f" {DAGGER}" * bool(row.problems)
        for row in rows
    ]
    index = pd.Index(labels, name="Method")
    if any(row.chosen for row in rows):
        chosen = [row.chosen or NONE for row in rows]
        index = pd.MultiIndex.from_arrays([labels, chosen], names=["Method", "Chosen"])
    cells, best = (
        pd.concat([part[at] for part in parts], axis=1).set_axis(index, axis=0) for at in (0, 1)
    )
    title = comparison.title or comparison.name
    return Table(
        cells,
        best,
        _notes(comparison, data, marked=bool(best.any(axis=None)), first=first),
        title if first else f"{title}: training and costs",
        comparison.name if first else f"{comparison.name}-costs",
        comparison.failed,
        rows.index(comparison.tested_against) if data["p-holm"].notna().any() else None,
    )


def _column(
    comparison: Comparison, metric: str, data: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cells of a metric's columns, and whether each cell is marked as best."""
    heading = comparison.column(metric)
    values = data[["mean", "std"]]
    whole = heading.decimals == 1 and (values.isna() | (values % 1 == 0)).all(axis=None)
    # Numbers of rounds are whole, their means not.
    decimals = 0 if whole else heading.places(data["mean"])
    stds = data["std"]
    if not heading.tested:  # Costs that are the same for every seed.
        stds = stds.where(stds.round(decimals) > 0)
    here = [shown(mean, std, decimals) for mean, std in zip(data["mean"], stds, strict=True)]
    counts = data[["n", "median", "never"]].itertuples(index=False)
    for at, (n, median, never) in enumerate(counts):
        if 0 < never < n:
            of_all = f"median {shown(median, spec=decimals)} " if math.isfinite(median) else ""
            here[at] = f"{of_all}(never: {never} of {n})"
    # Tested metrics have two decimals, as in the papers; costs have all their decimals.
    spec = ".2f" if heading.tested else ",.10g"
    paper = [
        shown(mean, std, spec)
        for mean, std in data[["paper-mean", "paper-std"]].itertuples(index=False)
    ]
    p_values = [
        NONE if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}" for p in data["p-holm"]
    ]
    parts = {HERE: here, PAPER: paper, P: p_values}
    filled = [part for part, cells in parts.items() if part == HERE or {*cells} - {NONE}]
    texts = pd.DataFrame({(heading.title, part): parts[part] for part in filled})
    best = pd.DataFrame(False, texts.index, texts.columns)
    best[heading.title, HERE] = data.index.isin(_best(comparison, metric, data))
    return texts, best


def shown(mean: float, std: float = math.nan, spec: int | str = 2) -> str:
    """Return "mean ± std" with this many decimals, or in a format; infinity is "never"."""
    spec = f",.{spec}f" if isinstance(spec, int) else spec
    if math.isnan(mean):
        return NONE
    text = format(mean, spec) if math.isfinite(mean) else "never"
    return text if math.isnan(std) else f"{text} ± {format(std, spec)}"


def _best(comparison: Comparison, metric: str, data: pd.DataFrame) -> list[Any]:
    """Return the index of the best mean if it is significantly better than the reference.

    If the reference is the best, all other rows must differ from it significantly.
    """
    flagged = {row.name for row in comparison.rows if row.problems}
    better = comparison.column(metric).better
    if not (order := ranked(better, data, flagged)):
        return []
    best, *others = order
    decided = data["p-holm"] < LEVEL
    if data["row"][best] == comparison.tested_against.name:
        return [best] if decided[others].all() else []
    # The reference may have a better mean and be no candidate.
    above = (data["difference"][best] > 0) == (better == "higher")
    return [best] if decided[best] and above else []


def ranked(better: Better, data: pd.DataFrame, flagged: Collection[str]) -> list[Any]:
    """Return the indices of the rows that may be the best in a metric, the best first.

    A row may not be the best if it lacks units that other rows have, or if it is one of `flagged`,
    the rows that diverged or did not learn. Returns [] if no row is better than another.
    """
    full = data[(data["n"] == data["n"].max()) & ~data["row"].isin(list(flagged))]
    means = full["mean"].dropna().sort_values(ascending=better == "lower", kind="stable")
    return list(means.index) if better and len(means) > 1 else []


def variance_table(comparison: Comparison) -> list[Table]:
    """Return the table of the parts of the measure's variance; [] for one draw or one row.

    It is about the rows without problems, and without random weights, which differ far more.
    """
    trained = [row for row in comparison.rows if not row.problems and row.name != UNTRAINED]
    shown = replace(comparison, rows=trained if len(trained) > 1 else comparison.rows)
    try:
        parts = variance_parts(of_clients(shown), "value")
    except SettingsError:
        return []
    names = parts.index.str.replace("start", "method")
    if "seed" not in names:  # Each draw has one training seed.
        names = names.str.replace("draw", "draw and seed")
    measure, differ = comparison.measure, parts["share"][names.str.contains("method|rest")]
    stds = parts[["std", "low", "high"]].map(f"{{:.{measure.places(parts['std'])}f}}".format)
    cells = {
        "Share of variance %": parts["share"].map("{:.0f}".format).tolist(),
        f"Standard deviation{', points' * (measure.unit == ' %')}": stds["std"].tolist(),
        "95 % interval": (stds["low"] + " to " + stds["high"]).tolist(),
    }
    most = names[parts.index.get_loc(differ.idxmax())]
    above = (
        f"{differ.sum():.0f} % of the variance of {measure.name} differs by method, mostly {most}."
    )
    notes = [
        '"method x" and "rest" change which method is better; the others are equal for all.',
        f"The last part has all that is left. Rows: {', '.join(row.name for row in shown.rows)}.",
    ]
    found = simple("Where the differences come from", "Part", cells, names)
    return [replace(found, notes=notes, label=f"{comparison.name}-variance", above=above)]


def search_table(comparison: Comparison) -> Table:
    """Return the table of all searched values with their scores."""
    entries, measure = comparison.search_entries, comparison.measure
    places = measure.places(entry.score for entry in entries)
    notes = [
        f"Mean {measure.name} on the tasks that choose a value; bold: the chosen value of each row."
    ]
    columns = {
        measure.title: [shown(entry.score, spec=places) for entry in entries],
        "Chosen": [entry.state for entry in entries],
    }
    if not all(math.isnan(entry.short_score) for entry in entries):
        short = [shown(entry.short_score, spec=places) for entry in entries]
        columns = {f"After a quarter{measure.unit}": short, **columns}
        notes.append(
            "After a quarter of the rounds, of the pre-training and of the tasks, the best quarter "
            "of a row's values was trained for all rounds; a single value left was chosen directly."
        )
    if problems := [f"{e.label} with {e.values}: {e.problem}" for e in entries if e.problem]:
        notes.append(f"{DAGGER} {'; '.join(problems)}.")
    labels = [f"{entry.label} {DAGGER}" if entry.problem else entry.label for entry in entries]
    rows = pd.MultiIndex.from_arrays(
        [labels, [entry.values for entry in entries]], names=["Method", "Values"]
    )
    cells = pd.DataFrame({(heading, HERE): texts for heading, texts in columns.items()}, rows)
    best = cells.map(lambda text: text == "chosen")
    return Table(cells, best, notes, "Search")


# ---- notes below a table ------------------------------------------------------------------------


def _notes(comparison: Comparison, data: pd.DataFrame, *, marked: bool, first: bool) -> list[str]:
    """Return the notes of a table; `marked`: some numbers are marked as best."""
    units = _measured(comparison)
    notes = [_values(comparison, units, marked), *_missing(comparison, data, len(units))]
    rows = [f"{row.name}: {'; '.join(row.problems)}" for row in comparison.rows if row.problems]
    headings = dict.fromkeys(map(comparison.column, comparison.metrics))
    if meant := [f"{heading.title}: {heading.meaning}" for heading in headings if heading.meaning]:
        notes.append("; ".join(meant) + ".")
    if rows and first:
        notes.append(f"{DAGGER}: never marked as best. {'. '.join(rows)}.")
    if (pairs := data["pairs"][data["p-holm"].notna()]).any():
        notes.append(_test(comparison))
        if marked and pairs.max() < FEW:
            few = _count(int(pairs.max()), comparison.noun)
            notes.append(f"Warning: only {few} behind {MARK}; others may have another best row.")
    elif first and len(set(comparison.draws)) < 2:
        alike = comparison.noun == "seed" and len(comparison.units) > 1
        why = ", and its tasks share a pre-trained model" * alike
        notes.append(f"Only one {comparison.noun}{why}: no significance test.")
    if comparison.paper:
        notes.append(f"paper: numbers printed in {comparison.source or 'the paper'}.")
    return notes


def _measured(comparison: Comparison) -> list[str]:
    """Return the units of which a row has a value; the runs of values of the pre-trainings."""
    runs = np.array([unit.partition(", task")[0] for unit in comparison.units])
    known = np.stack([row.values[list(comparison.metrics)].notna() for row in comparison.rows])
    once = all(known[:, runs == run].sum(axis=1).max() < 2 for run in {*runs})
    names = list(runs if once else comparison.units)
    found = [names[at] for at in np.flatnonzero(known.any(axis=(0, 2)))] or names
    return list(dict.fromkeys(found)) if once else found


def _missing(comparison: Comparison, data: pd.DataFrame, units: int) -> list[str]:
    """Return notes on metrics with fewer values than units, and on rows without values."""
    most = data.groupby("metric", sort=False)["n"].max()
    part = most[(most > 0) & (most < units)]
    notes = [
        f"{', '.join(comparison.column(str(metric)).title for metric in alike.index)}: "
        f"{_count(n, 'value')} per row."
        for n, alike in part.groupby(part, sort=False)
    ]
    unfinished = {row.name for row in comparison.rows if row.unfinished}
    why: dict[str, dict[str, None]] = {}  # reason: rows
    for row, metric in data[data["n"] == 0][["row", "metric"]].itertuples(index=False):
        if row not in unfinished:
            why.setdefault(comparison.column(metric).missing, {})[row] = None
    lines = [f"{', '.join(rows)}: {reason}" for reason, rows in why.items()]
    return [*notes, f"{NONE} {'; '.join(lines)}."] if lines else notes


def _values(comparison: Comparison, units: Sequence[str], marked: bool) -> str:
    """Return a note on the values: mean and deviation, number of units, and percent signs."""
    what = "Mean ± sample standard deviation over" if len(units) > 1 else "Values of"
    of_tasks = f"{_count(len(units), 'task')} of " * (", task " in units[0])
    text = f"{what} {of_tasks}{counted(units)}"
    headings = map(comparison.column, comparison.metrics)
    tested = [heading for heading in headings if heading.tested]
    is_accuracy = comparison.measure == ACCURACY
    if is_accuracy and any(heading.title.endswith("%") for heading in tested):
        text += "; accuracies in %"
    if any(metric.endswith("variance") for metric in comparison.metrics):
        text += "; variance over the clients of a task"
        text += ", in %²" * ("variance" in comparison.metrics)
    if "variance-beyond" in comparison.metrics:
        text += "; beyond sampling: an unbiased estimate, which may be below 0"
    if marked:
        reference = comparison.tested_against.name
        text += f"; {MARK}: best, and significantly different from {reference} (p < {LEVEL})"
    return f"{text}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _test(comparison: Comparison) -> str:
    """Return a note on the test: of several units of a seed or draw, only their mean counts."""
    several = len(comparison.units) > len({*comparison.draws})
    seeds = "training seeds and " * (comparison.noun == "draw")
    each = f", each by its mean over its {seeds}tasks" * several
    return (
        f"p: two-sided paired t-test against {comparison.tested_against.name} over the "
        f"{comparison.noun}s that both rows have{each}, Holm-corrected over the rows of the column."
    )
