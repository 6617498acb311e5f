"""The answer of a choice of starting models: sentences, a table, a figure and a page."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import nn

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import expanded, own
from coprefl_flwr.report import Comparison, Report, write_report
from coprefl_flwr.report.answer import half_interval, power
from coprefl_flwr.report.columns import of_measure
from coprefl_flwr.report.comparison import numbers
from coprefl_flwr.report.figures.relations import differences
from coprefl_flwr.report.formats import text
from coprefl_flwr.report.starts_result import saved
from coprefl_flwr.report.tables import table
from coprefl_flwr.studies.choice import FIRST, Choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = ("accuracy", "worst-10%", "megabytes", "gradients")
"""The columns of a choice, of the study's measure if the targets are no classes."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """The starting model that a choice recommends; `print` shows the answer and its table.

    Attributes
    ----------
    name : str
        The chosen candidate: the better finalist, or the cheaper one if they are not separated.
    answer : str
        The answer in one sentence.
    left : list of str
        A sentence for each candidate that left before the comparison, or failed; the searched
        values that were chosen; and the rounds that were run for each.
    comparisons : Report
        The page: the finalists and the reference on the draws that did not choose them, and all
        candidates on the first draws.
    spent : Mapping[str, int]
        The number of rounds that were run for each candidate, without the search of values.
    start : nn.Module, optional
        The chosen starting model, trained on the first draw. `coprefl choose` writes its file.
    """

    name: str
    answer: str
    left: list[str]
    comparisons: Report
    spent: Mapping[str, int]
    start: nn.Module | None = None

    @property
    def table(self) -> pd.DataFrame:
        """A row per candidate: its difference from the chosen one, and the means of all columns.

        "difference" and "difference-std" are over "pairs" draws: for the finalists and the
        reference those that did not choose them; for the others those that selected the finalists,
        which overstate the difference. A candidate that left after the screens has only its number
        of "rounds-run".
        """
        parts = []
        for comparison in self.comparisons.comparisons:
            data = numbers(comparison.against(self.name))
            means = data.pivot(index="row", columns="metric", values="mean")
            measured = data[data["metric"] == comparison.metrics[0]].set_index("row")
            parts.append(measured[["difference", "difference-std", "pairs"]].join(means))
        table = pd.concat(parts).groupby(level=0, sort=False).first()
        every = table.index.union(list(self.spent), sort=False)
        return table.reindex(every).assign(**{"rounds-run": pd.Series(self.spent)})

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return a figure of the differences from the chosen start; also save it to `path`.

        Raises a SettingsError if it is the only start whose training succeeded.
        """
        drawn = differences(self.comparisons.comparisons[0].against(self.name))
        if not drawn:
            raise SettingsError(f"{self.name} is the only finalist: it is compared with none")
        return saved(drawn[0], path)

    def report(self, folder: str | Path) -> Path:
        """Write the page with tables and figures into a folder; return the path of the page.

        Raises a SettingsError if another program wrote files into the folder.
        """
        own(expanded(folder), f"folder = {folder}")
        return write_report(self.comparisons, expanded(folder))

    def __str__(self) -> str:
        compared = self.comparisons.comparisons[0]
        wanted = of_measure(METRICS, compared.measure.metric)
        metrics = [metric for metric in wanted if metric in compared.metrics]
        shown = replace(compared, metrics=metrics, paper={}).displayed()
        return "\n\n".join([self.answer, "\n".join(self.left), text(table(shown))])

    __repr__ = __str__


