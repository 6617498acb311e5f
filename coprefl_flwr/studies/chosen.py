"""The answer of a choice of starting models: a sentence, a table, a figure and a page."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy  # Imports scipy.stats at its first use, which takes half a second.
from torch import nn

from coprefl_flwr.files import expanded, own
from coprefl_flwr.report import Report, figures, formats
from coprefl_flwr.report.answer import CONFIDENCE
from coprefl_flwr.report.columns import ColumnSpec, of_measure
from coprefl_flwr.report.figures import style
from coprefl_flwr.report.page import Section, write_page
from coprefl_flwr.report.statistics import paired
from coprefl_flwr.report.tables import NONE, Table, simple
from coprefl_flwr.report.variance import MOST_DRAWS, POWER, more_draws
from coprefl_flwr.studies.choice import Choice, Result, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Chosen:
    """The starting model that a choice recommends; `print` shows the answer and the table.

    Attributes
    ----------
    choice : Choice
        The finalists, and the candidates that left.
    results : mapping of (candidate, draw) to Result
        The results of all cells that were run.
    measure : ColumnSpec
        The column of the measure.
    reference : str
        A candidate with which the chosen one is compared too, or "".
    margin : float, optional
        The smallest difference that matters; None: 1 point of accuracy.
    start : nn.Module, optional
        The chosen starting model, trained on the first draw. `coprefl choose` writes its file.
    page : Mapping[str, Any]
        Fields of the page's `Report`, such as the title.
    """

    choice: Choice
    results: Results
    measure: ColumnSpec
    reference: str = ""
    margin: float | None = None
    start: nn.Module | None = None
    page: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def name(self) -> str:
        """The chosen candidate: the better finalist, or the cheaper one if they are not separated.

        Cheaper is: fewer megabytes in the pre-training; if these are equal, fewer gradients.
        """
        finalists = self.choice.finalists
        return finalists[0] if self.choice.found else min(finalists, key=self._costs)

    @property
    def second(self) -> str:
        """The other finalist; "" if there is none."""
        return next((name for name in self.choice.finalists if name != self.name), "")

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """A row per candidate, the chosen one first.

        The columns are `draws` (their number), the mean of the measure and of the worst tenth of
        the clients over these draws, `difference` from the chosen candidate with the 95 % interval
        `low` to `high`, `megabytes` and `gradients` (millions) of a pre-training, and `outcome`.
        For candidates that left before the comparison, `difference` is over the draws that
        selected, which overstates it, and there is no interval.
        """
        names = dict.fromkeys([self.name, self.second, self.reference])
        in_order = sorted(self.choice.dropped, key=lambda dropped: -dropped.draws)
        left = {dropped.candidate: dropped for dropped in in_order}
        names |= dict.fromkeys([*left, *(name for name, _ in self.results)])
        value, worst = of_measure(["accuracy", "worst-10%"], self.measure.metric)
        rows = []
        for name in filter(None, names):
            numbers = self._of(name)
            difference, low, high = self._difference(name, self.name)
            rows.append(
                {
                    "candidate": name,
                    "draws": len(numbers),
                    value: numbers["value"].mean(skipna=False),
                    "difference": difference,
                    "low": low,
                    "high": high,
                    worst: numbers["worst"].mean(skipna=False),
                    "megabytes": numbers["megabytes"].mean(),
                    "gradients": numbers["gradients"].mean(),
                    "outcome": self._outcome(name, left),
                }
            )
        return pd.DataFrame(rows).set_index("candidate")

    @property
    def answer(self) -> str:
        """The answer in sentences."""
        if not self.second:
            return f"Use `{self.name}`: the training of every other finalist failed."
        draws, found = len(self.choice.compared), self.choice.found
        difference = self._shown_difference(self.name, self.second)
        if found:
            parts = [
                f"Use `{self.name}`: {difference} against `{self.second}` over {draws} draws that "
                "did not choose it"
            ]
        else:
            costs = [self._costs(name) for name in (self.name, self.second)]
            why = "the cheaper of them" if costs[0] < costs[1] else "the better one in the mean"
            parts = [
                f"{self._no_difference()} ({difference} over {draws} draws that did not choose "
                f"them): take `{self.name}`, {why}"
            ]
        other = self.second
        if self._is_compared(self.reference) and self.reference not in (self.name, self.second):
            other = self.reference
            parts.append(f"{self._shown_difference(self.name, other)} against `{other}`")
        worst, *_ = self._difference(self.name, other, "worst")
        gains = "gains" if self.measure.quality(worst) >= 0 else "loses"
        change = self._shown(abs(worst)).removeprefix("+")
        parts.append(f"against `{other}` the worst tenth of the clients {gains} {change}")
        parts.append(self._traffic(other))
        if not found:
            parts.append(self._power())
        return "; ".join(filter(None, parts)) + "."

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return a figure of the differences from the chosen candidate; also save it to `path`."""
        figure = _figure(self)
        if path is not None:
            figures.save(figure, expanded(path))
        return figure

    def report(self, folder: str | Path) -> Path:
        """Write the answer into a folder: `report.html`, `answer.md`, the figure, and CSV files.

        `results.csv` is the table, and `units.csv` has a line per candidate and draw. Returns the
        path of the page. Raises a SettingsError if another program wrote files into the folder.
        """
        folder = expanded(folder)
        own(folder, f"folder = {folder}")
        title = str(self.page.get("title", "Choice of a start"))
        shown = self._table()
        picture = figures.picture(
            "choice-differences", self.plot(), _CAPTION, ", ".join(map(str, self.table.index))
        )
        of_cells = [
            {"candidate": name, "draw": draw, **result._asdict()}
            for (name, draw), result in sorted(self.results.items(), key=lambda item: item[0][1])
        ]
        image = f"![{_CAPTION}](figures/choice-differences.png)"
        texts = {
            "answer.md": f"# {title}\n\n{self.answer}\n\n{formats.markdown(shown)}\n{image}\n",
            "results.csv": self.table.to_csv(lineterminator="\n"),
            "units.csv": pd.DataFrame(of_cells).to_csv(index=False, lineterminator="\n"),
        }
        section = Section("choice", [self.answer], [shown], None, [picture], ["answer.md"])
        about = {"title": title, "source": "", "notes": [], **self.page, "comparisons": []}
        return write_page(Report(**about), [section], texts, picture.files, folder)

    def __str__(self) -> str:
        return f"{self.answer}\n\n{formats.text(self._table())}"

    __repr__ = __str__

    # ---- numbers -----------------------------------------------------------------------------

    def _of(self, name: str) -> pd.DataFrame:
        """Return the results of a candidate, a row per draw."""
        numbers = {draw: result for (of, draw), result in self.results.items() if of == name}
        return pd.DataFrame(numbers.values(), index=list(numbers), columns=Result._fields)

    def _costs(self, name: str) -> tuple[float, float]:
        numbers = self._of(name)
        return float(numbers["megabytes"].mean()), float(numbers["gradients"].mean())

    def _is_compared(self, name: str) -> bool:
        """Whether a candidate has results on the draws that compared the finalists."""
        draws = self.choice.compared
        return bool(draws) and all((name, draw) in self.results for draw in draws)

    def _difference(
        self, name: str, other: str, column: str = "value"
    ) -> tuple[float, float, float]:
        """Return the mean difference of two candidates, and its interval, nan if there is none.

        It is over the draws that compared the finalists, or else over all draws of `name`.
        """
        pair = [self._of(one)[column] for one in (name, other)]
        compared = self._is_compared(name)
        draws = list(self.choice.compared) if compared else list(pair[0].index)
        (mean, std, n), _ = paired(*(values.reindex(draws) for values in pair))
        if not compared or name == other:
            return mean, math.nan, math.nan
        half = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * std / math.sqrt(n)
        return mean, mean - half, mean + half

    # ---- texts -------------------------------------------------------------------------------

    def _shown(self, value: float, unit: bool = True) -> str:
        points = " points" if self.measure.unit == " %" else self.measure.unit
        places = 1 if self.measure.unit == " %" else self.measure.places(self.table["difference"])
        return NONE if math.isnan(value) else f"{value:+.{places}f}{points * unit}"

    def _shown_difference(self, name: str, other: str) -> str:
        """Return "+5.8 [+4.9, +6.7] points"."""
        mean, low, high = self._difference(name, other)
        number, space, unit = self._shown(mean).partition(" ")
        ends = ", ".join(self._shown(end, unit=False) for end in (low, high))
        return f"{number} [{ends}]{space}{unit}"

    def _no_difference(self) -> str:
        """Return the sentence on two finalists that were not separated."""
        _, low, high = self._difference(self.name, self.second)
        if self._margin and max(abs(low), abs(high)) < self._margin:
            return f"`{self.name}` and `{self.second}` differ by less than {self._shown_margin}"
        return f"No difference was found between `{self.name}` and `{self.second}`"

    @property
    def _margin(self) -> float:
        """The margin; 0 if there is none, because the measure is not in percent."""
        return self.margin or float(self.measure.unit == " %")

    @property
    def _shown_margin(self) -> str:
        unit = f" point{'s' * (self._margin != 1)}"
        return f"{self._margin:g}{unit if self.measure.unit == ' %' else self.measure.unit}"

    def _traffic(self, other: str) -> str:
        """Return a sentence on the megabytes of the chosen candidate and of another one."""
        here, there = (self._costs(name)[0] for name in (self.name, other))
        if here == there:
            return f"it sends as many megabytes, {here:,.1f}"
        return f"it sends {here:,.1f} megabytes, and `{other}` {there:,.1f}"

    def _power(self) -> str:
        """Return a sentence on the draws that would find a difference of the margin, or ""."""
        std, draws = self.choice.difference.std, len(self.choice.compared)
        if not self._margin or math.isnan(std):
            return ""
        more = more_draws(std, draws, self._margin)
        count = f"{more:.0f} more draws" if more else f"the {draws} draws"
        count = count if math.isfinite(more) else f"more than {MOST_DRAWS} draws"
        return f"{count} would find a difference of {self._shown_margin} with {POWER:.0%} power"

    def _outcome(self, name: str, left: Mapping[str, Any]) -> str:
        if name == self.name:
            return "chosen"
        if name in left:
            problem = next((p for p in self._of(name)["problem"] if p), "")
            why = f"failed ({problem})" if problem else "behind"
            return f"left after {left[name].draws} draws: {why}"
        return "worse" if self.choice.found else "not separated"

    def _table(self) -> Table:
        """Return the table as texts."""
        data, measure = self.table, self.measure
        value, worst = (data.columns[at] for at in (1, 5))
        places = measure.places(data[value])

        def texts(column: str, digits: str) -> list[str]:
            return [NONE if math.isnan(n) else f"{n:{digits}}" for n in data[column]]

        low, high = texts("low", f"+.{places}f"), texts("high", f"+.{places}f")
        columns = {
            "Draws": texts("draws", "d"),
            measure.title: texts(value, f".{places}f"),
            "Difference": [NONE, *texts("difference", f"+.{places}f")[1:]],
            "95 % interval": [
                a if a == NONE else f"{a} to {b}" for a, b in zip(low, high, strict=True)
            ],
            "Worst 10 %": texts(worst, f".{places}f"),
            "MB sent": texts("megabytes", ",.1f"),
            "Million gradients": texts("gradients", ".3g"),
            "Outcome": data["outcome"].tolist(),
        }
        table = simple("Candidates", "Candidate", columns, data.index)
        return Table(table.cells, table.best, _NOTES, table.title, "choice")


