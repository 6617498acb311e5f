"""Memory and CPU time of a process tree."""

import os
import subprocess
import sys

import pytest

from benchmarks.processes import Peak, child_of, memory, tree, watched


def test_children_count():
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


SPIN = "import time\nwhile time.process_time() < {0}: pass\n"
WATCHED = f"""
import os, subprocess, sys, time
from benchmarks.processes import Stopwatch

def read():
    before = time.process_time()
    wall, cpu = watch.seconds()
    print(before, wall, cpu, time.process_time(), flush=True)

watch = Stopwatch(os.getpid())
began = time.process_time()
read()
while time.process_time() < began + 0.2: pass
read()
spin = {SPIN.format(0.3)!r}
subprocess.run([sys.executable, "-c", spin], check=True)  # Ends, and is waited for.
ended = os.times()
print(ended.children_user + ended.children_system)
telling = spin + "print(time.process_time(), flush=True); input(); print(time.process_time())"
pipe = subprocess.PIPE
alive = subprocess.Popen([sys.executable, "-c", telling], stdin=pipe, stdout=pipe, text=True)
print(alive.stdout.readline().strip())
read()
print(alive.communicate("\\n")[0].strip())
watch.start()
read()
"""


def test_cpu_seconds_are_of_the_process_and_of_what_it_started():
    """The tree is separate, and compared with its processes' own clocks: other load is ignored."""
    found = subprocess.run([sys.executable, "-c", WATCHED], check=True, capture_output=True)
    first, second, (ended,), (asked,), third, (last,), again = (
        [float(word) for word in line.split()] for line in found.stdout.splitlines()
    )
    tick = 2 / os.sysconf("SC_CLK_TCK")  # Twice the precision of an ended process's time.
    for before, after, others in (
        (first, second, (0.0, 0.0)),
        (second, third, (ended + asked, ended + last)),
    ):
        least = after[0] - before[3] + others[0] - tick
        most = after[3] - before[0] + others[1] + tick
        assert least <= after[2] - before[2] <= most
        assert after[1] > before[1]
    assert second[2] - first[2] >= 0.2 - tick
    assert third[2] - second[2] >= 0.6 - tick
    assert again[2] <= again[3] - third[0] + tick
    assert again[2] < third[2]


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
