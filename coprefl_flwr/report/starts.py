"""The tables of a study of starting points: their worth, and their pre-training."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from coprefl_flwr.report.columns import STEP_SIZE, Better, column
from coprefl_flwr.report.results import own_metrics, task_metrics
from coprefl_flwr.report.statistics import summarise
from coprefl_flwr.report.table import (
    DAGGER,
    MARK,
    NONE,
    Column,
    Note,
    Number,
    Table,
    column_of,
    shown,
)

_SUMMARY = {"Accuracy %": "accuracy", "Variance": "variance"} | {
    f"Worst {percent} %": f"worst-{percent}%" for percent in (10, 20, 30)
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
Troubles = Mapping[str, str]
"""{start: what is wrong with it}, as `learnt` finds it."""

_COSTS = {"Summed step size": (STEP_SIZE, ",.3f"), "Million gradients": ("gradients", ",.3f")}
"""What no round says: columns that the caller adds to the summary."""


def summary_table(rows: pd.DataFrame, troubles: Troubles | None = None) -> Table:
    """Return what the starting points are worth, over tasks, from rows of clients.

    Starts with `troubles` are never marked as best.
    """
    starts = task_metrics(rows).groupby("start", sort=False)
    columns, troubles = [], troubles or {}
    tasks = {str(start): list(numbers) for start, numbers in starts["task"]}
    good = [start not in troubles for start in tasks]
    for title, metric in _SUMMARY.items():
        found = [summarise(values.tolist()) for _, values in starts[metric]]
        better: Better = "lower" if metric == "variance" else "higher"
        columns.append(column_of(title, found, better, good))
    notes = [Note(_over_tasks(tasks)), *_told(troubles)]
    for metric in own_metrics(rows):
        heading = column(metric)
        found = [summarise(values.tolist()) for _, values in starts[metric]]
        columns.append(column_of(heading.title, found, heading.better, good, heading.decimals))
        if any(math.isnan(one.mean) for one in found):
            notes.append(Note(f"{NONE} {heading.title}: no client has a value."))
    return Table(["Start"], _named(tasks, troubles), columns, notes)


def _named(starts: Iterable[str], troubles: Troubles) -> list[list[str]]:
    return [[f"{start} {DAGGER}" if start in troubles else start] for start in starts]


def _told(troubles: Troubles) -> list[Note]:
    """Say what is wrong with some starts."""
    told = [f"{start} {trouble}" for start, trouble in troubles.items()]
    return [Note(f"{DAGGER} {'; '.join(told)}.")] if told else []


def _over_tasks(tasks: Mapping[str, Sequence[int]]) -> str:
    """Return what the numbers are, and whether the starts, with these tasks, can be compared."""
    counts = sorted(map(len, tasks.values()))
    number = " to ".join(dict.fromkeys([str(counts[0]), str(counts[-1])]))
    over = "Mean over 1 task" if counts[-1] == 1 else f"Mean ± sample std over {number} tasks"
    note = f"{over}; accuracies in %, variance in %²"
    if len(counts) > 1:
        note += f"; {MARK}: best"
    if len(set(map(frozenset, tasks.values()))) > 1:
        note += "; the starts did not all meet the same tasks"
    return note + "."


def pretraining_summary(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return what the pre-training came to, a row per start in order of first appearance.

    `rounds` are rows of rounds (`results`); those of the downstream tasks are left out. Columns are
    "start", "rounds", "models" and "megabytes" (that a deployment sends, down and up), and where
    the model was tested "final", "best" (accuracies in percent), "best-round", and for a start such
    as "cyclic+fedavg" "catches-up": the first round as good as the best of "fedavg" alone, infinity
    for never. What a start has not is nan.
    """
    models, sent = ["models-down", "models-up"], ["client-bytes-down", "client-bytes-up"]
    numbers = ["server-accuracy", *models, *sent]
    rounds = rounds.reindex(columns=["phase", "start", "round", *numbers])
    rounds = rounds[rounds["phase"] == "pretraining"].astype(dict.fromkeys(numbers, float))
    by_start = list(rounds.set_index("round").groupby("start", sort=False))
    tested = {str(start): rows["server-accuracy"].dropna() for start, rows in by_start}
    entries = []
    for (start, accuracy), (_, rows) in zip(tested.items(), by_start, strict=True):
        entry = {
            "start": start, "rounds": len(rows),
            "models": math.fsum(rows[models].sum(axis=1)),
            "megabytes": math.fsum(rows[sent].sum(axis=1)) / 1e6,
            "catches-up": _catches_up(start, tested),
        }  # fmt: skip
        if len(accuracy):
            final = accuracy[accuracy.index.max()]
            entry |= {"final": final, "best": accuracy.max(), "best-round": accuracy.idxmax()}
        entries.append(entry)
    columns = ["start", *(name for name, _ in _PRETRAINING.values())]
    return pd.DataFrame(entries, columns=columns).astype({"catches-up": float})


def _catches_up(start: str, tested: Mapping[str, "pd.Series[float]"]) -> float:
    """Return the first round as good as the best of the start's last phase alone; nan for none."""
    _, plus, last = start.rpartition("+")
    method = last.partition(":")[0]
    alike = [name for name in tested if "+" not in name and name.partition(":")[0] == method]
    plain = [last] if last in alike else alike
    if not plus or len(plain) != 1 or tested[plain[0]].empty:
        return math.nan
    good = tested[start] >= tested[plain[0]].max()
    return float(min(good.index[good], default=math.inf))


def cost_to_reach(rounds: Sequence[Mapping[str, Any]], what: str, accuracy: float) -> float:
    """Return the rounds or megabytes until the clients' mean accuracy, in percent, was reached.

    `rounds` are one task's, in order; `what` is "rounds" or "megabytes" (that a deployment sends,
    down and up). It is infinite for never.
    """
    sent = 0.0
    for row in rounds:
        sent += row.get("client-bytes-down", math.nan) + row.get("client-bytes-up", math.nan)
        if (row.get("accuracy") or -math.inf) >= accuracy:
            return float(row["round"]) if what == "rounds" else sent / 1e6
    return math.inf


def pretraining_table(entries: pd.DataFrame, troubles: Troubles | None = None) -> Table:
    """Return the table of a `pretraining_summary`, without the columns that no start has."""
    had = {
        title: (name, spec)
        for title, (name, spec) in (_PRETRAINING | _COSTS).items()
        if name in entries and entries[name].notna().any()
    }
    columns = [
        Column(title, {"here": [Number(shown(n, spec)) for n in entries[name]]})
        for title, (name, spec) in had.items()
    ]
    why: dict[str, list[str]] = {}
    for title, (name, _) in had.items():
        if entries[name].isna().any():
            why.setdefault(column(name).missing, []).append(title)
    notes = [Note(f"{NONE} {', '.join(titles)}: {reason}.") for reason, titles in why.items()]
    lines, notes = _named(entries["start"], troubles or {}), [*notes, *_told(troubles or {})]
    return Table(["Start"], lines, columns, notes, marks=False)
