"""Runners in separate processes that run one round on request, so that they can alternate.

Between its rounds a process waits on a pipe, without computing. This file imports nothing of the
package, because the processes of the plain loops import it.
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
"""Called after every round with an object of the runner; raises an exception to end it."""

Program = Callable[[Workload, str, int, str, Pause], None]
"""Runs rounds of (workload, method, number of processes, device) until its pause raises."""

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
    logging.getLogger("flwr").setLevel(logging.ERROR)  # The import of flwr sets another level.
    with tempfile.TemporaryDirectory() as states:
        grid = LocalGrid(client, run_config=run_config(workload, method, device, states))
        run_rounds(grid, workload, method, ENDLESS, 1, pause)


def on_ray_grid(workload: Workload, method: str, workers: int, device: str, pause: Pause) -> None:
    """Run a method on the Ray grid, with `workers` actors."""
    import ray

    from benchmarks.federation import client, run_config, run_rounds
    from coprefl_flwr.grids import RayGrid

    logging.getLogger("flwr").setLevel(logging.ERROR)
    # A separate folder, so that another runner's Ray, or Flower's, does not find this Ray.
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
    """A program in a separate process. Its first round begins at once and is never measured."""

    def __init__(
        self, program: Program, workload: Workload, method: str, workers: int, device: str
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        arguments = (program, workload, method, workers, device, there)
        # Not a daemon, because a daemon may start no processes.
        self.process = context.Process(target=_reside, args=arguments)
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
                raise RuntimeError(
                    "the process of a runner ended too early; its error is above"
                ) from None
        return seconds

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join()


def _reside(
    program: Program, workload: Workload, method: str, workers: int, device: str, pipe: Connection
) -> None:
    """Run `program`, send the seconds of every round, and end when the pipe closes."""
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
