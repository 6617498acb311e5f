"""Runners that stay alive in a process each and do one round when told, so that they can alternate.

Between their rounds they wait on a pipe, which costs nothing. This file imports nothing of the
package, so that the plain loops' processes do not either.
"""

import logging
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.processes import Peak, Stopwatch, watched
from benchmarks.workloads import Workload

Pause = Callable[[Any], None]
"""Called after every round with whatever the runner has at hand; raises to end it."""

Program = Callable[[Workload, str, int, str, Pause], None]
"""Runs rounds of a workload, a method, on so many processes and a device, until it is ended."""

ENDLESS = 1_000_000


def plain(workload: Workload, method: str, _workers: int, device: str, pause: Pause) -> None:
    """Run the plain loop in this process."""
    from benchmarks.bare import one_process
    from benchmarks.bare_heads import fedpcl

    if method == "fedpcl":
        fedpcl(workload, pause, device)
    else:
        one_process(workload, method, pause, device)


def plain_processes(
    workload: Workload, method: str, workers: int, device: str, pause: Pause
) -> None:
    """Run the plain loop in `workers` processes."""
    from benchmarks.bare import several_processes

    several_processes(workload, method, pause, device, processes=workers)


def on_local_grid(
    workload: Workload, method: str, _workers: int, device: str, pause: Pause
) -> None:
    """Run a method on the local grid, in this process."""
    import torch

    from benchmarks.federation import client, run_config, run_rounds
    from coprefl_flwr.grids import LocalGrid

    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # Importing flwr sets another.
    with tempfile.TemporaryDirectory() as states:
        grid = LocalGrid(client, run_config=run_config(workload, method, device, states))
        run_rounds(grid, workload, method, ENDLESS, 1, pause)


def on_ray_grid(workload: Workload, method: str, workers: int, device: str, pause: Pause) -> None:
    """Run a method on the Ray grid, with `workers` actors."""
    import ray

    from benchmarks.federation import client, run_config, run_rounds
    from coprefl_flwr.grids import RayGrid

    logging.getLogger("flwr").setLevel(logging.ERROR)
    # A Ray in a folder of its own: another runner's Ray, or Flower's, must not find it.
    os.environ.pop("RAY_ADDRESS", None)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        grid = RayGrid(client, workers, run_config(workload, method, device, folder))
        try:
            run_rounds(grid, workload, method, ENDLESS, workers, pause)
        finally:
            grid.close()
            ray.shutdown()


class Resident:
    """A program in a process of its own. Its first round runs at once and is never measured."""

    def __init__(
        self, program: Program, workload: Workload, method: str, workers: int, device: str
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        given = (program, workload, method, workers, device, there)
        # Not a daemon, since those may have no processes of their own.
        self.process = context.Process(target=_reside, args=given)
        self.process.start()
        there.close()
        self.peak = Peak()

    def begin(self) -> None:
        """Wait for the end of the first round."""
        self._wait()

    def round(self) -> tuple[float, float]:
        """Run one round and return its seconds of wall and of CPU time."""
        self.pipe.send(None)
        return self._wait()

    def _wait(self) -> tuple[float, float]:
        assert self.process.pid is not None
        with watched(self.process.pid, self.peak):
            try:
                seconds: tuple[float, float] = self.pipe.recv()
            except EOFError:
                self.process.join()
                raise RuntimeError("a runner ended before its time; its error is above") from None
        return seconds

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join()


def _reside(
    program: Program, workload: Workload, method: str, workers: int, device: str, pipe: Connection
) -> None:
    """Run `program`, report every round's seconds, and end when the other side is gone."""
    watch = Stopwatch(os.getpid())

    def pause(_: Any) -> None:
        if device != "cpu":
            import torch

            torch.cuda.synchronize()
        seconds = watch.seconds()
        try:
            pipe.send(seconds)
            pipe.recv()
        except (EOFError, OSError):
            raise SystemExit from None
        watch.start()

    program(workload, method, workers, device, pause)
