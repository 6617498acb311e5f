"""Memory of a process tree."""

import os
import subprocess
import sys

from benchmarks.memory import Peak, memory, tree, watched


def test_children_count():
    """In a tree of its own: this process has whatever earlier tests left, and gives it back."""
    held = 100 * 2**20
    holding = f"x = bytearray(b'1') * {held}; print('ready', flush=True); input()"
    starting = (
        "import subprocess, sys; print('begun', flush=True); input(); "
        f'subprocess.run([sys.executable, "-c", {holding!r}])'
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", starting], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    parent.stdout.readline()
    before = memory(parent.pid)
    peak = Peak()
    with watched(parent.pid, peak):
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        parent.stdout.readline()
        assert len(tree(parent.pid)) == 2
        peak.look(parent.pid)
        parent.communicate(b"\n")
    assert parent.pid not in tree(os.getpid())
    assert 0.9 * held < peak.bytes - before < 2 * held
