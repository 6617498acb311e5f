"""Tables: DataFrames of texts, with the best cells marked, and notes on what they mean."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pandas as pd

from coprefl_flwr.report.columns import Heading, column
from coprefl_flwr.report.comparison import Comparison, Measured, Tried
from coprefl_flwr.report.frames import TASK_METRICS
from coprefl_flwr.report.statistics import Summary, holm, paired, seed_means, summarise

HERE, PAPER, P = "here", "paper", "p (Holm)"
PARTS = (HERE, PAPER, P)
"""What a column has: measured numbers, those that a paper prints, or p-values."""

NONE = "–"  # noqa: RUF001  The dash that typesets a missing number.
DAGGER = "†"
"""Follows the name of a row that is never marked as best; a note says why."""
MARK = "{mark}"
"""How a note says that the best numbers are marked: "bold" or "*"."""
LEVEL = 0.05
"""A difference is significant where its corrected p is below this."""


@dataclass(frozen=True, eq=False)
class Table:
    """Cells of text, none of them empty: a dash has its reason in a note.

    The names of `cells.index.names` are the headings of the names of rows; a column of `cells` is a
    heading and one of `PARTS`.
    """

    cells: pd.DataFrame
    best: pd.DataFrame | None = None  # which cells are marked, of the same shape; None: not marked
    notes: Sequence[tuple[str, str]] = ()  # a sentence, and the part of the table that it is about
    title: str = ""
    label: str = ""  # by which a document refers to it
    failed: Sequence[str] = ()  # a line per run that is missing
    reference: int | None = None  # the position of the row that the others are tested against

    @property
    def names(self) -> list[list[str]]:
        """The names of each row."""
        return [list(one) if isinstance(one, tuple) else [one] for one in self.cells.index]

    @property
    def marked(self) -> pd.DataFrame:
        """Which cells are marked, of the shape of `cells`."""
        return self.cells.map(lambda _: False) if self.best is None else self.best

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The heading and the part of each column."""
        return cast("list[tuple[str, str]]", self.cells.columns.tolist())

    def lines(self) -> list[list[tuple[str, str, bool]]]:
        """Return each row's cells: the part of the column, the text, and whether it is marked."""
        parts = [part for _, part in self.columns]
        return [
            list(zip(parts, texts, marks, strict=True))
            for texts, marks in zip(self.cells.to_numpy(), self.marked.to_numpy(), strict=True)
        ]

    def sentences(self, mark: str, part: str = "") -> list[str]:
        """Return the notes, or those on one part; `mark` says how the best numbers are marked."""
        return [text.replace(MARK, mark) for text, of in self.notes if part in ("", of)]


def simple(title: str, name: str, columns: Mapping[str, Sequence[str]], rows: Any) -> Table:
    """Return a table of texts by heading, without marks; `rows` are the rows' names."""
    index = pd.Index(rows, name=name, dtype=object)
    cells = pd.DataFrame({(heading, HERE): list(of) for heading, of in columns.items()}, index)
    return Table(cells, title=title)


# ---- the numbers of a comparison ----------------------------------------------------------------


def numbers(comparison: Comparison) -> pd.DataFrame:
    """Return a row per line and metric: first what was measured, then what only the paper has.

    Its columns are those of `results.csv`. "mean" and "std" are over units. "difference" is the
    line minus the comparison's reference, over the "pairs" of seeds' means (of the tasks that both
    have), "p" that of the paired t-test, "p-holm" the same corrected for the lines of the metric's
    column (Holm). Missing numbers are nan.
    """
    known = {name for row in comparison.measured for name in (row.name, row.label)}
    nothing = dict.fromkeys(comparison.metrics, [math.nan] * len(comparison.units))
    unmeasured = [Measured(label, "", nothing) for label in comparison.paper if label not in known]
    rows = [*comparison.measured, *unmeasured]
    entries = [_entry(comparison, metric, row) for row in rows for metric in comparison.metrics]
    found = pd.DataFrame(entries)
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
    """Return a line minus the reference, and p: of the means per seed of the units both have."""
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


# ---- its tables ---------------------------------------------------------------------------------


def tables(comparison: Comparison) -> list[Table]:
    """Return the table of what is compared, and below it that of costs and counts, if any."""
    tested = [metric for metric in comparison.metrics if column(metric).tested]
    others = [metric for metric in comparison.metrics if metric not in tested]
    if not tested or not others:
        return [table(comparison)]
    costs = table(replace(comparison, metrics=others, failed=()), first=False)
    return [table(replace(comparison, metrics=tested)), costs]


