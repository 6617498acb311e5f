"""Results as data: a DataFrame of clients and one of rounds, on disk as JSON Lines.

Every number of a table is computed from these rows, so a table can always be written again. A row
of a client has the results of a task's final model on the client's test samples. A row of a round
has the phase ("pretraining", "downstream" or "personalised"), start, task (missing in the
pre-training), round, and the metrics of the round (nan for a missing metric).
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coprefl_flwr.files import read_bytes, write_atomically
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.report import columns, statistics
from coprefl_flwr.report.columns import LOSS, NO_HEADINGS, ColumnSpec, Headings

DOWNSTREAM, PERSONALISED, DIAGNOSIS = "downstream", "personalised", "diagnosis"
PHASES = ("pretraining", DOWNSTREAM, PERSONALISED, DIAGNOSIS)
"""Phases of the package's rounds. Other phases are measurements of a starting model."""

OF_CLIENTS = "evaluate-client-"
"""Prefix of columns of rounds: the mean of a measure over clients, if there is no accuracy."""

OF_A_ROUND = ("phase", "start", "task", "round")
"""Columns that identify the round of a row."""

TASK_METRICS = (*statistics.METRICS, statistics.BEYOND)
"""The metrics of a task over its clients that `summary` has."""

PRETRAINING = ("rounds", "final", "best", "best-round", "catches-up", "models", "megabytes")
"""Names of the numbers that `pretraining_summary` returns for a start."""

ROW = ("start", "task", "client", "n", "correct", "loss")
"""Columns of the rows of clients: of `n` test samples, `correct` were classified correctly, and
`loss` is their mean loss. A row may also have a `domain` (the client's dataset) and the user's
metrics. Without classes it has no `correct`."""


def frame(records: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> pd.DataFrame:
    """Return records as a DataFrame; a column of integers stays one if some values are missing.

    `names` are the columns without records.
    """
    data = pd.DataFrame(records, columns=None if records else list(names))
    for name in data.columns[data.isna().any()]:
        values = [r[name] for r in records if r.get(name) is not None]
        if all(type(value) is int for value in values):
            data[name] = data[name].astype("Int64")
    return data


def write_lines(path: str | Path, data: pd.DataFrame, keep: str) -> None:
    """Write a JSON line per row, atomically; infinite values become null.

    Missing values are left out, except in the column `keep`, where they are null.
    """
    rows = [
        {str(key): value for key, value in row.items() if key == keep or not pd.isna(value)}
        for row in data.to_dict("records")
    ]
    absent = (math.inf, -math.inf)
    rows = [{k: None if pd.isna(v) or v in absent else v for k, v in r.items()} for r in rows]
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows]
    write_atomically(path, "".join(lines).encode())


def read_rows(path: str | Path) -> pd.DataFrame:
    """Read rows of clients; a null loss is nan. Without tasks, there is no file and no row."""
    rows = _read(Path(path)) if Path(path).exists() else []
    return pd.DataFrame(rows, columns=None if rows else list(ROW)).astype({"loss": float})


def read_rounds(path: str | Path) -> pd.DataFrame:
    """Read rows of rounds. Raises a SettingsError if the file is missing."""
    return frame(_read(Path(path)), OF_A_ROUND)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_bytes(path).splitlines()]


