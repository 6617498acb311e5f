"""`make chaos`: kills, a user's files, hostile replies, fuzzed inputs, damaged files, lying nodes.

    python -m tests.chaos [KIND ...] [--seed N] [--out FOLDER] [--count KIND=N ...]

What is in FOLDER/outcomes.jsonl and held is not done again: after Ctrl-C the same command goes on.
"""

import argparse
import importlib
import logging
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tests.chaos.tally import Tally

COUNTS = {
    "kills": 200,
    "overlaps": 42,
    "hostile": 3000,
    "fuzz": 5000,
    "corrupted": 100,
    "simulated": 1000,
    "deployed": 4,
}
"""How many of each kind, or fewer where a table has no more."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(COUNTS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("outputs/chaos"))
    parser.add_argument("--count", action="append", default=[], metavar="KIND=N")
    given = parser.parse_args()
    counts = COUNTS | {k: int(n) for k, _, n in (one.partition("=") for one in given.count)}
    if unknown := {*given.kinds, *counts} - COUNTS.keys():
        parser.error(f"unknown kind {', '.join(sorted(unknown))}: known are {', '.join(COUNTS)}")
    given.out.mkdir(parents=True, exist_ok=True)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    os.environ["OMP_NUM_THREADS"] = "1"
    tally = Tally(given.out / "outcomes.jsonl", progress())
    for kind in given.kinds or COUNTS:
        module = importlib.import_module(f"tests.chaos.{kind}")
        with tempfile.TemporaryDirectory(prefix=f"chaos-{kind}-") as folder:
            cases = module.cases(given.seed, counts[kind], Path(folder))
            tally.run(kind, cases, counts[kind])
        sys.stderr.write("\n")
    print(tally.table())
    (given.out / "table.txt").write_text(tally.table() + "\n")
    return 1 if tally.exceptions() else 0


def progress():
    """Return what tells lines of progress in place, at most five times a second, and faults."""
    last = [0.0]

    def tell(line: str) -> None:
        if "DOES NOT HOLD" in line:
            sys.stderr.write(f"\r{line}\n")
        elif time.monotonic() - last[0] > (0.2 if sys.stderr.isatty() else 20):
            last[0] = time.monotonic()
            sys.stderr.write(f"\r{line}" if sys.stderr.isatty() else f"{line}\n")
        sys.stderr.flush()

    return tell


if __name__ == "__main__":
    sys.exit(main())