def table(comparison: Comparison, first: bool = True) -> Table:
    """Return all metrics as one table; that which is not the `first` repeats no notes."""
    found, measured = numbers(comparison), comparison.measured
    reference = comparison.tested_against.name
    troubled = {row.name for row in measured if row.troubles}
    unstarted = _unstarted(comparison)
    parts = [
        _column(str(metric), of, troubled, unstarted, reference)
        for metric, of in found.groupby("metric", sort=False)
    ]
    lines = found[["row", "label", "chosen"]].drop_duplicates()
    part = {row.name: f" ({row.unfinished})" for row in measured if row.unfinished}
    labels = [
        f"{label}{part.get(row, '') * (row not in unstarted)}{f' {DAGGER}' * (row in troubled)}"
        for row, label in zip(lines["row"], lines["label"], strict=True)
    ]
    index = pd.Index(labels, name="Method")
    if lines["chosen"].any():
        chosen = [one or NONE for one in lines["chosen"]]
        index = pd.MultiIndex.from_arrays([labels, chosen], names=["Method", "Chosen"])
    cells, best = (
        pd.concat([one[at] for one in parts], axis=1).set_axis(index, axis=0) for at in (0, 1)
    )
    title, rows = comparison.title or comparison.name, list(lines["row"])
    return Table(
        cells,
        best.astype(bool),
        _notes(comparison, found, cells, marked=bool(best.any(axis=None)), first=first),
        title if first else f"{title}: training and costs",
        comparison.name if first else f"{comparison.name}-costs",
        comparison.failed,
        rows.index(reference) if found["p-holm"].notna().any() else None,
    )


def _unstarted(comparison: Comparison) -> dict[str, str]:
    """Return "0 of 3 seeds" of each row none of whose runs is done."""
    wanted = set(comparison.metrics) & set(TASK_METRICS)
    return {
        row.name: row.unfinished
        for row in comparison.measured
        if row.unfinished.startswith("0 of ")
        and all(math.isnan(value) for metric in wanted for value in row.values[metric])
    }


