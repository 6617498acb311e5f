"""Peak memory of a process and all it started, from Linux's /proc."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EVERY = 0.5
"""Seconds between two looks; one costs some milliseconds of one core."""


def tree(root: int) -> list[int]:
    """Return the ids of `root` and of all its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # The name of a process, in brackets, may hold spaces.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # It has ended meanwhile.
                continue
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [root]
    for process in found:
        found.extend(children.get(process, []))
    return found


def memory(root: int) -> int:
    """Return the bytes that a tree of processes holds in memory.

    That is what each has for itself, plus the largest of their shared parts (libraries, shared
    memory, Ray's object store), which would otherwise be counted once per process.
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
    """The most memory seen so far."""

    def __init__(self) -> None:
        self.bytes = 0

    def look(self, root: int) -> None:
        """Take in what the tree of `root` holds now."""
        self.bytes = max(self.bytes, memory(root))


@contextmanager
def watched(root: int, peak: Peak) -> Iterator[None]:
    """Look at the tree of `root` every half second, inside the block and once at its end."""
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
