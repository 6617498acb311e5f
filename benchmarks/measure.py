"""Measure all runners of a workload in turns, and compare their times.

A runner is a method at a place, such as FedAvg on the local grid.
"""

import os
import platform
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.processes import Peak
from benchmarks.residents import (
    Program,
    Resident,
    on_local_grid,
    on_ray_grid,
    plain,
    plain_processes,
)
from benchmarks.simulated import Simulation
from benchmarks.workloads import WORKLOADS, Workload

WALL, CPU = "wall", "cpu"
FEWEST = 2
"""Smallest number of measured rounds, whatever the time limit."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where a method's rounds run.

    Parameters
    ----------
    title : str
        May contain {workers}.
    program : Program, optional
        The program that runs in a process of this command; None: `flwr run`.
    against : str
        The place of the plain loop to compare with; "" for the first plain loop.
    """

    title: str
    program: Program | None
    against: str = ""


PLACES = {
    "plain": Place("plain loop, 1 process", plain),
    "plain-processes": Place("plain loop, {workers} processes", plain_processes, "plain"),
    "local": Place("local grid", on_local_grid, "plain"),
    "ray": Place("Ray grid, {workers} actors", on_ray_grid, "plain-processes"),
    "flwr": Place("flwr run, {workers} nodes", None, "plain-processes"),
}
NAMES = {"fedavg": "FedAvg", "coprefl": "CoPreFL", "fedpcl": "FedPCL"}


def runners(workload: Workload, *, simulate: bool = True) -> list[tuple[str, str]]:
    """Return the runners of a workload, each as (method, place).

    Heads have no runner with two processes, because their rounds take only milliseconds.
    """
    places = ["plain", "local"] if workload.heads else list(PLACES)
    places = [place for place in places if simulate or PLACES[place].program]
    if find_spec("ray") is None:  # On a machine that has PyTorch alone.
        places = [place for place in places if place not in ("ray", "flwr")]
    return [(method, place) for method in workload.methods for place in places]


@dataclass
class Measurement:
    """The results of a workload: seconds of its rounds and peak bytes by "METHOD PLACE"."""

    workload: str
    workers: int
    machine: dict[str, Any]
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)

    def add(self, runner: str, rounds: list[tuple[float, float]]) -> None:
        """Add rounds, as (wall, CPU) seconds."""
        of = self.seconds.setdefault(runner, {WALL: [], CPU: []})
        for wall, cpu in rounds:
            of[WALL].append(wall)
            of[CPU].append(cpu)

    def against(self, runner: str) -> str:
        """Return the plain loop to compare a runner with, "" if there is none."""
        method, place = runner.split()
        other = PLACES[place].against
        return f"{method} {other}" if other else ""

    def ratio(self, runner: str, kind: str) -> float:
        """Return a runner's median seconds / those of the plain loop to compare with."""
        against = self.against(runner) or runner
        return median(self.seconds[runner][kind]) / median(self.seconds[against][kind])

    def goal(self, runner: str) -> float | None:
        """Return the goal for the ratio, None if there is none; there are no goals on a GPU."""
        if self.machine["gpu"]:
            return None
        return WORKLOADS[self.workload].goals.get(runner.split()[1])

    def title(self, runner: str) -> str:
        """Return a runner's title."""
        method, place = runner.split()
        return f"{NAMES[method]}, {PLACES[place].title.format(workers=self.workers)}"

    def busy(self, threshold: float) -> bool:
        """Return whether other programs ran, before or during the measurement."""
        during = median(self.load) if self.load else 0.0
        before: float = self.machine["load_before"]
        cores: int = self.machine["cores"]
        others = max(threshold, cores / 8)  # A large machine has cores to spare.
        return before > others or during > self.workers + others

    def as_json(self) -> dict[str, Any]:
        """Return plain values; `Measurement(**values)` is an equal measurement."""
        return asdict(self)


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return the processor, versions, load and date, on which the numbers depend."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "flwr", "ray")},
        "gpu": _gpu() if device == "cuda" else "",
        "load_before": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _gpu() -> str:
    """Return the GPU's name and memory, and the versions of CUDA and cuDNN."""
    import torch

    device = torch.cuda.get_device_properties(0)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    memory = f"{device.total_memory / 2**30:.0f} GiB"
    return f"{device.name}, {memory}, CUDA {torch.version.cuda}, cuDNN {cudnn}"


def portions(rounds: int, parts: int) -> list[int]:
    """Return the sizes of at most `parts` parts of `rounds`, which differ by at most 1."""
    sizes = [(rounds + part) // parts for part in reversed(range(parts))]
    return [part for part in sizes if part]


def measure(
    name: str,
    rounds: int,
    blocks: int,
    workers: int,
    say: Say,
    *,
    simulate: bool = True,
    device: str = "cpu",
    limit: float = float("inf"),
) -> Measurement:
    """Measure `rounds` rounds of every runner of the workload `name`.

    The runners in processes of this command alternate round by round (A B C A B C ...). A
    `flwr run` cannot pause, so its rounds run in blocks, before, between and after blocks of the
    other runners.

    Parameters
    ----------
    blocks : int
        Number of blocks of `flwr run`, each of which starts Ray again.
    workers : int
        Number of processes, actors or hosting nodes.
    simulate : bool
        False leaves `flwr run` out.
    limit : float
        Seconds, including the start, after which only missing turns up to `FEWEST` begin.
    """
    end, workload = time.monotonic() + limit, WORKLOADS[name]
    measurement = Measurement(name, workers, machine(device))
    with ExitStack() as stack:
        residents, simulations, peaks = dict[str, Resident](), dict[str, Simulation](), {}
        for method, place in runners(workload, simulate=simulate):
            runner, program = f"{method} {place}", PLACES[place].program
            if program is None:
                simulations[runner], peaks[runner] = Simulation(method, workers), Peak()
                continue
            say(f"{name}: starting {measurement.title(runner)}")
            residents[runner] = Resident(program, workload, method, workers, device)
            stack.callback(residents[runner].close)
            # In sequence: two Rays that start at the same time on two cores may time out.
            residents[runner].begin()
        runs = portions(rounds, blocks) if simulations else []
        turns = portions(rounds, len(runs) + 1)
        for number, part in enumerate(turns):
            say(f"{name}: block {number + 1} of {len(turns)}, {part} rounds each")
            alternate(residents, part, measurement, end)
            for runner, simulation in simulations.items() if number < len(runs) else ():
                say(f"{name}: {measurement.title(runner)}")
                measurement.add(runner, simulation.run(name, runs[number], peaks[runner]))
        peaks |= {runner: resident.peak for runner, resident in residents.items()}
    measurement.peak_bytes = {runner: peak.bytes for runner, peak in peaks.items()}
    return measurement


def alternate(
    residents: dict[str, Resident], rounds: int, measurement: Measurement, end: float = float("inf")
) -> None:
    """Run one unmeasured round of every resident, then `rounds` measured rounds in turns."""
    for resident in residents.values():
        resident.round()
    for turn in range(rounds):
        if turn >= FEWEST and time.monotonic() > end:
            return
        for runner, resident in residents.items():
            measurement.add(runner, [resident.round()])
        measurement.load.append(os.getloadavg()[0])
