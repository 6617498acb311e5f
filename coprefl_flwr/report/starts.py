"""The tables of a study of starting points: their worth, and their pre-training."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from coprefl_flwr.report.results import summary, task_metrics
from coprefl_flwr.report.statistics import Summary
from coprefl_flwr.report.table import MARK, Note, Number, Table, column_of, of_columns, shown

_SUMMARY = {
    "Accuracy %": "accuracy",
    "Variance": "variance",
    "Worst 10 %": "worst-10%",
    "Worst 20 %": "worst-20%",
    "Worst 30 %": "worst-30%",
}
_PRETRAINING = {
    "Rounds": ("rounds", ".0f"),
    "Final %": ("final", ".1f"),
    "Best %": ("best", ".1f"),
    "at round": ("best-round", ".0f"),
    "plain's best by": ("catches-up", ".0f"),
    "Models sent": ("models", ",.0f"),
    "MB sent": ("megabytes", ",.0f"),
}


def summary_table(rows: pd.DataFrame) -> Table:
    """Return what the starting points are worth, over tasks, from rows of clients."""
    entries = summary(rows)
    columns = [
        column_of(
            [Summary(*found) for found in entries[[metric, f"{metric} std", "tasks"]].values],
            ".1f",
            "lower" if metric == "variance" else "higher",
        )
        for metric in _SUMMARY.values()
    ]
    lines = of_columns(list(entries["start"]), columns)
    return Table(["Start"], list(_SUMMARY), lines, [Note(_over_tasks(rows))])


def _over_tasks(rows: pd.DataFrame) -> str:
    """Return what the numbers are, and whether the starts can be compared."""
    starts = task_metrics(rows).groupby("start", sort=False)["task"]
    counts = sorted(starts.size())
    tasks = " to ".join(dict.fromkeys([str(counts[0]), str(counts[-1])]))
    noun = "task" if counts[-1] == 1 else "tasks"
    what = "Mean" if counts[-1] == 1 else "Mean ± sample std"
    note = f"{what} over {tasks} {noun}; accuracies in %, variance in %²"
    if len(counts) > 1:
        note += f"; {MARK}: best"
    if len({frozenset(tasks) for _, tasks in starts}) > 1:
        note += "; the starts did not all meet the same tasks"
    return note + "."


def pretraining_summary(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return what the pre-training came to, a row per start in order of first appearance.

    Parameters
    ----------
    rounds : pd.DataFrame
        Rows of rounds (`results`); those of the downstream tasks are left out.

    Returns
    -------
    Columns "start", "rounds", "models" and "megabytes" (sent down and up), and where the model was
    tested "final", "best" (accuracies in percent), "best-round", and for a start such as
    "cyclic+fedavg" "catches-up": the first round as good as the best of "fedavg" alone, infinity
    for never. What a start has not is nan.
    """
    columns = ["start", "rounds", "models", "megabytes", "final", "best", "best-round"]
    if rounds.empty:
        return pd.DataFrame(columns=[*columns, "catches-up"])
    of_starts = rounds[rounds["phase"] == "pretraining"].groupby("start", sort=False)
    by_start = {str(start): rows for start, rows in of_starts}
    found = pd.DataFrame([_entry(*item) for item in by_start.items()], columns=columns)
    best = dict(zip(found["start"], found["best"], strict=True))
    found["catches-up"] = [
        _first_as_good(_tested(rows), best.get(_plain(start, list(by_start)) or "", math.nan))
        for start, rows in by_start.items()
    ]
    return found


def _plain(start: str, starts: Sequence[str]) -> str | None:
    """Return the start that is the last phase of `start` alone, if there is just one such."""
    _, plus, last = start.rpartition("+")
    method = last.partition(":")[0]
    alike = [name for name in starts if "+" not in name and name.partition(":")[0] == method]
    if not plus or last in alike:
        return last if plus else None
    return alike[0] if len(alike) == 1 else None


def _first_as_good(tested: "pd.Series[float]", best: float) -> float:
    """Return the first round with an accuracy of at least `best`; nan where there is no `best`."""
    if math.isnan(best):
        return math.nan
    return float(min(tested.index[tested >= best], default=math.inf))


def _entry(start: str, rows: pd.DataFrame) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "start": start,
        "rounds": len(rows),
        "models": _sent(rows, "models"),
        "megabytes": _sent(rows, "bytes") / 1e6,
    }
    tested = _tested(rows)
    if len(tested):
        best = tested.index[tested == tested.max()][0]  # the first, where several are
        entry |= {"final": tested[tested.index.max()], "best": tested.max(), "best-round": best}
    return entry


def _sent(rows: pd.DataFrame, what: str) -> float:
    """Return what was sent both ways in all rounds."""
    ways = rows.reindex(columns=[f"{what}-down", f"{what}-up"]).astype(float).fillna(0)
    return math.fsum(ways.sum(axis=1))


def _tested(rows: pd.DataFrame) -> "pd.Series[float]":
    """Return the test accuracies in percent, by round."""
    found = rows.reindex(columns=["round", "server-accuracy"]).astype({"server-accuracy": float})
    return found.set_index("round")["server-accuracy"].dropna()


def pretraining_table(entries: pd.DataFrame) -> Table:
    """Return the table of a `pretraining_summary`, without the columns that no start has."""
    titles = {title: what for title, what in _PRETRAINING.items() if entries[what[0]].notna().any()}
    columns = [
        [Number(shown(n, spec) if n == n else "") for n in entries[name].astype(float)]
        for name, spec in titles.values()
    ]
    return Table(["Start"], list(titles), of_columns(list(entries["start"]), columns), marks=False)
