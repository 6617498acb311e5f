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


def search_table(tried: Sequence[Tried], scored: str) -> Table:
    """Return the table; `scored` says what the score is, e.g. "on 2 validation tasks"."""
    lines = [[_marked(one.label, one), one.values] for one in tried]
    scores = [Number(NONE if math.isnan(one.score) else f"{one.score:.2f}") for one in tried]
    picked = [Number("chosen" if one.chosen else "no", best=one.chosen) for one in tried]
    notes = [f"Mean accuracy {scored}; bold: chosen, the highest of each row."]
    missing = [f"{one.label} with {one.values}: {one.why}" for one in tried if one.why]
    if missing:
        notes.append(f"{NONE} {'; '.join(missing)}.")
    told = [f"{one.label} with {one.values} {one.trouble}" for one in tried if one.trouble]
    if told:
        notes.append(f"{DAGGER} {'; '.join(told)}.")
    columns = [Column("Accuracy %", {"here": scores}), Column("Chosen", {"here": picked})]
    return Table(["Method", "Values"], lines, columns, list(map(Note, notes)), "Search")


def _marked(label: str, one: Tried) -> str:
    return f"{label} {DAGGER}" if one.trouble else label