def accuracies(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of clients with a column accuracy, in percent, if the targets are classes."""
    if "correct" not in rows:
        return rows
    return rows.assign(accuracy=100 * rows["correct"].astype(float) / rows["n"])


def own_metrics(rows: pd.DataFrame) -> list[str]:
    """Return the columns of rows that are user metrics."""
    return [str(name) for name in rows if str(name).startswith(METRIC)]


def measure_of(rows: pd.DataFrame, headings: Headings = NO_HEADINGS) -> ColumnSpec:
    """Return the column of the measure: the accuracy, or the first user metric, or the loss.

    `headings` are the columns of the user's metrics, in the order in which the user named them.
    """
    own = [name for name in (*headings, *own_metrics(rows), LOSS) if name in rows]
    return columns.ACCURACY if "correct" in rows or not own else columns.column(own[0], headings)


def task_metrics(rows: pd.DataFrame, headings: Headings = NO_HEADINGS) -> pd.DataFrame:
    """Return a row per start and task, as they first appear, from rows of clients.

    The columns are start, task, the metrics over the task's clients (the keys of
    `report.columns.COLUMNS`), the accuracy of each domain ("accuracy@NAME"), and the mean of each
    user metric ("metric:NAME") over the clients that have a value. The loss and each user metric
    also have the `report.columns.STATISTICS`, such as "loss:worst-10%" and "metric:NAME:variance".
    `headings` has the title and the better direction ("higher" or "lower") of user metrics by
    column. Without a direction, higher is better.
    """
    keys = ["start", "task"]
    groups = accuracies(rows).groupby(keys, sort=False)
    entries = [{"start": s, "task": t} | _of_task(part, headings) for (s, t), part in groups]
    return frame(entries, [*keys, "accuracy", LOSS])


def _of_task(rows: pd.DataFrame, headings: Headings) -> dict[str, float]:
    """Return the metrics of one task, from rows with accuracies."""
    values: dict[str, float] = {}
    own = own_metrics(rows)
    for measure in filter(rows.__contains__, ("accuracy", LOSS, *own)):
        numbers = rows[measure].astype(float)
        # A metric may be undefined for a client. A loss that is not finite makes all numbers nan.
        numbers = numbers.dropna() if measure in own else numbers
        if len(numbers):
            found = statistics.summarise_task(numbers, columns.column(measure, headings).better)
            found[columns.STD_CLIENTS] = math.sqrt(found["variance"])
            values |= zip(columns.of_measure(found, measure), found.values(), strict=True)
    if "accuracy" in rows:
        values[statistics.BEYOND] = statistics.variance_beyond_sampling(rows["accuracy"], rows["n"])
        if "domain" in rows:
            for name, of_domain in rows.groupby("domain")["accuracy"]:
                values[f"{columns.ACCURACY_OF}{name}"] = float(np.mean(of_domain))
    return values


def summary(
    rows: pd.DataFrame, headings: Headings = NO_HEADINGS, metrics: Sequence[str] = ()
) -> pd.DataFrame:
    """Return a row per start, in order of first appearance.

    The columns are "start", "tasks" (their number) and, for each of `metrics` (columns of
    `task_metrics`), its name (mean over tasks) and name + " std". The default metrics are those of
    `TASK_METRICS`, of the measure if the targets are no classes, and each user metric
    ("metric:NAME"). CoPreFL's papers do not state which standard deviation they report. Here it is
    the sample standard deviation (ddof=1), which is nan for a single task. Raises a KeyError for
    another column.
    """
    by_task = task_metrics(rows, headings)
    tasks = by_task.groupby("start", sort=False)
    data = tasks.size().rename("tasks").reset_index()
    of_clients = columns.of_measure(TASK_METRICS, measure_of(rows, headings).metric)
    for metric in metrics or dict.fromkeys([*of_clients, *own_metrics(rows)]):
        over_tasks = [statistics.summarise(values.tolist()) for _, values in tasks[metric]]
        data[metric] = [statistic.mean for statistic in over_tasks]
        data[f"{metric} std"] = [statistic.std for statistic in over_tasks]
    return data


def pretraining_summary(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return a row per pre-trained start, in order of first appearance, from rows of rounds.

    The index is the start, and the columns are those of `PRETRAINING`. "models" and "megabytes"
    count the traffic of a deployment, down and up. "final" and "best" are test accuracies in
    percent, and "best-round" is the round of the best accuracy. "catches-up" of a start such as
    "cyclic+fedavg" is the first round whose accuracy is at least the best accuracy of "fedavg"
    alone; infinity means never. Without test accuracies, all are about the test loss, and "final"
    and "best" have the names "final-loss" and "best-loss". Missing numbers are nan.
    """
    models, sent = ["models-down", "models-up"], ["client-bytes-down", "client-bytes-up"]
    test = tested_by(rounds)
    numbers = [test, *models, *sent]
    rounds = rounds.reindex(columns=["phase", "start", "round", *numbers])
    rounds = rounds[rounds["phase"] == "pretraining"].astype(dict.fromkeys(numbers, float))
    by_start = list(rounds.set_index("round").groupby("start", sort=False))
    sign = columns.TESTS[test].quality(1)
    tested = {str(start): sign * rows[test].dropna() for start, rows in by_start}
    entries = []
    for (start, quality), (_, rows) in zip(tested.items(), by_start, strict=True):
        entry = {
            "start": start, "rounds": len(rows),
            "models": math.fsum(rows[models].sum(axis=1)),
            "megabytes": math.fsum(rows[sent].sum(axis=1)) / 1e6,
            "catches-up": _catches_up(start, tested),
        }  # fmt: skip
        if len(quality):
            final, best = quality[quality.index.max()], quality.max()
            entry |= {"final": sign * final, "best": sign * best, "best-round": quality.idxmax()}
        entries.append(entry)
    data = pd.DataFrame(entries, columns=["start", *PRETRAINING]).set_index("start").astype(float)
    return data if sign == 1 else data.set_axis(columns.of_measure(PRETRAINING, LOSS), axis=1)


