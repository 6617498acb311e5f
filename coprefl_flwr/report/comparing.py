"""A comparison's numbers, its table, and one metric of several comparisons in a table."""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from coprefl_flwr.report.columns import Heading, column
from coprefl_flwr.report.comparison import Comparison, Measured
from coprefl_flwr.report.forms import plain
from coprefl_flwr.report.results import TASK_METRICS
from coprefl_flwr.report.statistics import Summary, holm, paired, seed_means, summarise
from coprefl_flwr.report.table import (
    DAGGER,
    MARK,
    NONE,
    Column,
    Note,
    Number,
    Part,
    Table,
    best_of,
)


def text_tables(comparison: Comparison) -> str:
    """Return what was measured as text: neither the paper's numbers nor p-values are in it."""
    return plain(table(replace(comparison, paper={})))


def numbers(comparison: Comparison) -> pd.DataFrame:
    """Return a row per line and metric: first what was measured, then what only the paper has.

    Its columns are those of `results.csv`. "mean" and "std" are over units. "difference" is the
    line less the comparison's reference, over the "pairs" of seeds' means (of the tasks that both
    have), "p" that of the paired t-test, "p-holm" the same corrected for the lines of the metric's
    column (Holm). Missing numbers are nan.
    """
    known = {name for row in comparison.measured for name in (row.name, row.label)}
    nothing = dict.fromkeys(comparison.metrics, [math.nan] * len(comparison.units))
    unmeasured = [Measured(label, "", nothing) for label in comparison.paper if label not in known]
    rows = [*comparison.measured, *unmeasured]
    found = pd.DataFrame(
        [_entry(comparison, metric, row) for row in rows for metric in comparison.metrics]
    )
    found["p-holm"] = found.groupby("metric")["p"].transform(holm)
    return found


def _entry(comparison: Comparison, metric: str, row: Measured) -> dict[str, Any]:
    printed = comparison.paper_of(row)
    mean, std, n = summarise(row.values[metric])
    less, p = _over_seeds(comparison, metric, row)
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


def _over_seeds(comparison: Comparison, metric: str, row: Measured) -> tuple[Summary, float]:
    """Return a line less the reference, and p: of the means per seed of the units both have."""
    reference = comparison.tested_against.values[metric]
    pairs = list(zip(row.values[metric], reference, strict=True))
    both = [at for at, pair in enumerate(pairs) if math.isfinite(pair[0] + pair[1])]
    seeds = [comparison.seeds[at] for at in both]
    here, there = (seed_means([pairs[at][side] for at in both], seeds) for side in (0, 1))
    return paired(list(here.values()), list(there.values()))


def units(comparison: Comparison) -> pd.DataFrame:
    """Return a row per measured line and unit, with all metrics: those of `units.csv`."""
    found = []
    for row in comparison.measured:
        values = {name: row.values[name] for name in comparison.metrics}
        of = {"comparison": comparison.name, "row": row.name, "label": row.label}
        found.append(pd.DataFrame({**of, "unit": list(comparison.units), **values}))
    return pd.concat(found)


def table(comparison: Comparison) -> Table:
    """Return the comparison's table."""
    found = numbers(comparison)
    troubled = {row.name for row in comparison.measured if row.troubles}
    unstarted = _unstarted(comparison)
    columns = [
        _column(str(metric), of, troubled, unstarted)
        for metric, of in found.groupby("metric", sort=False)
    ]
    lines = found[["row", "label", "chosen"]].drop_duplicates()
    names = ["label", "chosen"] if lines["chosen"].any() else ["label"]
    marked = any(number.best for one in columns for number in one.parts["here"])
    part = {
        row.name: f" ({row.unfinished})"
        for row in comparison.measured
        if row.unfinished and row.name not in unstarted
    }
    marks = {row: f"{part.get(row, '')}{f' {DAGGER}' * (row in troubled)}" for row in lines["row"]}
    texts = [
        [f"{label}{marks[row]}", chosen or NONE] for row, label, chosen in lines.to_numpy().tolist()
    ]
    return Table(
        names=["Method", "Chosen"][: len(names)],
        lines=[text[: len(names)] for text in texts],
        columns=columns,
        notes=_notes(comparison, found, columns, marked=marked),
        title=comparison.title or comparison.name,
        label=comparison.name,
        failed=comparison.failed,
        reference=list(lines["row"]).index(comparison.tested_against.name),
    )