_CAPTION = (
    "Differences from the chosen start. With a 95 % interval: over the draws that compared the "
    "finalists and the reference. Hollow: over the draws that selected the finalists, which "
    "overstate the difference."
)
_NOTES = (
    "Difference: from the chosen candidate, over the draws that did not choose it; without an "
    "interval: over the draws that selected the finalists, which overstate it. The other numbers "
    "are means over the candidate's own draws.",
)


@style.settings()
def _figure(chosen: Chosen) -> "Figure":
    """Draw the difference of each candidate from the chosen one, with intervals if compared."""
    data = chosen.table.drop(index=chosen.name)
    data = data[np.isfinite(data["difference"])][::-1]
    figure, (panel,) = style.new_figure(1, 1.0 + 0.3 * len(data))
    looks = style.colours(map(str, data.index))
    panel.axvline(0, color=style.INK, linewidth=0.8)
    for at, (name, row) in enumerate(data.iterrows()):
        colour, half = looks[str(name)][0], row["high"] - row["difference"]
        compared = bool(np.isfinite(half))
        panel.errorbar(
            row["difference"], at, xerr=half if compared else None, fmt="o", color=colour,
            markerfacecolor=colour if compared else "white",
        )  # fmt: skip
    panel.set_yticks(range(len(data)), list(map(str, data.index)))
    panel.set_ylim(-0.6, len(data) - 0.4)
    panel.grid(visible=True, axis="x")
    unit = "points" if chosen.measure.unit == " %" else chosen.measure.axis
    panel.set_xlabel(f"Difference from {chosen.name} ({unit})")
    return figure
