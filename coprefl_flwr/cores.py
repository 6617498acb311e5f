"""The cores that a process may use, how busy they are, and how to compute in one thread."""

import os
import sys

MOST_WORKERS = 10_000
"""More processes than the largest cluster runs at once."""


def cores() -> int:
    """Return how many cores this process may use."""
    given = getattr(os, "sched_getaffinity", None)
    return len(given(0)) if given else os.cpu_count() or 1


def one_thread() -> None:
    """Compute in one thread from now on.

    Threads that wait for each other spin: on a busy machine two take many times as long as one.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # Libraries that are imported later read it.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def load() -> str:
    """Return e.g. "the load is 5.3 on 2 cores": how much wants to be computed; "" if not known."""
    asked = getattr(os, "getloadavg", None)
    return f"the load is {asked()[0]:.1f} on {cores()} cores" if asked else ""
