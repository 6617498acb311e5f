"""Runners that stay alive in a process each and do one round when told, so that they can alternate.

Between their rounds they wait on a pipe, which costs nothing.
"""

import functools
import logging
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.memory import Peak, watched
from benchmarks.workloads import Workload

Pause = Callable[[Any], None]
"""Called after every round with whatever the runner has at hand; raises to end it."""

Program = Callable[[Workload, int, Pause], None]
"""Runs rounds of a workload with so many threads or processes until the pause raises."""

ENDLESS = 1_000_000


def bare_one_process(workload: Workload, workers: int, pause: Pause) -> None:
    """Run the plain loop in one process of `workers` threads."""
    from benchmarks.bare import one_process

    one_process(workload, workers, pause)


def bare_several_processes(workload: Workload, workers: int, pause: Pause) -> None:
    """Run the plain loop in `workers` processes of one thread."""
    from benchmarks.bare import several_processes

    several_processes(workload, workers, pause)


def on_local_grid(method: str, workload: Workload, workers: int, pause: Pause) -> None:
    """Run a method on the local grid, in one process of `workers` threads."""
    import torch

    from benchmarks.federation import client, run_rounds
    from benchmarks.workloads import WORKLOADS
    from coprefl_flwr.grids import LocalGrid

    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(workers)
    (name,) = (name for name, known in WORKLOADS.items() if known == workload)
    grid = LocalGrid(client, run_config={"workload": name, "method": method, "hosting": True})
    run_rounds(grid, workload, method, ENDLESS, 1, pause)


fedavg_on_local_grid = functools.partial(on_local_grid, "fedavg")
coprefl_on_local_grid = functools.partial(on_local_grid, "coprefl")


class Resident:
    """A program in a process of its own. Its first round runs at once and is never measured."""

    def __init__(self, program: Program, workload: Workload, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        # Not a daemon, since those may have no processes of their own.
        self.process = context.Process(target=_reside, args=(program, workload, workers, there))
        self.process.start()
        there.close()
        self.peak = Peak()
        self._wait()

    def round(self) -> float:
        """Run one round and return its seconds."""
        self.pipe.send(None)
        return self._wait()

    def _wait(self) -> float:
        assert self.process.pid is not None
        with watched(self.process.pid, self.peak):
            try:
                seconds: float = self.pipe.recv()
            except EOFError:
                self.process.join()
                raise RuntimeError("a runner ended before its time; its error is above") from None
        return seconds

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join()


def _reside(program: Program, workload: Workload, workers: int, pipe: Connection) -> None:
    """Run `program`, report every round's seconds, and end when the other side is gone."""
    before = time.perf_counter()

    def pause(_: Any) -> None:
        nonlocal before
        seconds = time.perf_counter() - before
        try:
            pipe.send(seconds)
            pipe.recv()
        except (EOFError, OSError):
            raise SystemExit from None
        before = time.perf_counter()

    program(workload, workers, pause)
