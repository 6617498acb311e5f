"""Cores, threads and memory of the machine, as far as this process uses them."""

import contextlib
import ctypes
import functools
import os
import sys


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


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Values of the constants M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in glibc's malloc.h."""


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep the memory of freed arrays for new arrays; only the first call has an effect.

    By default, glibc returns the memory of a large freed array to the system at once, and is given
    zeroed pages for the next array. Training creates and frees the same arrays at every step. The
    process then keeps the memory of its peak use, as with most other allocators.

    Another C library is not changed, and nothing if the user has set a threshold of glibc's.
    """
    if any(name.startswith(("GLIBC_TUNABLES", "MALLOC_")) for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):  # The C library is not glibc.
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for threshold in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            # Older versions of glibc accept at most 1 << 25 for mmap.
            _ = mallopt(threshold, 1 << 30) or mallopt(threshold, 1 << 25)
