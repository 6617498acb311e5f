"""The table of faults of a deployment, from what `make hosts-test` has written."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).with_name("faults.json")

COMMON = re.compile("Connection attempt failed|Exit Code|ServerApp raised|raise HTTP")
"""Lines that are shown only if there is no other."""


def table() -> str:
    """Return what each fault did: a row for each run, in the order of the tests."""
    found = json.loads(RESULTS.read_text())
    heads = "fault", "run", "exchanges", "answers lost", "seconds", "lines for the operator"
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in found["faults"]:
        seen = _telling("run", row["run's log"]) + _telling("node", row["node's log"])
        seen += filter(None, [row["note"]])
        lost = f"{row['lost']} of {row['asked']}"
        cells = row["fault"], row["status"], row["exchanges"], lost, row["seconds"]
        lines.append(f"| {' | '.join(map(str, cells))} | {'<br>'.join(seen)} |")
    of = f"Measured on {found['date']} on one machine with {found['cores']} cores"
    of += f" (Linux {found['kernel']}), which had other work, so seconds compare only roughly."
    return "\n".join([of, "", *lines, ""])


def _telling(whose: str, lines: Sequence[str]) -> list[str]:
    """Return the last line of a log that says most, as code in a cell of a table."""
    telling = [line for line in lines if not COMMON.search(line)] or list(lines)
    if not telling:
        return []
    text = re.sub(r"\d+\.\d+ seconds", "N seconds", re.sub(r"^[A-Z]+ *: *", "", telling[-1]))
    return [f"{whose}: `{text[:170].replace('|', '/').replace('`', chr(39))}`"]