def _unstarted(comparison: Comparison) -> dict[str, str]:
    """Return "0 of 3 seeds" of each row that has nothing of a run yet."""
    rows = [row for row in comparison.measured if row.unfinished.startswith("0 of ")]
    wanted = set(comparison.metrics) & set(TASK_METRICS)
    return {
        row.name: row.unfinished
        for row in rows
        if all(math.isnan(value) for metric in wanted for value in row.values[metric])
    }


def _column(
    metric: str, found: pd.DataFrame, troubled: Container[str], unstarted: Mapping[str, str]
) -> Column:
    """Return the column of a metric, from its `numbers`; rows that are troubled are never best.

    A row that is not started says how many of its seeds are there, in the place of a number.
    """
    heading, best, nothing = column(metric), _best(metric, found, troubled), Number(NONE)
    values = found[["mean", "std"]]
    whole = heading.decimals == 1 and (values.isna() | (values % 1 == 0)).all(axis=None)
    decimals = 0 if whole else heading.decimals  # Rounds are whole, but where they are averaged.
    here = [
        Number.of(mean, std, f",.{decimals}f", at in best)
        if row not in unstarted or not math.isnan(mean)
        else Number(unstarted[row])
        for row, (at, mean, std) in zip(found["row"], values.itertuples(), strict=True)
    ]
    # Qualities with the papers' two decimals, costs in as many as it takes.
    spec = ".2f" if heading.tested else ",.10g"
    paper = [
        nothing if math.isnan(mean) else Number.of(mean, std, spec)
        for mean, std in found[["paper-mean", "paper-std"]].itertuples(index=False)
    ]
    p_values = [
        nothing if math.isnan(p) else Number("< 0.001" if p < 0.001 else f"{p:.3f}")
        for p in found["p-holm"]
    ]
    parts: dict[Part, list[Number]] = {"here": here, "paper": paper, "p": p_values}
    seen = {
        part: numbers
        for part, numbers in parts.items()
        if part == "here" or any(n != nothing for n in numbers)
    }
    return Column(heading.title, seen)


def _best(metric: str, found: pd.DataFrame, troubled: Container[str]) -> list[Any]:
    """Return the index of the best numbers; none of a line that lacks units that others have.

    One that diverged or did not learn is left out, however even its clients are served. Where all
    are equal, a mark on every line says nothing.
    """
    good = found["row"].map(lambda row: row not in troubled)
    full = found[(found["n"] == found["n"].max()) & (found["n"] > 0) & good]
    shown = [round(mean, column(metric).decimals) for mean in full["mean"].tolist()]
    best = best_of(shown, column(metric).better)
    return [full.index[at] for at in best] if len(best) < len(full) else []


def overviews(comparisons: Sequence[Comparison], tables: Sequence[Table]) -> list[Table]:
    """Return a table of each metric that several comparisons have, with a column a comparison.

    A line is found by its label, whatever was chosen for it, but by its name where a comparison
    has the label more than once.
    """
    found = []
    for metric in dict.fromkeys(m for one in comparisons for m in one.metrics):
        cells = []  # Per comparison: its title, and the number of each line.
        for one, of in zip(comparisons, tables, strict=True):
            if metric in one.metrics:
                here = of.columns[one.metrics.index(metric)].parts["here"]
                marks = [DAGGER if row.troubles else "" for row in one.measured]
                shown = [replace(n, mark=m) for n, m in zip(here, marks, strict=False)]
                lines = zip(map(one.short_name, one.measured), shown, strict=False)
                cells.append((of.title, dict(lines)))
        names = list(dict.fromkeys(name for _, numbers in cells for name in numbers))
        columns = [
            Column(title, {"here": [numbers.get(name, Number(NONE)) for name in names]})
            for title, numbers in cells
        ]
        title = f"{column(metric).title}, all tables"
        if len(cells) > 1:
            rows = [[name] for name in names]
            found.append(Table(["Method"], rows, columns, _of_overview(columns), title))
    return found


def _of_overview(columns: Sequence[Column]) -> list[Note]:
    numbers = [number for one in columns for number in one.parts["here"]]
    notes = [Note(f"Mean ± sample standard deviation, as in the tables below; {MARK}: best.")]
    if any(number.mark for number in numbers):
        notes.append(Note(f"{DAGGER} diverged or did not learn: its table says more."))
    if any(number.mean == NONE for number in numbers):
        notes.append(Note(f"{NONE}: its table has no such row, or says why."))
    return notes