def _column(
    metric: str,
    found: pd.DataFrame,
    troubled: Collection[str],
    unstarted: Mapping[str, str],
    reference: str,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the texts of a metric's parts, from its `numbers`, and which of them are best.

    A row of which no run is done shows how many of its seeds are, instead of a number.
    """
    heading = column(metric)
    values = found[["mean", "std"]]
    whole = heading.decimals == 1 and (values.isna() | (values % 1 == 0)).all(axis=None)
    decimals = 0 if whole else heading.decimals  # Rounds are whole, except where they are averaged.
    stds = found["std"]
    if not heading.tested:  # Costs that are the same for every seed.
        stds = stds.where(stds.round(decimals) > 0)
    here = [
        unstarted[row] if row in unstarted and math.isnan(mean) else shown(mean, std, decimals)
        for row, mean, std in zip(found["row"], found["mean"], stds, strict=True)
    ]
    # Qualities with the papers' two decimals, costs in as many as it takes.
    spec = ".2f" if heading.tested else ",.10g"
    paper = [
        shown(mean, std, spec)
        for mean, std in found[["paper-mean", "paper-std"]].itertuples(index=False)
    ]
    p_values = [
        NONE if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}" for p in found["p-holm"]
    ]
    parts = {HERE: here, PAPER: paper, P: p_values}
    texts = pd.DataFrame(
        {(heading.title, part): of for part, of in parts.items() if part == HERE or {*of} - {NONE}}
    )
    best = pd.DataFrame(False, texts.index, texts.columns)
    best[heading.title, HERE] = found.index.isin(_best(metric, found, troubled, reference))
    return texts, best


def shown(mean: float, std: float = math.nan, spec: int | str = 2) -> str:
    """Return "mean ± std" with this many decimals, or in a format; an infinite mean is "never"."""
    spec = f",.{spec}f" if isinstance(spec, int) else spec
    if math.isnan(mean):
        return NONE
    text = format(mean, spec) if math.isfinite(mean) else "never"
    return text if math.isnan(std) else f"{text} ± {format(std, spec)}"


def _best(metric: str, found: pd.DataFrame, troubled: Collection[str], reference: str) -> list[Any]:
    """Return the index of the best mean if it is decided: its difference is significant.

    Where the reference is the best, all others must differ from it. A line that lacks units that
    others have is never the best, nor one that diverged or did not learn.
    """
    full = found[(found["n"] == found["n"].max()) & ~found["row"].isin(list(troubled))]
    means, better = full["mean"].dropna(), column(metric).better
    if better is None or len(means) < 2:
        return []
    best = means.idxmin() if better == "lower" else means.idxmax()
    decided = found["p-holm"][means.index] < LEVEL
    if found["row"][best] == reference:
        return [best] if decided.drop(best).all() else []
    return [best] if decided[best] else []


def overviews(comparisons: Sequence[Comparison]) -> list[Table]:
    """Return a table of each metric that several comparisons have, with a column a comparison.

    A line is found by its label, whatever was chosen for it, but by its name where a comparison
    has the label more than once.
    """
    found = []
    for metric in dict.fromkeys(m for one in comparisons for m in one.metrics):
        having = [one for one in comparisons if metric in one.metrics]
        if len(having) < 2:
            continue
        parts = [_of_overview(one, metric) for one in having]
        cells, best = (
            pd.concat([one[at] for one in parts], axis=1, sort=False).rename_axis("Method")
            for at in (0, 1)
        )
        cells = cells.fillna(NONE)
        notes = [
            f"Mean ± sample standard deviation, as in the tables below; {MARK}: best and decided."
        ]
        if cells.map(lambda text: DAGGER in text).any(axis=None):
            notes.append(f"{DAGGER} diverged or did not learn: its table says more.")
        if (cells == NONE).any(axis=None):
            notes.append(f"{NONE}: its table has no such row, or says why.")
        title = f"{column(metric).title}, all tables"
        of_here = [(note, HERE) for note in notes]
        found.append(Table(cells, best.eq(True), of_here, title))
    return found


def _of_overview(comparison: Comparison, metric: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a metric's numbers with a dagger behind those of no worth, and which are best."""
    of, rows = table(replace(comparison, metrics=[metric], paper={})), comparison.measured
    names = [comparison.short_name(row) for row in rows]
    head = pd.MultiIndex.from_tuples([(comparison.title or comparison.name, HERE)])
    texts = of.cells.iloc[:, :1].set_axis(head, axis=1).set_axis(names, axis=0)
    daggers = pd.Series([DAGGER * bool(row.troubles) for row in rows], names)
    return texts.add(daggers, axis=0), of.marked.iloc[:, :1].set_axis(head, axis=1).set_axis(
        names, axis=0
    )


def search_table(tried: Sequence[Tried], scored: str) -> Table:
    """Return every value that was searched; `scored` says what the score is of."""
    notes = [f"Mean accuracy {scored}; bold: chosen, the highest of each row."]
    columns = {
        "Accuracy %": [shown(one.score) for one in tried],
        "Chosen": ["chosen" if o.chosen else "dropped" if o.dropped else "no" for o in tried],
    }
    if any(one.trial is not None for one in tried):
        trials = [math.nan if one.trial is None else one.trial for one in tried]
        columns = {"After a quarter %": list(map(shown, trials)), **columns}
        notes.append(
            "After a quarter of the rounds, of the pre-training and of the tasks, the best quarter "
            "of a row's values was run to the end; where it is one value, it was chosen."
        )
    for mark, of in ((NONE, "why"), (DAGGER, "trouble")):
        lines = [f"{o.label} with {o.values}: {getattr(o, of)}" for o in tried if getattr(o, of)]
        notes += [f"{mark} {'; '.join(lines)}."] if lines else []
    labels = [f"{one.label} {DAGGER}" if one.trouble else one.label for one in tried]
    rows = pd.MultiIndex.from_arrays(
        [labels, [one.values for one in tried]], names=["Method", "Values"]
    )
    cells = pd.DataFrame({(heading, HERE): of for heading, of in columns.items()}, rows)
    best = cells.map(lambda text: text == "chosen")
    return Table(cells, best, [(note, HERE) for note in notes], "Search")


# ---- what a reader must know of a table ---------------------------------------------------------


def _notes(
    comparison: Comparison, found: pd.DataFrame, cells: pd.DataFrame, *, marked: bool, first: bool
) -> list[tuple[str, str]]:
    """Return the notes of a table; `marked`: some numbers are marked as best."""
    seeds = list(dict.fromkeys(comparison.seeds))
    once = found["n"].max() <= len(seeds) < len(comparison.units)  # As of a pre-training.
    units = seeds if once else comparison.units
    lines = [_values(comparison, units, marked), *_missing(comparison, found, len(units))]
    notes = [(text, HERE) for text in [*lines, *_absent(comparison, found)]]
    rows = [f"{row.name}: {'; '.join(row.troubles)}" for row in comparison.measured if row.troubles]
    meant = {one.title: one.meaning for one in map(column, comparison.metrics) if one.meaning}
    if meant:
        notes.append(("; ".join(f"{title}: {text}" for title, text in meant.items()) + ".", "cost"))
    if rows and first:
        notes.append((f"{DAGGER} never marked best. {'. '.join(rows)}.", HERE))
    if found["p-holm"].notna().any():
        notes.append((_test(comparison), P))
    elif first and len(set(comparison.seeds)) < 2:
        line = "Only one seed: no standard deviation and no significance test."
        if len(comparison.units) > 1:
            line = "Only one seed, and its tasks share a pre-trained model: no significance test."
        notes.append((line, HERE))
    if comparison.paper:
        notes.append((f"paper: {comparison.source or 'as printed'}.", PAPER))
    if found["chosen"].any() and not found["chosen"].all() and first:
        notes.append((f"{NONE} below Chosen: nothing was searched.", "chosen"))
    without = {
        P: "no p-value (reference row, too few seeds, or identical differences).",
        PAPER: "not printed there.",
    }
    for part, why in without.items():
        if (cells.loc[:, cells.columns.get_level_values(1) == part] == NONE).any(axis=None):
            notes.append((f"{NONE} below {part}: {why}", part))
    return notes


def _absent(comparison: Comparison, found: pd.DataFrame) -> list[str]:
    """Say why rows have no number at all below some headings."""
    measured = {row.name for row in comparison.measured}
    why: dict[str, list[str]] = {}  # reason: rows
    for row, of_row in found[found["n"] == 0].groupby("row", sort=False):
        metrics = list(of_row["metric"])
        if row in _unstarted(comparison):
            continue
        if row not in measured:
            why.setdefault("only the paper has it", []).append(str(row))
        elif set(comparison.metrics) & set(TASK_METRICS) & set(metrics):
            why.setdefault(Heading.missing, []).append(str(row))
        else:
            titles: dict[str, list[str]] = {}
            for heading in map(column, metrics):
                titles.setdefault(heading.missing, []).append(heading.title)
            for reason, of in titles.items():
                why.setdefault(f"{reason} ({', '.join(of)})", []).append(str(row))
    lines = [f"{', '.join(rows)}: {reason}" for reason, rows in why.items()]
    return [f"{NONE} {'; '.join(lines)}."] if lines else []


def _values(comparison: Comparison, units: Sequence[str], marked: bool) -> str:
    """Return what the numbers are, of these units: seeds where all are of pre-trainings."""
    what = "Mean ± sample standard deviation over" if len(units) > 1 else "Values of"
    kind, seeds = _kind(units), len({unit.partition(",")[0] for unit in units})
    text = f"{what} {_count(seeds if kind == 'seed' else len(units), kind)}"
    if kind == "task":
        text += f" of {_count(seeds, 'seed')}"
    if any(one.tested and one.title.endswith("%") for one in map(column, comparison.metrics)):
        text += "; accuracies in %"
    if "variance" in comparison.metrics:
        text += "; variance over the clients of a task, in %²"
    return text + (f"; {MARK}: {_marked(comparison)}." if marked else ".")


def _marked(comparison: Comparison) -> str:
    """Return what a mark says."""
    reference = comparison.tested_against.name
    return f"best, and significantly different from {reference} (p < {LEVEL})"


def _kind(units: Iterable[str]) -> str:
    """Return "task" for tasks of seeds, "seed", or "unit" where they are named otherwise."""
    tasks = {", task " in unit for unit in units}
    if len(tasks) > 1 or not all(unit.startswith("seed ") for unit in units):
        return "unit"
    return "task" if True in tasks else "seed"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _missing(comparison: Comparison, found: pd.DataFrame, units: int) -> list[str]:
    """Say which metrics all lack for some units (the pre-training's), and which lines lack more."""
    here = found[found["row"].isin([row.name for row in comparison.measured])]
    most = here.groupby("metric", sort=False)["n"].max()
    part = most[(most > 0) & (most < units)]
    notes = [
        f"{', '.join(column(str(metric)).title for metric in alike.index)}: "
        f"{_count(n, 'value')} per row."
        for n, alike in part.groupby(part, sort=False)
    ]
    here = here.assign(most=here["metric"].map(most)).query("0 < n < most")
    for row, fewer in here.groupby("row", sort=False):
        least, of = fewer["n"].min(), fewer["most"].max()
        notes.append(f"{row} has {least} of {of} values, and is not marked best.")
    return notes


def _test(comparison: Comparison) -> str:
    kind, reference = _kind(comparison.units), comparison.tested_against.name
    over = f"{kind}s that both rows have"
    if kind == "task":
        over = (
            "seeds, each by its mean over the tasks that both rows have (the tasks of one seed "
            "share a pre-trained model)"
        )
    return (
        f"p: two-sided paired t-test against {reference} over the {over}, "
        "Holm-corrected for the rows of its column."
    )
