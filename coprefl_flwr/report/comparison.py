"""The data of a report: the results and notes of its comparisons."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from coprefl_flwr.errors import check_name
from coprefl_flwr.named import display_names
from coprefl_flwr.report.columns import ACCURACY, ColumnSpec, Headings, column
from coprefl_flwr.report.frames import accuracies
from coprefl_flwr.report.statistics import Summary, holm, paired, summarise

Printed = Mapping[str, tuple[float, float | None]]  # metric -> (mean, std), as a paper has them


@dataclass(frozen=True)
class SearchEntry:
    """One combination of the searched values of a row."""

    label: str  # label of the row
    values: str  # "gamma=0.5,learning-rate=0.1"
    score: float  # mean of the measure; nan if the values were not run to the end
    chosen: bool
    problem: str = ""  # the runs that diverged or did not learn
    short_score: float = math.nan  # after a quarter of the rounds; nan without halving
    dropped: bool = False  # whether halving dropped these values after a quarter of the rounds

    @property
    def state(self) -> str:
        """The text of the table's column "Chosen": "chosen", "dropped" or "no"."""
        return "chosen" if self.chosen else "dropped" if self.dropped else "no"


@dataclass(frozen=True, eq=False)
class ResultRow:
    """A row of a table: the results of one start, or of one choice of its searched settings.

    `values` has a row per unit of the comparison and a column per metric. A missing value is nan: a
    run failed, or the metric is about the pre-training, so that only one task of each seed has the
    value. Infinity means "never" (catches-up). The rows of the other DataFrames are described in
    `report.frames`. Tasks of different seeds have different numbers. Each may be empty.
    """

    label: str  # the name of the row, e.g. "coprefl"
    chosen: str  # the values that a search chose, "gamma=0.5,mu=0.1"; "" if there was no search
    values: pd.DataFrame
    client_rows: pd.DataFrame = field(default_factory=pd.DataFrame)  # a row per client
    rounds: pd.DataFrame = field(default_factory=pd.DataFrame)  # of its pre-training, with "seed"
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)  # rounds of its downstream tasks
    switch: int = 0  # the last round of the first of several phases; 0 for one phase
    landscape: pd.DataFrame | None = None  # loss around its model, by steps in two directions
    similarity: pd.DataFrame | None = None  # how much each backbone (row) is in a client's features
    gamma: float = math.nan  # the weight of the first term of its meta objective, if it has one
    unfinished: str = ""  # number of finished seeds, e.g. "1 of 3 seeds"; "" if all are finished
    problems: Sequence[str] = ()  # failed trainings, e.g. "seed 0: diverged: loss ..."
    kept_by: str = ""  # metric of the round whose model the start is; "" for the last round

    @property
    def name(self) -> str:
        """Label with the chosen values, as in the setting `method`: "coprefl:gamma=0.5"."""
        return f"{self.label}:{self.chosen}" if self.chosen else self.label


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, each with a value of every metric for every unit.

    `paper` has the paper's numbers by the row's label, or by its name if rows share a label.
    `headings` has the titles and directions of the columns of user metrics.
    """

    name: str  # part of file names, unique in the report: letters, digits and any of ".=+-_"
    title: str  # title of the table, e.g. "participants = 20"
    metrics: Sequence[str]  # the columns, see `column`
    units: Sequence[str]  # runs and their tasks, e.g. "draw 3, seed 1, task 0", or "seed 0"
    rows: Sequence[ResultRow]  # with unique names
    reference: str  # name or label of the row that the other rows are tested against
    paper: Mapping[str, Printed] = field(default_factory=dict)
    source: str = ""  # place of these numbers in the paper, "CoPreFL, AAAI text, Table 1(a)"
    failed: Sequence[str] = ()  # a line per missing run
    search_entries: Sequence[SearchEntry] = ()  # one per searched combination of values
    headings: Headings = field(default_factory=dict)
    measure: ColumnSpec = ACCURACY
    margin: float | None = None  # the difference that matters to the user; None: 1 point

    def column(self, metric: str) -> ColumnSpec:
        """Return the column of a metric."""
        return column(metric, self.headings)

    @property
    def tested_against(self) -> ResultRow:
        """The reference row, which the other rows are tested against."""
        exact = [row for row in self.rows if row.name == self.reference]
        return (exact or [row for row in self.rows if row.label == self.reference])[0]

    @property
    def draws(self) -> list[str]:
        """The draw of clients and tasks of each unit: "draw 3"; "seed 3" if `seed` draws all."""
        return [unit.partition(",")[0] for unit in self.units]

    @property
    def noun(self) -> str:
        """The unit of the tests: "draw", or "seed" if one number draws all."""
        return self.units[0].partition(" ")[0]

    def against(self, reference: str) -> "Comparison":
        """Return the comparison with another reference row, by its name or label.

        Raises a SettingsError if there is no such row.
        """
        names = dict.fromkeys(name for row in self.rows for name in (row.label, row.name))
        check_name("row", reference, names, "reference")
        return replace(self, reference=reference)

    def paper_of(self, row: ResultRow) -> Printed:
        """Return the paper's numbers for a row, by metric; those of its label, if it is alone."""
        alone = [other.label for other in self.rows].count(row.label) == 1
        return self.paper.get(row.name) or self.paper.get(row.label if alone else "", {})

    def displayed(self) -> "Comparison":
        """Return the comparison with methods named as in papers: "CoPreFL" for "coprefl".

        The entries of a search keep the names of settings, which programs read from its file.
        """
        names = display_names(row.label for row in self.rows)
        best = {row.label: row.kept_by for row in self.rows if row.kept_by}
        names |= {label: f"{names[label]} (best round by {best[label]})" for label in best}
        shown = [replace(row, label=names[row.label]) for row in self.rows]
        names |= {old.name: new.name for old, new in zip(self.rows, shown, strict=True)}
        paper = {names.get(label, label): printed for label, printed in self.paper.items()}
        reference = names.get(self.reference, self.reference)
        return replace(self, rows=shown, reference=reference, paper=paper)