def chosen_of(
    choice: Choice,
    compared: Report,
    selected: Report,
    problems: Mapping[str, str],
    spent: Mapping[str, int],
    values: Mapping[str, str],
) -> Chosen:
    """Return the answer of a choice.

    `compared` has the finalists and the reference on the draws that compared them, and `selected`
    the candidates on the first draws. `problems` has the problem of each candidate that failed,
    `spent` the number of rounds that were run for each candidate, and `values` the chosen values of
    each candidate with a search.
    """
    (comparison,), (first,) = compared.comparisons, selected.comparisons
    comparison = replace(comparison, name="comparison", title="Draws that compared the finalists")
    first = replace(first, name="selection", title=f"The first {FIRST} draws, which selected")
    costs = {name: _costs(comparison, name) for name in choice.finalists}
    name = choice.finalists[0] if choice.found else min(choice.finalists, key=costs.__getitem__)
    left = [
        f"`{dropped.candidate}` left after "
        + (f"{dropped.draws} draws: " if dropped.draws else "the screens: ")
        + (f"failed ({problems[dropped.candidate]})" if dropped.failed else "behind")
        for dropped in choice.dropped
    ]
    if values:
        each = "; ".join(f"`{start}` {chosen}" for start, chosen in values.items())
        left.append(f"Values that the search chose: {each}.")
    each = ", ".join(f"`{start}` {rounds:,}" for start, rounds in spent.items())
    what = "Rounds that were run" + " after the search" * bool(values)
    left.append(f"{what}: {each}; {sum(spent.values()):,} in all.")
    answer = f"Use `{name}`: the training of every other finalist failed."
    for second in set(choice.finalists) - {name}:
        cheaper = costs[name] < costs[second]
        answer = _answer(comparison, name, second, found=choice.found, cheaper=cheaper)
    report = replace(
        compared,
        notes=[answer, *left, *compared.notes],
        comparisons=[comparison, first],
        figures=["differences", *compared.figures],
    )
    return Chosen(name, answer, left, report, spent)


def _answer(comparison: Comparison, name: str, second: str, *, found: bool, cheaper: bool) -> str:
    """Return the answer on two finalists, of which `name` is chosen."""
    measure, draws = comparison.measure, len(set(comparison.draws))
    unit = " points" if measure.unit == " %" else measure.unit
    value, worst, *_ = of_measure(METRICS, measure.metric)
    places = 1 if measure.unit == " %" else measure.places(comparison.rows[0].values[value])

    def row(other: str, metric: str) -> "pd.Series[Any]":
        """Return the numbers of the chosen candidate against another one."""
        rows = numbers(replace(comparison.against(other), metrics=[metric]))
        return rows[rows["row"] == name].iloc[0]

    def difference(other: str) -> str:
        mean, half = row(other, value)["difference"], half_interval(row(other, value))
        return f"{mean:+.{places}f} [{mean - half:.{places}f}, {mean + half:.{places}f}]{unit}"

    over = f"over {draws} draws that did not choose"
    parts = [f"Use `{name}`: {difference(second)} against `{second}` {over} it"]
    if not found:
        why = "the cheaper of them" if cheaper else "the better one in the mean"
        both = f"`{name}` and `{second}` ({difference(second)} {over} them)"
        parts = [f"No difference was found between {both}: take `{name}`, {why}"]
    other = comparison.tested_against.name
    if other in (name, second):
        other = second
    else:
        parts.append(f"{difference(other)} against `{other}`")
    change = float(row(other, worst)["difference"])
    gains = "gains" if measure.quality(change) >= 0 else "loses"
    parts.append(
        f"against `{other}` the worst tenth of the clients {gains} {abs(change):.{places}f}{unit}"
    )
    sent, sent_by_other = (_costs(comparison, row)[0] for row in (name, other))
    traffic = f"{sent:,.1f} megabytes, `{other}` {sent_by_other:,.1f}"
    parts.append(f"it sends {'as many megabytes' if sent == sent_by_other else traffic}")
    answer = "; ".join(parts) + "."
    only = replace(comparison, metrics=[value])
    return " ".join([answer, *([] if found else power(only, measure.unit, name, second))])


def _costs(comparison: Comparison, name: str) -> list[float]:
    """Return the megabytes and the gradients of a candidate; 0 if nothing was trained."""
    (row,) = (row for row in comparison.rows if row.name == name)
    return list(row.values.reindex(columns=list(METRICS[2:])).mean().fillna(0))
