"""The table of a search: every value that was tried, what it came to, and which was chosen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coprefl_flwr.report.table import DAGGER, NONE, Column, Note, Number, Table


@dataclass(frozen=True)
class Tried:
    """One combination of the searched values of a row."""

    label: str  # the row's
    values: str  # "gamma=0.5,learning-rate=0.1"
    score: float  # mean accuracy in percent; nan where it was not run to the end
    chosen: bool
    why: str = ""  # why it has no score
    trouble: str = ""  # whether it diverged or did not learn
    trial: float | None = None  # its score after a quarter of the rounds; None without halving
    dropped: bool = False  # whether it was not run to the end, as that was not among the best


def search_table(tried: Sequence[Tried], scored: str) -> Table:
    """Return the table; `scored` says what the score is, e.g. "on 2 validation tasks"."""
    lines = [[_marked(one.label, one), one.values] for one in tried]
    scores = [_score(one.score) for one in tried]
    picked = [Number(_fate(one), best=one.chosen) for one in tried]
    notes = [f"Mean accuracy {scored}; bold: chosen, the highest of each row."]
    columns = [Column("Accuracy %", {"here": scores}), Column("Chosen", {"here": picked})]
    trials = [one.trial for one in tried]
    if any(trial is not None for trial in trials):
        first = [_score(math.nan if trial is None else trial) for trial in trials]
        columns.insert(0, Column("After a quarter %", {"here": first}))
        notes.append(
            "After a quarter of the rounds, of the pre-training and of the tasks, the best quarter "
            "of a row's values goes on to the end; where it is one value, that is chosen."
        )
    missing = [f"{one.label} with {one.values}: {one.why}" for one in tried if one.why]
    if missing:
        notes.append(f"{NONE} {'; '.join(missing)}.")
    told = [f"{one.label} with {one.values} {one.trouble}" for one in tried if one.trouble]
    if told:
        notes.append(f"{DAGGER} {'; '.join(told)}.")
    return Table(["Method", "Values"], lines, columns, list(map(Note, notes)), "Search")


def _score(score: float) -> Number:
    return Number(NONE if math.isnan(score) else f"{score:.2f}")


def _fate(one: Tried) -> str:
    return "chosen" if one.chosen else "dropped" if one.dropped else "no"


def _marked(label: str, one: Tried) -> str:
    return f"{label} {DAGGER}" if one.trouble else label
