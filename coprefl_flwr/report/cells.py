"""The cells of a table, and their place in a plain-text one."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TEXT_WIDTH = 100
"""Most characters of a line in a plain-text table."""


@dataclass(frozen=True)
class Cell:
    """A mean and a standard deviation as shown; "" where there is none."""

    mean: str
    std: str = ""
    best: bool = False

    @property
    def text(self) -> str:
        """The two together."""
        return f"{self.mean} ± {self.std}" if self.std else self.mean


def best_of(shown: Iterable[float], *, lower: bool) -> set[int]:
    """Return the positions of the best of the values as shown: a difference nobody sees is a tie.

    A value that is not finite is never the best, and one that stands alone in its table neither.
    """
    values = list(shown)
    finite = [value for value in values if math.isfinite(value)]
    if len(values) < 2 or not finite:
        return set()
    best = min(finite) if lower else max(finite)
    return {index for index, value in enumerate(values) if value == best}


def text_column(title: str, cells: Sequence[Cell]) -> list[str]:
    """Return the title and one line per cell, all of one width, with the signs ± aligned."""
    mean_width = max(len(cell.mean) for cell in cells)
    std_width = max(len(cell.std) for cell in cells)
    lines = []
    for cell in cells:
        gap = " " * (std_width + 3) * (std_width > 0)
        deviation = f" ± {cell.std:>{std_width}}" if cell.std else gap
        lines.append(f"{cell.mean:>{mean_width}}{deviation}{'*' if cell.best else ' '}")
    width = max(len(title) + 1, len(lines[0]))
    return [f"{title} ".rjust(width), *(line.rjust(width) for line in lines)]


def text_table(first: str, names: Sequence[str], columns: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, the names in its first column, wrapped where they are too long.

    Parameters
    ----------
    first : title of the first column
    names : one a row
    columns : what `text_column` returned for the others
    """
    room = TEXT_WIDTH - sum(2 + len(column[0]) for column in columns)
    wrapped = [textwrap.wrap(name, room) or [""] for name in names]
    width = max(len(first), *(len(line) for lines in wrapped for line in lines))
    header = "  ".join([first.ljust(width), *(column[0] for column in columns)])
    lines = [header.rstrip(), "-" * len(header)]
    for number, (name, *others) in enumerate(wrapped, 1):
        cells = [name.ljust(width), *(column[number] for column in columns)]
        lines.append("  ".join(cells).rstrip())
        lines += others
    return lines
