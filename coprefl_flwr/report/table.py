"""A table in memory: what every form of it (text, Markdown, LaTeX, HTML) is written from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coprefl_flwr.report.columns import Better
from coprefl_flwr.report.statistics import Summary

Part = Literal["here", "paper", "p"]
PARTS: tuple[Part, ...] = ("here", "paper", "p")
"""What can stand below a heading: what was measured here, what the paper printed, a p-value."""

NONE = "–"  # noqa: RUF001  The dash that typesets a missing number.
DAGGER = "†"
"""Stands behind the name of a line that is never marked as best: a note says why."""

MARK = "{mark}"
"""Stands in a note for how a form marks the best numbers: "bold" or "*"."""


@dataclass(frozen=True)
class Number:
    """A mean and a standard deviation as shown ("" where there is none), or another short text."""

    mean: str
    std: str = ""
    best: bool = False
    mark: str = ""  # behind it, where a note says something of it

    @classmethod
    def of(cls, mean: float, std: float, spec: str, best: bool = False) -> "Number":
        """Return both in a format such as ",.2f"; the standard deviation may be nan."""
        return cls(shown(mean, spec), "" if math.isnan(std) else shown(std, spec), best)

    @property
    def text(self) -> str:
        """All together."""
        return (f"{self.mean} ± {self.std}" if self.std else self.mean) + self.mark


@dataclass(frozen=True)
class Column:
    """What stands below a heading: a number for each line of the table, by part."""

    title: str
    parts: Mapping[Part, Sequence[Number]]  # "here" always, others where a line has them


@dataclass(frozen=True)
class Note:
    """A sentence below a table; one about a part is left out by a form that has no such part."""

    text: str
    part: Part = "here"


@dataclass(frozen=True)
class Table:
    """Lines of names and numbers; no cell is empty: a dash has its reason in a note."""

    names: Sequence[str]  # headings of the columns of names, which come first
    lines: Sequence[Sequence[str]]  # the names of each line; at least one line
    columns: Sequence[Column]
    notes: Sequence[Note] = ()  # what a reader must know
    title: str = ""  # what this table is; "" where the text around it says so
    label: str = ""  # by which a document refers to it; "": not at all
    failed: Sequence[str] = ()  # a line per run that is missing
    reference: int | None = None  # the line that the others are tested against
    marks: bool = True  # whether the best are marked: plain text leaves room for the stars

    def note(self, mark: str, parts: Sequence[Part] = PARTS) -> str:
        """Return the notes on these parts as one text; `mark` says how the best are marked."""
        return " ".join(self.told(mark, parts))

    def told(self, mark: str, parts: Sequence[Part] = PARTS) -> list[str]:
        """Return the notes on these parts, one by one."""
        return [n.text.replace(MARK, mark) for n in self.notes if n.part in parts]


def shown(value: float, spec: str) -> str:
    """Return a number in a format such as ",.2f"; nan is a dash, infinity is "never"."""
    if math.isnan(value):
        return NONE
    return format(value, spec) if math.isfinite(value) else "never"


def best_of(values: Sequence[float], better: Better) -> set[int]:
    """Return the positions of the best values, given as shown: a difference nobody sees is a tie.

    A value that is not finite is never the best, and one that stands alone neither.
    """
    finite = [value for value in values if math.isfinite(value)]
    if better is None or len(values) < 2 or not finite:
        return set()
    best = min(finite) if better == "lower" else max(finite)
    return {index for index, value in enumerate(values) if value == best}


def column_of(
    title: str,
    found: Sequence[Summary],
    better: Better = "higher",
    good: Sequence[bool] | None = None,
    decimals: int = 1,
) -> Column:
    """Return a column of summaries, one a line, the best that is good marked."""
    which = good or [True] * len(found)
    means = [
        float(f"{one.mean:.{decimals}f}") if ok else math.nan
        for one, ok in zip(found, which, strict=True)
    ]
    best = best_of(means, better) if sum(which) > 1 else set()
    spec = f".{decimals}f"
    numbers = [Number.of(one.mean, one.std, spec, at in best) for at, one in enumerate(found)]
    return Column(title, {"here": numbers})
