"""What a report is made of: the results and notes of a comparison."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.named import display_names
from coprefl_flwr.report.columns import column
from coprefl_flwr.report.statistics import Summary, holm, paired, seed_means, summarise

Floats = npt.NDArray[np.float64]
Printed = Mapping[str, tuple[float, float | None]]  # metric -> (mean, std), as a paper has them


@dataclass(frozen=True)
class SearchEntry:
    """One combination of the searched values of a row."""

    label: str  # the row's
    values: str  # "gamma=0.5,learning-rate=0.1"
    score: float  # mean accuracy in percent; nan where it was not run to the end
    chosen: bool
    why: str = ""  # why it has no score
    trouble: str = ""  # whether it diverged or did not learn
    short_score: float | None = None  # after a quarter of the rounds; None without halving
    dropped: bool = False  # whether it was not run to the end, as that was not among the best

    @property
    def state(self) -> str:
        """What became of it, as a table says it."""
        return "chosen" if self.chosen else "dropped" if self.dropped else "no"


@dataclass(frozen=True, eq=False)
class ResultRow:
    """A line of a table: what was measured of one start, or of one choice of its settings.

    A value is nan where it is missing (a failed run, or a metric of the pre-training at all except
    one task of its seed) and infinite for never (catches-up). The frames are rows as in `results`,
    of all its tasks, numbered uniquely over seeds; each may be empty.
    """

    label: str  # the line's name, e.g. "coprefl"
    chosen: str  # what a search selected, as "gamma=0.5,mu=0.1"; "" if nothing was searched
    values: Mapping[str, Sequence[float]]  # metric -> a value per unit of the comparison
    client_rows: pd.DataFrame = field(default_factory=pd.DataFrame)  # a row per client
    rounds: pd.DataFrame = field(default_factory=pd.DataFrame)  # of its pre-training, with a seed
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)  # of its downstream tasks' rounds
    switch: int = 0  # the last round of the first of several phases; 0 for one phase
    landscape: pd.DataFrame | None = None  # loss around its model, by steps in two directions
    similarity: pd.DataFrame | None = None  # how much each backbone (row) is in a client's features
    gamma: float = math.nan  # the weight of the first term of its meta objective, if it has one
    noised: tuple[Floats, Floats] | None = None  # an image (C, H, W) without and with noise
    unfinished: str = ""  # how many of its seeds are there, e.g. "1 of 3 seeds"; "": all
    troubles: Sequence[str] = ()  # what diverged or did not learn, e.g. "seed 0: diverged: ..."

    @property
    def name(self) -> str:
        """Label and choice in one, as in the setting `method`: "coprefl:gamma=0.5"."""
        return f"{self.label}:{self.chosen}" if self.chosen else self.label

    @property
    def options(self) -> dict[str, str]:
        """The choice, setting by setting."""
        pairs = (pair.partition("=") for pair in self.chosen.split(",") if pair)
        return {key.strip(): value.strip() for key, _, value in pairs}


@dataclass(frozen=True)
class Comparison:
    """Rows, each with a value of every metric for every unit.

    `paper` is by label, or by name where rows share a label.
    """

    name: str  # part of file names, unique in the report: letters, digits and any of ".=+-_"
    title: str  # what this table is, e.g. "participants = 20"
    metrics: Sequence[str]  # the columns, as `is_column` allows
    units: Sequence[str]  # what the values are of, e.g. "seed 0, task 0"
    rows: Sequence[ResultRow]  # each with a name of its own
    reference: str  # name of what the others are tested against, or its label (the first with it)
    paper: Mapping[str, Printed] = field(default_factory=dict)
    source: str = ""  # where the paper has these, e.g. "CoPreFL, AAAI text, Table 1(a)"
    failed: Sequence[str] = ()  # a line per run that failed
    search_entries: Sequence[SearchEntry] = ()  # what was searched, value by value
    scored: str = ""  # what the score of a value is, e.g. "on 2 validation tasks"

    @property
    def tested_against(self) -> ResultRow:
        """The reference's row."""
        exact = [row for row in self.rows if row.name == self.reference]
        return (exact or [row for row in self.rows if row.label == self.reference])[0]

    @property
    def seeds(self) -> list[str]:
        """The seed of each unit, e.g. "seed 0"; units that are named otherwise are alone."""
        named = all(unit.startswith("seed ") for unit in self.units)
        return [unit.partition(",")[0] if named else unit for unit in self.units]

    def short_name(self, row: ResultRow) -> str:
        """Return a row's label, but its name where other rows have that label too."""
        labels = [other.label for other in self.rows]
        return row.label if labels.count(row.label) == 1 else row.name

    def paper_of(self, row: ResultRow) -> Printed:
        """Return the paper's figures for a row, by metric."""
        return self.paper.get(row.name) or self.paper.get(self.short_name(row), {})

    def displayed(self) -> "Comparison":
        """Return the same with methods named as papers write them: "CoPreFL" for "coprefl".

        Those of a search keep the words of settings, which programs read from its file.
        """
        names = display_names([*(row.label for row in self.rows), *self.paper])
        shown = [replace(row, label=names[row.label]) for row in self.rows]
        names |= {old.name: new.name for old, new in zip(self.rows, shown, strict=True)}
        paper = {names[label]: printed for label, printed in self.paper.items()}
        reference = names.get(self.reference, self.reference)
        return replace(self, rows=shown, reference=reference, paper=paper)


