"""Cores, threads and memory of the machine, as far as this process uses them."""

import ctypes
import functools
import os
import sys

MOST_WORKERS = 10_000
"""Largest allowed number of worker processes, above that of any cluster."""


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def one_thread() -> None:
    """Limit this process to one compute thread, in torch and in libraries imported later.

    Threads wait for each other in busy loops. On a busy machine, two threads can therefore take
    many times as long as one thread.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # Read by libraries that are imported later.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


SET_BY_USER = (
    "GLIBC_TUNABLES",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""Environment variables by which users configure how malloc handles freed memory."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Values of the constants M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in glibc's malloc.h."""

_LARGEST = (1 << 30, 1 << 25)
"""Thresholds to try, in bytes: older versions of glibc accept at most 1 << 25 for mmap."""


@functools.cache
def keep_freed_memory() -> bool:
    """Make glibc keep the memory of freed arrays for new arrays; only the first call has an effect.

    By default, glibc returns the memory of a large freed array to the system at once, and is given
    zeroed pages for the next array. Training creates and frees the same arrays at every step. The
    process then keeps the memory of its peak use, as with most other allocators.

    Returns True if glibc accepted the thresholds. Returns False with another C library, or if the
    user has set one of the environment variables `SET_BY_USER`.
    """
    if any(name in os.environ for name in SET_BY_USER):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # The C library is not glibc.
        return False
    return all(
        any(mallopt(threshold, size) == 1 for size in _LARGEST)
        for threshold in (_TRIM_THRESHOLD, _MMAP_THRESHOLD)
    )
