"""What the C library of this process does with memory that was freed."""

import ctypes
import functools
import os

SET_BY_USER = (
    "GLIBC_TUNABLES",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""Environment variables by which users say themselves what shall be done with it."""

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