@dataclass(frozen=True)
class Report:
    """Comparisons that belong together, and what a reader must know about them."""

    title: str  # what was reproduced
    source: str  # where the paper has it
    notes: Sequence[str]  # e.g. how a searched value was chosen, or what a small scale cut
    comparisons: Sequence[Comparison]  # at least one, each with a name of its own
    figures: Sequence[str] = ()  # kinds of figures to draw for each, of `figures.FIGURES`
    settings: Mapping[str, Any] = field(default_factory=dict)  # what was set, shown at the end
    defaults: Mapping[str, Any] = field(default_factory=dict)  # all others, as they were used
    methods: Mapping[str, str] = field(default_factory=dict)  # each row with all that it heeds
    provenance: Mapping[str, str] = field(default_factory=dict)  # versions, machine, seeds
    command: str = ""  # what repeats it
    command_folder: str = "the folder above this page's"  # where to give it
    warnings: Sequence[str] = ()  # notes that are not to be missed: what did not learn, and so on

    def __post_init__(self) -> None:
        """Raise a SettingsError where the files of one comparison would replace another's."""
        # Also on file systems that do not tell capitals apart.
        names = [comparison.name.lower() for comparison in self.comparisons]
        for name in names:
            if names.count(name) > 1:
                raise SettingsError(f"two comparisons are named {name!r}; allowed: one each")


# ---- the numbers of a comparison ----------------------------------------------------------------


def numbers(comparison: Comparison) -> pd.DataFrame:
    """Return a row per line and metric: first what was measured, then what only the paper has.

    Its columns are those of `results.csv`. "mean" and "std" are over units. "difference" is the
    line minus the comparison's reference, over the "pairs" of seeds' means (of the tasks that both
    have), "p" that of the paired t-test, "p-holm" the same corrected for the lines of the metric's
    column (Holm). Missing numbers are nan.
    """
    known = {name for row in comparison.rows for name in (row.name, row.label)}
    nothing = dict.fromkeys(comparison.metrics, [math.nan] * len(comparison.units))
    unmeasured = [ResultRow(label, "", nothing) for label in comparison.paper if label not in known]
    rows = [*comparison.rows, *unmeasured]
    entries = [_entry(comparison, metric, row) for row in rows for metric in comparison.metrics]
    data = pd.DataFrame(entries)
    data["p-holm"] = data.groupby("metric")["p"].transform(holm)
    return data


def _entry(comparison: Comparison, metric: str, row: ResultRow) -> dict[str, Any]:
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


def _over_seeds(comparison: Comparison, metric: str, row: ResultRow) -> tuple[Summary, float]:
    """Return a line minus the reference, and p: of the means per seed of the units both have."""
    reference = comparison.tested_against.values[metric]
    pairs = list(zip(row.values[metric], reference, strict=True))
    both = [at for at, pair in enumerate(pairs) if math.isfinite(pair[0] + pair[1])]
    seeds = [comparison.seeds[at] for at in both]
    here, there = (seed_means([pairs[at][side] for at in both], seeds) for side in (0, 1))
    return paired(list(here.values()), list(there.values()))


def units(comparison: Comparison) -> pd.DataFrame:
    """Return a row per measured line and unit, with all metrics: those of `units.csv`."""
    parts = []
    for row in comparison.rows:
        values = {name: row.values[name] for name in comparison.metrics}
        labels = {"comparison": comparison.name, "row": row.name, "label": row.label}
        parts.append(pd.DataFrame({**labels, "unit": list(comparison.units), **values}))
    return pd.concat(parts)
