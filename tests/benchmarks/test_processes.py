"""Memory and CPU time of a process tree."""

import os
import subprocess
import sys

from benchmarks.processes import Peak, memory, tree, watched


def test_peak_of_memory_includes_child_processes():
    """The tree is separate, because this process may free memory of earlier tests meanwhile."""
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


def test_cpu_seconds_include_a_child_process_that_has_ended():
    """The tree is separate: a child with 0.3 s of CPU time ends while the stopwatch runs."""
    child = "import time\nwhile time.process_time() < 0.3: pass\n"
    program = (
        "import os, subprocess, sys\nfrom benchmarks.processes import Stopwatch\n"
        "watch = Stopwatch(os.getpid())\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
        "print(watch.seconds()[1])\n"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert 0.28 < float(found.stdout) < 1