@dataclass(frozen=True)
class Report:
    """Comparisons of one recipe or study, with the notes and settings that a reader needs."""

    title: str  # title of the comparison
    source: str  # paper and table that are reproduced
    notes: Sequence[str]  # e.g. how a searched value was chosen, or the settings of `small`
    comparisons: Sequence[Comparison]  # at least one, with unique names
    figures: Sequence[str] = ()  # kinds of figures to draw for each, of `figures.FIGURES`
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings that were set
    defaults: Mapping[str, Any] = field(default_factory=dict)  # all other settings
    methods: Mapping[str, str] = field(default_factory=dict)  # row: its used settings
    provenance: Mapping[str, str] = field(default_factory=dict)  # versions, machine, seeds
    command: str = ""  # command that repeats the runs
    command_folder: str = (  # folder in which to run the command; paths of data are relative to it
        "the folder where they ran before (FOLDER: the parent folder of this page's folder)"
    )
    warnings: Sequence[str] = ()  # important notes, e.g. on trainings that did not learn


# ---- units ---------------------------------------------------------------------------------------


def run_name(seed: int, draw: int | str | None = None) -> str:
    """Return the name of a run in a report: "draw 3, seed 1"; "seed 1" if `seed` draws all."""
    return f"seed {seed}" if draw in (None, "") else f"draw {draw}, seed {seed}"


def counted(units: Sequence[str]) -> str:
    """Return the number of units' seeds as text: "10 draws with 2 training seeds each"."""
    seeds, noun = numbers_of(units).groupby("draw")["seed"].nunique(), units[0].partition(" ")[0]
    each = " to ".join(map(str, sorted({seeds.min(), seeds.max()})))
    text = f"{len(seeds)} {noun}{'s' * (len(seeds) != 1)}"
    return text + f" with {each} training seed{'s' * (each != '1')} each" * (noun == "draw")


def numbers_of(units: Sequence[str]) -> pd.DataFrame:
    """Return a row per unit with its draw, seed and task: whole numbers.

    The draw is the seed if `seed` draws all, and the task of a personalised study is 0.
    """
    parts = r"(?:draw (?P<draw>\d+), )?seed (?P<seed>\d+)(?:, task (?P<task>\d+))?"
    found = pd.Series(units, dtype=str).str.extract(parts)
    return found.fillna({"draw": found["seed"], "task": "0"}).astype(int)


