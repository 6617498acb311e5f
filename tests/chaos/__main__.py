"""`make chaos`: run many cases of the property tests in this folder, and print a table.

python -m tests.chaos [KIND ...] [--seed N] [--count KIND=N ...]
"""

import argparse
import os
import sys
from pathlib import Path

import pytest

from tests.chaos import length

FILES = {
    "kills": ("test_kills.py", 100),
    "overlaps": ("test_overlaps.py", 32),
    "hostile": ("test_hostile.py", 3000),
    "deployed": ("deployed.py", 4),
}
"""By kind: its file and its number of cases. If a table has fewer cases, all of them run."""


def main() -> int:
    """Run the kinds; the exit status is 0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(FILES)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", action="append", default=[], metavar="KIND=N")
    given = parser.parse_args()
    counts = dict(one.partition("=")[::2] for one in given.count)
    if unknown := {*given.kinds, *counts} - FILES.keys():
        parser.error(f"unknown kind {', '.join(sorted(unknown))}: known are {', '.join(FILES)}")
    kinds = given.kinds or list(FILES)
    length.SEED = given.seed
    length.LENGTHS.update({kind: int(counts.get(kind, FILES[kind][1])) for kind in kinds})
    os.environ["OMP_NUM_THREADS"] = "1"
    files = [str(Path(__file__).with_name(FILES[kind][0])) for kind in kinds]
    options = ["--tb=short", "-W", "ignore", "--capture=sys", "--show-capture=no"]
    options += ["-o", "tmp_path_retention_policy=failed"]
    status = pytest.main([*files, *options, f"--hypothesis-seed={given.seed}"])
    print(length.table())
    if status:
        print(f"to repeat what failed: the same numbers with --seed {given.seed}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
