"""The table of faults of a deployment, from what `make hosts-test` has written."""

import json
import re
from pathlib import Path

RESULTS = Path(__file__).with_name("faults.json")


def table() -> str:
    """Return what each fault did: a row for each run, in the order of the tests."""
    found = json.loads(RESULTS.read_text())
    lines = ["| fault | run | exchanges | answers lost | seconds | lines for the operator |"]
    lines += ["| --- " * 6 + "|"]
    for row in found["faults"]:
        seen = [f"run: {_cell(line)}" for line in row["run's log"][-1:]]
        seen += [f"node: {_cell(line)}" for line in row["node's log"][-1:]]
        seen += [row["note"]] * bool(row.get("note"))
        lost = f"{row['lost']} of {row['asked']}"
        cells = (
            row["fault"],
            row["status"],
            row["exchanges"],
            lost,
            row["seconds"],
            "<br>".join(seen),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    of = f"Measured on {found['date']} on one machine with {found['cores']} cores"
    return "\n".join([f"{of} (Linux {found['kernel']}).", "", *lines, ""])


def _cell(line: str) -> str:
    """Return a line of a log as code in a cell of a table, without what differs each time."""
    text = re.sub(r"^(WARNING|ERROR) *: *", "", line)
    text = re.sub(r"\d+\.\d+ seconds", "N seconds", text).replace("|", "\\|").replace("`", "'")
    return f"`{text[:160]}`"
