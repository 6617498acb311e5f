"""Memory of a process tree."""

import os
import subprocess
import sys

from benchmarks.memory import Peak, memory, tree, watched


def test_children_count():
    held = 100 * 2**20
    code = f"x = bytearray(b'1') * {held}; print('ready', flush=True); input()"
    before = memory(os.getpid())
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    peak = Peak()
    with watched(os.getpid(), peak):
        child.stdout.readline()
        assert child.pid in tree(os.getpid())
        peak.look(os.getpid())
        child.communicate(b"\n")
    assert child.pid not in tree(os.getpid())
    assert 0.9 * held < peak.bytes - before < 2 * held