def tested_by(rounds: pd.DataFrame) -> str:
    """Return the column of the pre-training's tests: the accuracy, or the loss if there is none."""
    return next(filter(rounds.__contains__, columns.TESTS), "server-accuracy")


def _catches_up(start: str, tested: Mapping[str, "pd.Series[float]"]) -> float:
    """Return the first round as good as the best round of the last phase's method alone."""
    _, plus, last = start.rpartition("+")
    method = last.partition(":")[0]
    alike = [name for name in tested if "+" not in name and name.partition(":")[0] == method]
    plain = [last] if last in alike else alike
    if not plus or len(plain) != 1 or tested[plain[0]].empty:
        return math.nan
    good = tested[start] >= tested[plain[0]].max()
    return float(min(good.index[good], default=math.inf))


def cost_to_reach(rounds: pd.DataFrame, metric: str) -> float:
    """Return the rounds or megabytes until the clients' mean accuracy is a percentage.

    `rounds` are the rounds of one task in order. `metric` is a column such as rounds-to-60% (see
    `columns.TO_REACH`). The result is infinite if the clients never reach the accuracy, and nan if
    the targets are no classes.
    """
    match = columns.TO_REACH.fullmatch(metric)
    assert match
    numbers = rounds.reindex(columns=["accuracy", "client-bytes-down", "client-bytes-up"])
    accuracy, *sent = (numbers[name].astype(float) for name in numbers)
    good = accuracy >= float(match[2])
    if not good.any():
        return math.inf if "accuracy" in rounds else math.nan
    first = good.to_numpy().argmax()
    megabytes = (sent[0] + sent[1]).iloc[: first + 1].sum(skipna=False) / 1e6
    return float(rounds["round"].iloc[first] if match[1] == "rounds" else megabytes)


def measured(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return a row per start with its loss and the numbers of the user's measurements, by column.

    The index is the start. The numbers of measurements are in the columns "measured:NAME".
    """
    rows = rounds[~rounds["phase"].isin(PHASES)].drop(columns=["phase", "task", "round"])
    numbers = rows.groupby("start", sort=False).first().dropna(axis="columns", how="all")
    return numbers.astype(float).rename(
        columns=lambda name: name if name == columns.START_LOSS else f"{columns.MEASURED}{name}"
    )
