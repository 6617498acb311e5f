"""What else runs on the machine, which a measurement waits for; and how it tells how far it is."""

import os
import sys
import time

BUSY = 0.5
"""Load beyond a measurement's own from which the page warns."""
PATIENCE = 180.0
"""Longest that a measurement waits, in seconds, for the load of what ran before it to fall."""


def say(line: str) -> None:
    """Tell how far a measurement is."""
    print(line, file=sys.stderr, flush=True)


def wait_until_idle() -> None:
    """Let the load of what ran before fall, such as that of the last workload."""
    if (load := os.getloadavg()[0]) > BUSY:
        say(f"the load is {load:.1f}: waiting up to {PATIENCE:.0f} s until it is {BUSY}")
    end = time.monotonic() + PATIENCE
    while os.getloadavg()[0] > BUSY and time.monotonic() < end:
        time.sleep(1)
