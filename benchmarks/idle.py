"""Waiting for an idle machine before a measurement, and progress messages."""

import os
import sys
import time

BUSY = 0.5
"""Load of other programs above which the page has a warning."""
PATIENCE = 180.0
"""Longest time, in seconds, that a measurement waits for the load to fall."""


def say(line: str) -> None:
    """Print a progress message."""
    print(line, file=sys.stderr, flush=True)


def wait_until_idle() -> None:
    """Wait until the load of earlier programs, such as the last workload, has fallen."""
    if (load := os.getloadavg()[0]) > BUSY:
        say(f"the load is {load:.1f}: waiting up to {PATIENCE:.0f} s until it is {BUSY}")
    end = time.monotonic() + PATIENCE
    while os.getloadavg()[0] > BUSY and time.monotonic() < end:
        time.sleep(1)
