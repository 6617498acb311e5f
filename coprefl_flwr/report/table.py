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
MARK = "{mark}"
"""Stands in a note for how a form marks the best numbers: "bold" or "*"."""


@dataclass(frozen=True)
class Number:
    """A mean and a standard deviation as shown ("" where there is none), or another short text."""

    mean: str
    std: str = ""
    best: bool = False

    @property
    def text(self) -> str:
        """The two together."""
        return f"{self.mean} ± {self.std}" if self.std else self.mean


@dataclass(frozen=True)
class Line:
    """A line of a table: its names, and for each heading what stands below it, by part."""

    names: Sequence[str]
    cells: Sequence[Mapping[Part, Number]]
    reference: bool = False  # whether the other lines are tested against this one

    def number(self, at: int, part: Part) -> Number:
        """Return what stands in a cell: a dash where nothing was measured."""
        return self.cells[at].get(part, Number(NONE if part == "here" else ""))


@dataclass(frozen=True)
class Note:
    """A sentence below a table; one about a part is left out by a form that has no such part."""

    text: str
    part: Part = "here"


@dataclass(frozen=True)
class Table:
    """Lines of names and numbers."""

    names: Sequence[str]  # headings of the columns of names, which come first
    titles: Sequence[str]  # headings of the columns of numbers
    lines: Sequence[Line]  # at least one
    notes: Sequence[Note] = ()  # what a reader must know
    title: str = ""  # what this table is; "" where the text around it says so
    label: str = ""  # by which a document refers to it; "": not at all
    failed: Sequence[str] = ()  # a line per run that is missing
    marks: bool = True  # whether the best are marked: plain text leaves room for the stars

    @property
    def parts(self) -> list[list[Part]]:
        """For each heading, what stands below it in some line: "here" always."""
        return [
            [p for p in PARTS if p == "here" or any(p in line.cells[at] for line in self.lines)]
            for at in range(len(self.titles))
        ]

    @property
    def columns(self) -> list[tuple[int, Part]]:
        """The columns of numbers: which heading they are below, and their part."""
        return [(at, part) for at, parts in enumerate(self.parts) for part in parts]

    def note(self, mark: str, parts: Sequence[Part] = PARTS) -> str:
        """Return the notes on these parts as one text; `mark` says how the best are marked."""
        return " ".join(n.text.replace(MARK, mark) for n in self.notes if n.part in parts)


def shown(value: float, spec: str) -> str:
    """Return a number in a format such as ",.2f"; nan is a dash, infinity is "never"."""
    if math.isnan(value):
        return NONE
    return format(value, spec) if math.isfinite(value) else "never"


def mean_and_std(found: Summary, spec: str, best: bool = False) -> Number:
    """Return a summary as shown."""
    return Number(
        shown(found.mean, spec), "" if math.isnan(found.std) else shown(found.std, spec), best
    )


def best_of(values: Sequence[float], better: Better) -> set[int]:
    """Return the positions of the best values, given as shown: a difference nobody sees is a tie.

    A value that is not finite is never the best, and one that stands alone neither.
    """
    finite = [value for value in values if math.isfinite(value)]
    if better is None or len(values) < 2 or not finite:
        return set()
    best = min(finite) if better == "lower" else max(finite)
    return {index for index, value in enumerate(values) if value == best}


def column_of(found: Sequence[Summary], spec: str, better: Better = "higher") -> list[Number]:
    """Return summaries as shown, one a line, the best marked."""
    means = [float(format(one.mean, spec.replace(",", ""))) for one in found]
    best = best_of(means, better)
    return [mean_and_std(one, spec, index in best) for index, one in enumerate(found)]


def of_columns(names: Sequence[str], columns: Sequence[Sequence[Number]]) -> list[Line]:
    """Return a line for each name, with what is measured only."""
    rows = zip(names, *columns, strict=True)
    return [Line([name], [{"here": number} for number in numbers]) for name, *numbers in rows]