def of_clients(comparison: Comparison) -> pd.DataFrame:
    """Return a row per row of the table and client: start, draw, seed, task, client and value.

    The start is the row's name, and the value is the client's measure. Tasks of equal draw and
    number are the same task, whatever their seed is. Missing runs have no rows.
    """
    names = ["start", "draw", "seed", "task", "client", "value"]
    parts = [row.client_rows.assign(start=row.name) for row in comparison.rows]
    rows = pd.concat(parts, ignore_index=True)
    if rows.empty:
        return rows.reindex(columns=names)
    # The tasks of all runs are numbered on, so their number is the position of their unit.
    rows = accuracies(rows).rename(columns={"task": "unit", comparison.measure.metric: "value"})
    return rows.join(numbers_of(comparison.units), on="unit")[names]


# ---- the numbers of a comparison ----------------------------------------------------------------


def numbers(comparison: Comparison) -> pd.DataFrame:
    """Return the content of `results.csv`: a row per row of the table and metric.

    "mean" and "std" are over units. "difference" is the row minus the reference, over the means of
    each draw's seeds and tasks that both rows have. "pairs" is the number of these draws. "p" is
    the p-value of the paired t-test.
    "p-holm" is the p-value, Holm-corrected for all rows of a metric. "median" is over units too,
    and "never" is the number of units whose value is infinite. Missing numbers are nan.
    """
    data = pd.DataFrame(
        [
            _entry(comparison, metric, row)
            for row in comparison.rows
            for metric in comparison.metrics
        ]
    )
    data["p-holm"] = data.groupby("metric")["p"].transform(holm)
    return data


def _entry(comparison: Comparison, metric: str, row: ResultRow) -> dict[str, Any]:
    printed = comparison.paper_of(row)
    known = row.values[metric].dropna()
    mean, std, n = summarise(known)
    less, p = _over_draws(comparison, metric, row)
    paper_mean, paper_std = printed.get(metric, (math.nan, None))
    return {
        "comparison": comparison.name, "row": row.name, "label": row.label, "chosen": row.chosen,
        "metric": metric, "mean": mean, "std": std, "n": n,
        "median": float(known.median()), "never": int(np.isinf(known).sum()),
        "difference": less.mean, "difference-std": less.std, "pairs": less.n,
        "p": p if comparison.column(metric).tested else math.nan, "p-holm": math.nan,
        "paper-mean": float(paper_mean),
        "paper-std": math.nan if paper_std is None else float(paper_std),
        "source": comparison.source if metric in printed else "",
    }  # fmt: skip


def _over_draws(comparison: Comparison, metric: str, row: ResultRow) -> tuple[Summary, float]:
    """Return the difference from the reference, and its p-value, over means of common units.

    The tasks of a run share a pre-training, and the runs of a draw share clients and tasks, so
    their values are not independent. Differences are therefore tested over the means of draws.
    """
    pairs = pd.DataFrame(
        {
            "draw": comparison.draws,
            "row": row.values[metric].to_numpy(),
            "reference": comparison.tested_against.values[metric].to_numpy(),
        }
    )
    common = pairs[np.isfinite(pairs["row"] + pairs["reference"])]
    by_draw = common.groupby("draw", sort=False)
    here, there = ([summarise(of).mean for _, of in by_draw[side]] for side in ("row", "reference"))
    return paired(here, there)


def units(comparison: Comparison) -> pd.DataFrame:
    """Return the content of `units.csv`: a row per measured row and unit, with all metrics.

    If data and training have separate seeds, there are also the columns "draw" and "seed".
    """
    seeds = numbers_of(comparison.units)[["draw", "seed"] if comparison.noun == "draw" else []]
    parts = []
    for row in comparison.rows:
        labels = {"comparison": comparison.name, "row": row.name, "label": row.label}
        values = row.values[list(comparison.metrics)].reset_index(drop=True)
        parts.append(pd.DataFrame({**labels, "unit": list(comparison.units), **seeds, **values}))
    return pd.concat(parts)
