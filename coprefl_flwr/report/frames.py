"""Results as data: a DataFrame of clients and one of rounds, on disk as JSON Lines.

Every number of a table is computed from these rows, so a table can always be written again. A row
of a client has the results of a task's final model on the client's test samples. A row of a round
has the phase ("pretraining", "downstream" or "personalised"), start, task (missing in the
pre-training), round, and the metrics of the round (nan for a missing metric).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import damaged, read_bytes, write_atomically
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.report.columns import ACCURACY_OF, SENT, START_LOSS, STD_CLIENTS, TO_REACH
from coprefl_flwr.report.statistics import (
    BEYOND,
    METRICS,
    summarise,
    summarise_task,
    variance_beyond_sampling,
)

PHASES = ("pretraining", "downstream", "personalised", "diagnosis", START_LOSS)
"""Phases of the package's rounds. Other phases are the user's measurements."""

OF_A_ROUND = ("phase", "start", "task", "round")
"""Columns that identify the round of a row."""

TASK_METRICS = (*METRICS, BEYOND)
"""Names of the metrics that `one_task` returns."""

PRETRAINING = ("rounds", "final", "best", "best-round", "catches-up", "models", "megabytes")
"""Names of the numbers that `pretraining_summary` returns for a start."""

ROW = ("start", "task", "client", "n", "correct", "loss")
"""Columns of the rows of clients: of `n` test samples, `correct` were classified correctly, and
`loss` is their mean loss. A row may also have a `domain` (the client's dataset) and the user's
metrics."""


def frame(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return records as a DataFrame; a column of integers stays one if some values are missing."""
    data = pd.DataFrame(records)
    for name in data.columns[data.isna().any()]:
        values = [r[name] for r in records if r.get(name) is not None]
        if all(type(value) is int for value in values):
            data[name] = data[name].astype("Int64")
    return data


def write_rows(path: str | Path, rows: pd.DataFrame) -> None:
    """Write rows of clients, atomically; a loss that is not finite becomes null."""
    _write_lines(path, records(rows, keep="loss"))


def read_rows(path: str | Path) -> pd.DataFrame:
    """Read rows of clients; a null loss is nan.

    Raises a SettingsError if the file is missing, or for its first bad line, with its number.
    """
    rows = _read(Path(path))
    return pd.DataFrame(rows, columns=None if rows else list(ROW)).astype({"loss": float})


def write_rounds(path: str | Path, rounds: pd.DataFrame) -> None:
    """Write rows of rounds, atomically, without missing metrics; infinite values become null."""
    _write_lines(path, records(rounds, keep="task"))


def read_rounds(path: str | Path) -> pd.DataFrame:
    """Read rows of rounds; a SettingsError if the file is missing or is not JSON Lines."""
    return frame(_read(Path(path)))


def accuracies(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a column accuracy, in percent; a SettingsError if there are no rows."""
    if rows.empty:
        raise SettingsError("there are no result rows: at least one is needed")
    return rows.assign(accuracy=100 * rows["correct"] / rows["n"])


def one_task(rows: pd.DataFrame) -> dict[str, float]:
    """Return every metric of `TASK_METRICS`, and the user metrics, of one task.

    `rows` are rows with accuracies. A user metric is the mean over the clients that have a value.
    """
    beyond = variance_beyond_sampling(rows["accuracy"], rows["n"])
    own = {name: float(rows[name].astype(float).mean()) for name in own_metrics(rows)}
    return {**summarise_task(rows["accuracy"]), BEYOND: beyond, **own}


def values_of_task(
    rows: pd.DataFrame, rounds: Sequence[Mapping[str, Any]], metrics: Iterable[str]
) -> dict[str, float]:
    """Return the results of one task of a start, or of one personalised method, by column.

    `rows` are the rows of its clients, and `rounds` its rounds in order. `metrics` may have columns
    of the cost to reach an accuracy (`columns.TO_REACH`), which are computed only if listed.
    """
    rows = accuracies(rows)
    values = one_task(rows)
    values[STD_CLIENTS] = math.sqrt(values["variance"])
    if "domain" in rows:
        for name, of_domain in rows.groupby("domain")["accuracy"]:
            values[f"{ACCURACY_OF}{name}"] = float(np.mean(of_domain))
    for metric in metrics:
        if reached := TO_REACH.fullmatch(metric):
            values[metric] = _cost_to_reach(rounds, reached[1], float(reached[2]))
    return values | {key: rounds[-1][key] for key in SENT if rounds and key in rounds[-1]}


def own_metrics(rows: pd.DataFrame) -> list[str]:
    """Return the columns of rows that are user metrics."""
    return [str(name) for name in rows if str(name).startswith(METRIC)]


def task_metrics(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per start and task, as they first appear: start, task, and `one_task`."""
    groups = accuracies(rows).groupby(["start", "task"], sort=False)
    entries = [{"start": start, "task": task, **one_task(part)} for (start, task), part in groups]
    return pd.DataFrame(entries)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per start, in order of first appearance.

    The columns are "start", "tasks" (their number) and, for each metric of `TASK_METRICS` and each
    user metric ("metric:NAME"), its name (mean over tasks) and name + " std". CoPreFL's papers do
    not state which standard deviation they report. Here it is the sample standard deviation
    (ddof=1), which is nan for a single task.
    """
    tasks = task_metrics(rows).groupby("start", sort=False)
    data = tasks.size().rename("tasks").reset_index()
    for metric in (*TASK_METRICS, *own_metrics(rows)):
        over_tasks = [summarise(values.tolist()) for _, values in tasks[metric]]
        data[metric] = [statistic.mean for statistic in over_tasks]
        data[f"{metric} std"] = [statistic.std for statistic in over_tasks]
    return data


def pretraining_summary(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return a row per pre-trained start, in order of first appearance, from rows of rounds.

    The columns are "start" and those of `PRETRAINING`. "models" and "megabytes" count the traffic
    of a deployment, down and up. "final" and "best" are test accuracies in percent, and
    "best-round" is the round of the best accuracy. "catches-up" of a start such as "cyclic+fedavg"
    is the first round whose accuracy is at least the best accuracy of "fedavg" alone; infinity
    means never. Missing numbers are nan.
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
    return pd.DataFrame(entries, columns=["start", *PRETRAINING]).astype({"catches-up": float})


def _catches_up(start: str, tested: Mapping[str, "pd.Series[float]"]) -> float:
    """Return the first round as accurate as the best round of the last phase's method alone."""
    _, plus, last = start.rpartition("+")
    method = last.partition(":")[0]
    alike = [name for name in tested if "+" not in name and name.partition(":")[0] == method]
    plain = [last] if last in alike else alike
    if not plus or len(plain) != 1 or tested[plain[0]].empty:
        return math.nan
    good = tested[start] >= tested[plain[0]].max()
    return float(min(good.index[good], default=math.inf))


def _cost_to_reach(rounds: Sequence[Mapping[str, Any]], what: str, accuracy: float) -> float:
    """Return the "rounds" or "megabytes" until the clients' mean accuracy is this percentage.

    The result is infinite if the clients never reach the accuracy.
    """
    sent = 0.0
    for row in rounds:
        sent += row.get("client-bytes-down", math.nan) + row.get("client-bytes-up", math.nan)
        if (row.get("accuracy") or -math.inf) >= accuracy:
            return float(row["round"]) if what == "rounds" else sent / 1e6
    return math.inf


def records(data: pd.DataFrame, keep: str = "") -> list[dict[str, Any]]:
    """Return rows as dicts of Python's types; infinite values become None.

    Missing values are left out, except in the column `keep`, where they are None.
    """
    rows = [
        {str(key): value for key, value in row.items() if key == keep or not pd.isna(value)}
        for row in data.to_dict("records")
    ]
    absent = (math.inf, -math.inf)
    return [{k: None if pd.isna(v) or v in absent else v for k, v in r.items()} for r in rows]


def _write_lines(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON Lines, atomically."""
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records]
    write_atomically(path, "".join(lines).encode())


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file; a SettingsError if it is none."""
    try:
        return [json.loads(line) for line in read_bytes(path).splitlines()]
    except json.JSONDecodeError as error:
        raise damaged(path, str(error)) from error