def _notes(
    comparison: Comparison, found: pd.DataFrame, columns: Sequence[Column], *, marked: bool
) -> list[Note]:
    """Return what a reader of a table must know; `marked`: some numbers are marked as best."""
    told = (_values(comparison, marked), *_missing(comparison, found), *_absent(comparison, found))
    notes = [Note(text) for text in (*told, *_troubled(comparison))]
    if found["p-holm"].notna().any():
        notes.append(Note(_test(comparison), "p"))
    elif len(comparison.units) < 2:
        notes.append(Note("One unit: no standard deviation and no test."))
    elif len(set(comparison.seeds)) < 2:
        notes.append(Note("One seed, and its tasks share a pre-trained model: no test."))
    if comparison.paper:
        notes.append(Note(f"paper: {comparison.source or 'as printed'}.", "paper"))
    if found["chosen"].any() and not found["chosen"].all():
        notes.append(Note(f"{NONE} below Chosen: nothing was searched."))
    for part, why in _WITHOUT.items():
        found_of = [one.parts.get(part, []) for one in columns]
        if any(number.text == NONE for numbers in found_of for number in numbers):
            notes.append(Note(f"{NONE} {why}", part))
    return notes


_WITHOUT: dict[Part, str] = {
    "p": "below p: the row that the others are tested against, or fewer than two seeds, or the "
    "same difference in all.",
    "paper": "below paper: not printed there.",
}
"""Why a cell of a part has no number."""


def _troubled(comparison: Comparison) -> list[str]:
    """Say which rows diverged or did not learn, one of each kind a seed."""
    rows = [f"{row.name}: {'; '.join(row.troubles)}" for row in comparison.measured if row.troubles]
    return [f"{DAGGER} never marked best. {'. '.join(rows)}."] if rows else []


def _absent(comparison: Comparison, found: pd.DataFrame) -> list[str]:
    """Say why rows have no number at all below some headings."""
    measured = {row.name for row in comparison.measured}
    why: dict[str, list[str]] = {}  # reason: rows
    none = found[found["n"] == 0]
    for row, of_row in none.groupby("row", sort=False):
        metrics = list(of_row["metric"])
        if row in _unstarted(comparison):
            continue
        if row not in measured:
            why.setdefault("only the paper has it", []).append(str(row))
        elif set(comparison.metrics) & set(TASK_METRICS) & set(metrics):
            why.setdefault(Heading.missing, []).append(str(row))
        else:
            for metric in metrics:
                heading = column(metric)
                reason = f"{heading.missing} ({heading.title})"
                why.setdefault(reason, []).append(str(row))
    told = [f"{', '.join(rows)}: {reason}" for reason, rows in why.items()]
    return [f"{NONE} {'; '.join(told)}."] if told else []


def _values(comparison: Comparison, marked: bool) -> str:
    units = comparison.units
    what = "Mean ± sample standard deviation over" if len(units) > 1 else "Values of"
    kind, seeds = _kind(units), len({unit.partition(",")[0] for unit in units})
    text = f"{what} {_count(seeds if kind == 'seed' else len(units), kind)}"
    if kind == "task":
        text += f" of {_count(seeds, 'seed')}"
    if any(column(metric).title.endswith("%") for metric in comparison.metrics):
        text += "; accuracies in %"
    if "variance" in comparison.metrics:
        text += "; variance over the clients of a task, in %²"
    return text + (f"; {MARK}: best." if marked else ".")


def _kind(units: Sequence[str]) -> str:
    """Return "task" for tasks of seeds, "seed", or "unit" where they are named otherwise."""
    tasks = {", task " in unit for unit in units}
    if len(tasks) > 1 or not all(unit.startswith("seed ") for unit in units):
        return "unit"
    return "task" if True in tasks else "seed"


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
        fewer = n[(n < most) & (n > 0)]
        if len(fewer):
            of = most[fewer.index].max()
            notes.append(f"{row} has {fewer.min()} of {of} values, and is not marked best.")
    return notes


def _test(comparison: Comparison) -> str:
    kind, reference = _kind(comparison.units), comparison.tested_against.name
    over = {
        "task": "seeds, each by its mean over the tasks that both rows have (the tasks of one seed "
        "share a pre-trained model)",
    }.get(kind, f"{kind}s that both rows have")
    return (
        f"p: two-sided paired t-test against {reference} over the {over}, "
        "Holm-corrected for the rows of its column."
    )
