"""Memory and CPU time of a process tree."""

import os
import subprocess
import sys
import time

import pytest

from benchmarks.processes import Peak, Stopwatch, child_of, memory, tree, watched


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


SPIN = "import time\nwhile time.process_time() < 0.3: pass\n"


def test_cpu_seconds_are_of_the_process_and_of_what_it_started():
    watch = Stopwatch(os.getpid())
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    wall, own = watch.seconds()
    assert own == pytest.approx(0.2, abs=0.05)
    assert wall >= own - 0.05
    subprocess.run([sys.executable, "-c", SPIN], check=True)  # Ends, and is waited for.
    alive = subprocess.Popen(
        [sys.executable, "-c", f"{SPIN}print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    alive.stdout.readline()
    assert watch.seconds()[1] - own == pytest.approx(0.6, abs=0.1)
    watch.start()
    time.sleep(0.1)
    assert watch.seconds()[1] < 0.05
    alive.communicate(b"\n")


def test_a_process_finds_which_of_anothers_children_it_descends_from():
    inner = "from benchmarks.processes import child_of; import sys; print(child_of({0}))"
    outer = (
        "import os, subprocess, sys; "
        f"print(os.getpid(), flush=True); subprocess.run([sys.executable, '-c', {inner!r}"
        ".format(os.getppid())], check=True)"
    )
    found = subprocess.run([sys.executable, "-c", outer], check=True, capture_output=True)
    first, second = found.stdout.split()
    assert first == second
    with pytest.raises(RuntimeError, match="has not started this one"):
        child_of(2**22)
