"""`make chaos`: run many cases of the tests in this folder.

python -m tests.chaos [KIND ...] [--seed N] [--count KIND=N ...]
"""

import argparse
import os
import sys
from pathlib import Path

import pytest

from tests.chaos import draws

FILES = {
    "kills": ("test_kills.py", 100),
    "overlaps": ("test_overlaps.py", 24),
    "hostile": ("test_hostile.py", 1500),
}
"""By kind: its file and its number of cases."""


def main() -> int:
    """Run the kinds; the exit status is 0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", choices=[*FILES, []])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", action="append", default=[], metavar="KIND=N")
    given = parser.parse_args()
    counts = dict(one.partition("=")[::2] for one in given.count)
    kinds = given.kinds or list(FILES)
    draws.SEED = given.seed
    draws.NUMBERS.update({kind: int(counts.get(kind, FILES[kind][1])) for kind in kinds})
    os.environ["OMP_NUM_THREADS"] = "1"
    files = [str(Path(__file__).with_name(FILES[kind][0])) for kind in kinds]
    options = ["--tb=short", "-W", "ignore", "--show-capture=no", "--durations=3"]
    options += ["-o", "tmp_path_retention_policy=failed", "-p", "no:cacheprovider"]
    return int(pytest.main([*files, *options]))


if __name__ == "__main__":
    sys.exit(main())
