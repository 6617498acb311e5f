"""Result rows, and the tables made of them.

A comparison leaves one row per (start, task, client); every number of a table is computed from
these rows, so that a table can always be made again.
"""

import csv
import difflib
import io
import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import write_atomically
from coprefl_flwr.report import fairness
from coprefl_flwr.report.cells import TEXT_WIDTH, Cell, best_of, text_column, text_table


class ClientRow(TypedDict):
    """What the final global model of one task is worth to one client, on its own test part."""

    start: str  # the starting model, e.g. "coprefl:gamma=0.5"
    task: int
    client: int
    n: int  # test samples
    correct: int  # of those, how many were classified correctly
    loss: float  # mean over the n samples


_KINDS: dict[str, tuple[type, ...]] = {
    "start": (str,),
    "task": (int,),
    "client": (int,),
    "n": (int,),
    "correct": (int,),
    "loss": (int, float),
}

_COLUMNS = {
    "Accuracy %": "accuracy",
    "Variance": "variance",
    "Worst 10 %": "worst-10%",
    "Worst 20 %": "worst-20%",
    "Worst 30 %": "worst-30%",
}


def accuracies(rows: Iterable[ClientRow]) -> dict[str, dict[int, list[float]]]:
    """Return start -> task -> client accuracies in percent, starts in order of first appearance.

    Raises `SettingsError` for a row that cannot be right, a client that appears twice in a task
    of a start, and no rows at all.
    """
    seen: set[tuple[str, int, int]] = set()
    grouped: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        _check(row)
        key = (row["start"], row["task"], row["client"])
        if key in seen:
            raise SettingsError(
                f"start {key[0]!r}, task {key[1]}, client {key[2]} has two rows; allowed: one each"
            )
        seen.add(key)
        tasks = grouped.setdefault(row["start"], {})
        tasks.setdefault(row["task"], []).append(100 * row["correct"] / row["n"])
    if not grouped:
        raise SettingsError("there are 0 result rows; allowed: at least one")
    return grouped


def summary(rows: Iterable[ClientRow]) -> list[dict[str, Any]]:
    """Return one dict per start, in order of first appearance.

    Its keys are "start", "tasks" (how many) and, for each metric of `fairness.METRICS`, the
    metric's name (mean over tasks) and name + " std". CoPreFL's papers do not say which standard
    deviation they report: this is the sample one (ddof=1), nan when there is one task only.
    """
    result = []
    for start, tasks in accuracies(rows).items():
        per_task = [fairness.summarise_task(values) for values in tasks.values()]
        entry: dict[str, Any] = {"start": start, "tasks": len(tasks)}
        for metric in fairness.METRICS:
            values = [task[metric] for task in per_task]
            entry[metric] = float(np.mean(values))
            entry[f"{metric} std"] = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        result.append(entry)
    return result


def format_table(rows: Sequence[ClientRow]) -> str:
    """Return a plain-text table, at most 100 characters wide, the best of each column starred."""
    entries = summary(rows)
    columns = [text_column(title, _cells(entries, metric)) for title, metric in _COLUMNS.items()]
    lines = text_table("Start", [entry["start"] for entry in entries], columns)
    return "\n".join([*lines, "", *textwrap.wrap(_note(rows, entries, "*"), TEXT_WIDTH)])


def markdown_table(rows: Sequence[ClientRow]) -> str:
    """Return a Markdown table with the best of each column in bold, and the note below it."""
    entries = summary(rows)
    columns = [_cells(entries, metric) for metric in _COLUMNS.values()]
    lines = [
        "| Start | " + " | ".join(_COLUMNS) + " |",
        "|:--|" + "--:|" * len(_COLUMNS),
    ]
    for index, entry in enumerate(entries):
        cells = [entry["start"].replace("|", "\\|")]
        for column in columns:
            cell = column[index]
            cells.append(f"**{cell.text}**" if cell.best else cell.text)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _note(rows, entries, "bold")])


