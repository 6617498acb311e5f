"""The machine's cores, threads and freed memory, as this process uses them."""

import ctypes
import functools
import os
import sys

MOST_WORKERS = 10_000
"""Largest allowed number of worker processes, above that of any cluster."""


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def one_thread() -> None:
    """Compute in one thread from now on.

    Threads that wait for each other spin: on a busy machine two take many times as long as one.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # Libraries that are imported later read it.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def load() -> str:
    """Return the load average, such as "the load is 5.3 on 2 cores", or "" if unknown."""
    averages = getattr(os, "getloadavg", None)
    return f"the load is {averages()[0]:.1f} on {cores()} cores" if averages else ""


SET_BY_USER = (
    "GLIBC_TUNABLES",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""Environment variables with which users set malloc's use of freed memory themselves."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What glibc's malloc.h calls M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""

_LARGEST = (1 << 30, 1 << 25)
"""Bytes; the second is the most that older versions take for the second threshold."""


@functools.cache
def keep_freed_memory() -> bool:
    """Have glibc keep the memory of freed arrays for the next ones; once a process.

    It gives that of large ones back to the system at once, and is given zeroed pages for the next:
    training makes and frees the same arrays at every step. A process keeps what it once had at its
    peak, as it does with most other allocators.

    Returns whether it was done: not with another C library, or where the user's environment says
    something of it (see `SET_BY_USER`).
    """
    if any(name in os.environ for name in SET_BY_USER):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # No glibc.
        return False
    return all(
        any(mallopt(threshold, size) == 1 for size in _LARGEST)
        for threshold in (_TRIM_THRESHOLD, _MMAP_THRESHOLD)
    )
