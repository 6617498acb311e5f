"""Peak memory and CPU time of a process and all its descendants, from Linux's /proc."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EVERY = 0.5
"""Seconds between two samples of the memory; a sample takes some milliseconds of one core."""


def tree(root: int) -> list[int]:
    """Return the process ids of `root` and of all its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := stat(int(folder.name))):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    processes = [root]
    for process in processes:
        processes.extend(children.get(process, []))
    return processes


def stat(process: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, [] if the process has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    # The name of a process, in brackets, may contain spaces.
    return text.rpartition(")")[2].split()


def child_of(parent: int) -> int:
    """Return the child process of `parent` that is this process or its ancestor."""
    process = os.getpid()
    while (above := int(stat(process)[1])) != parent:
        if above <= 1:
            raise RuntimeError(f"process {parent} has not started this one")
        process = above
    return process


def others_cpu(root: int) -> float:
    """Return the CPU seconds of the tree of `root`, without those of this process.

    They include the seconds of processes that have ended and were waited for.
    """
    seconds, tick = 0.0, os.sysconf("SC_CLK_TCK")
    for process in tree(root):
        fields = stat(process)
        if not fields:
            continue
        seconds += (int(fields[13]) + int(fields[14])) / tick
        if process != os.getpid():
            # CPU time of all threads; the clock's id is that of clock_getcpuclockid(3).
            with contextlib.suppress(OSError):
                seconds += time.clock_gettime((~process << 3) | 2)
    return seconds


class Stopwatch:
    """Measures (wall, CPU) seconds since its start; CPU time is that of the tree of `root`.

    This process must be in that tree. The time for reading other processes is not counted.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.start()

    def start(self) -> None:
        """Start again from 0."""
        self._others = others_cpu(self.root)
        self._own, self._wall = time.process_time(), time.perf_counter()

    def seconds(self) -> tuple[float, float]:
        """Return the seconds of wall and of CPU time so far."""
        wall, own = time.perf_counter() - self._wall, time.process_time() - self._own
        return wall, own + others_cpu(self.root) - self._others


def memory(root: int) -> int:
    """Return the memory of a tree of processes, in bytes.

    It is the sum of the unshared memory of the processes plus the largest shared part (libraries,
    shared memory, Ray's object store), which would otherwise be counted once per process.
    """
    private, shared = 0, 0
    for process in tree(root):
        try:
            _, resident, common, *_ = Path(f"/proc/{process}/statm").read_text().split()
        except OSError:
            continue
        private += int(resident) - int(common)
        shared = max(shared, int(common))
    return (private + shared) * os.sysconf("SC_PAGE_SIZE")


class Peak:
    """The largest memory of a tree of processes so far."""

    def __init__(self) -> None:
        self.bytes = 0

    def look(self, root: int) -> None:
        """Update the peak by the current memory of the tree of `root`."""
        self.bytes = max(self.bytes, memory(root))


@contextmanager
def watched(root: int, peak: Peak) -> Iterator[None]:
    """Update the peak every half second inside the block, and once at its end."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(EVERY):
            peak.look(root)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        peak.look(root)