def write_rows(path: str | Path, rows: Iterable[ClientRow]) -> None:
    """Write rows as JSON Lines, atomically; a loss that is not finite becomes null.

    Raises `SettingsError` for a row that `read_rows` would refuse.
    """
    lines = []
    for row in rows:
        _check(row)
        loss = row["loss"] if math.isfinite(row["loss"]) else None
        lines.append(json.dumps({**row, "loss": loss}, ensure_ascii=False, allow_nan=False) + "\n")
    write_atomically(path, "".join(lines).encode())


def read_rows(path: str | Path) -> list[ClientRow]:
    """Read the rows of a JSON Lines file; a null loss is nan.

    Raises `SettingsError` when the file is not there, and for its first bad line, with its number.
    """
    path = Path(path)
    if not path.is_file():
        raise SettingsError(f"no file of result rows at {path}{_nearest_file(path)}")
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(_parse(line))
        except ValueError as error:
            raise SettingsError(f"{path}, line {number}: {error}") from error
    return rows


def write_summary_csv(path: str | Path, rows: Iterable[ClientRow]) -> None:
    """Write `summary` as CSV, atomically; a standard deviation over one task is left empty."""
    entries = summary(rows)
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, fieldnames=list(entries[0]), lineterminator="\n")
    table.writeheader()
    for entry in entries:
        blank = {f"{name} std": "" for name in fairness.METRICS if math.isnan(entry[f"{name} std"])}
        table.writerow(entry | blank)
    write_atomically(path, text.getvalue().encode())


def _parse(line: bytes) -> ClientRow:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise SettingsError(f"a row is {row!r}; allowed: an object with keys {', '.join(_KINDS)}")
    if row.get("loss", 0) is None:
        row["loss"] = math.nan
    _check(cast(ClientRow, row))
    return cast(ClientRow, row)


def _check(row: ClientRow) -> None:
    fields: Mapping[str, object] = row
    for key in fields:
        if key not in _KINDS:
            near = difflib.get_close_matches(str(key), _KINDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SettingsError(f"a row has the key {key!r}; allowed: {', '.join(_KINDS)}{hint}")
    for key, kinds in _KINDS.items():
        if key not in fields:
            raise SettingsError(f"a row has no {key!r}; it has {', '.join(fields) or 'no key'}")
        value = fields[key]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise SettingsError(f"{key!r} of a row is {value!r}; allowed: {kinds[-1].__name__}")
    if row["n"] < 1:
        raise SettingsError(f"'n' of a row is {row['n']}; allowed: at least one test sample")
    if not 0 <= row["correct"] <= row["n"]:
        raise SettingsError(f"'correct' of a row is {row['correct']}; allowed: 0 to n = {row['n']}")


def _nearest_file(path: Path) -> str:
    siblings = [sibling.name for sibling in path.parent.glob("*") if sibling.is_file()]
    near = difflib.get_close_matches(path.name, siblings, n=1)
    return f"; nearest: {path.with_name(near[0])}" if near else ""


def _cells(entries: Sequence[Mapping[str, Any]], metric: str) -> list[Cell]:
    """Return a metric's cells; a standard deviation over one task is left out."""
    means = [f"{entry[metric]:.1f}" for entry in entries]
    stds = [entry[f"{metric} std"] for entry in entries]
    best = best_of(map(float, means), lower=metric == "variance")
    return [
        Cell(mean, "" if math.isnan(std) else f"{std:.1f}", index in best)
        for index, (mean, std) in enumerate(zip(means, stds, strict=True))
    ]


def _note(rows: Sequence[ClientRow], entries: Sequence[Mapping[str, Any]], mark: str) -> str:
    """Return what the numbers are, and whether the starts can be compared."""
    counts = sorted({entry["tasks"] for entry in entries})
    tasks = " to ".join(dict.fromkeys([str(counts[0]), str(counts[-1])]))
    noun = "task" if counts[-1] == 1 else "tasks"
    what = "Mean" if counts[-1] == 1 else "Mean ± sample std"
    note = f"{what} over {tasks} {noun}; accuracies in %, variance in %²"
    if len(entries) > 1:
        note += f"; {mark}: best"
    if len({frozenset(tasks) for tasks in accuracies(rows).values()}) > 1:
        note += "; the starts did not all meet the same tasks"
    return note + "."
