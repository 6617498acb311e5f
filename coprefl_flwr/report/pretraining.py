"""What the pre-training itself came to: test accuracies, and what was sent."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = {
    "Start": "start",
    "Rounds": "rounds",
    "Final %": "final",
    "Best %": "best",
    "at round": "best-round",
    "plain's best by": "catches-up",
    "Models sent": "models",
    "MB sent": "megabytes",
}


def pretraining_summary(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one dict per start from the rows of `rounds.jsonl`, in order of first appearance.

    Parameters
    ----------
    rounds : rows of the pre-training, of the downstream tasks too (which are left out)

    Returns
    -------
    Per start "start", "rounds", "models" and "megabytes" (sent down and up), and where the model
    was tested "final", "best" (accuracies in percent), "best-round", and for a start such as
    "cyclic+fedavg" "catches-up": the first round as good as the best of "fedavg" alone.
    """
    by_start: dict[str, list[Mapping[str, Any]]] = {}
    for row in rounds:
        if row["phase"] == "pretraining":
            by_start.setdefault(row["start"], []).append(row)
    entries = {start: _entry(start, rows) for start, rows in by_start.items()}
    for start, entry in entries.items():
        best = entries.get(_plain(start, list(entries)) or "", {}).get("best")
        if best is not None:
            tested = _tested(by_start[start])
            reached = [number for number, accuracy in tested.items() if accuracy >= best]
            entry["catches-up"] = min(reached, default=None)
    return list(entries.values())


def _plain(start: str, starts: Sequence[str]) -> str | None:
    """Return the start that is the last phase of `start` alone, if there is just one such."""
    _, plus, last = start.rpartition("+")
    method = last.partition(":")[0]
    alike = [name for name in starts if "+" not in name and name.partition(":")[0] == method]
    if not plus or last in alike:
        return last if plus else None
    return alike[0] if len(alike) == 1 else None


def _entry(start: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sent = [row.get("models-down", 0) + row.get("models-up", 0) for row in rows]
    volume = [row.get("bytes-down", 0) + row.get("bytes-up", 0) for row in rows]
    entry: dict[str, Any] = {
        "start": start,
        "rounds": len(rows),
        "models": math.fsum(sent),
        "megabytes": math.fsum(volume) / 1e6,
    }
    tested = _tested(rows)
    if tested:
        best = max(tested, key=lambda number: tested[number])
        entry |= {"final": tested[max(tested)], "best": tested[best], "best-round": best}
    return entry


def _tested(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return {round: test accuracy in percent}."""
    return {r["round"]: r["server-accuracy"] for r in rows if r.get("server-accuracy") is not None}


def pretraining_table(entries: Sequence[Mapping[str, Any]], *, markdown: bool = False) -> str:
    """Return the summary as a table, without the columns that no start has."""
    titles = [title for title, key in COLUMNS.items() if any(key in entry for entry in entries)]
    rows = [titles, *([_cell(COLUMNS[title], entry) for title in titles] for entry in entries)]
    if markdown:
        rule = "|:--|" + "--:|" * (len(titles) - 1)
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([lines[0], rule, *lines[1:]]) + "\n"
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cell(key: str, entry: Mapping[str, Any]) -> str:
    value = entry.get(key)
    if value is None:
        return "never" if key in entry else ""
    if isinstance(value, float):
        return f"{value:.1f}" if key in ("final", "best") else f"{value:,.0f}"
    return str(value)
