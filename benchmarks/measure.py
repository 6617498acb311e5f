"""Measure all runners of a workload, alternating, and relate their times."""

import os
import platform
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
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
"""Rounds that are measured however short the time is."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where a method's rounds run.

    Parameters
    ----------
    title : str
        May hold {workers}.
    program : Program, optional
        What runs there in a process of this command; None is `flwr run`.
    against : str
        The place of the plain loop whose times divide these; "" of the first of them.
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
    """Return what is measured of a workload: (method, place).

    Rounds of heads take milliseconds, which is no work for two processes.
    """
    places = ["plain", "local"] if workload.heads else list(PLACES)
    places = [place for place in places if simulate or PLACES[place].program]
    return [(method, place) for method in workload.methods for place in places]


@dataclass
class Measurement:
    """What a workload gave: its rounds' seconds and peak bytes by "METHOD PLACE"."""

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
        """Return the plain loop that a runner is held against, "" if it is held against none."""
        method, place = runner.split()
        other = PLACES[place].against
        return f"{method} {other}" if other else ""

    def ratio(self, runner: str, kind: str) -> float:
        """Return a runner's median seconds over those of what it is held against."""
        against = self.against(runner) or runner
        return median(self.seconds[runner][kind]) / median(self.seconds[against][kind])

    def goal(self, runner: str) -> float | None:
        """Return what a ratio should not exceed, if something is set; the goals are a CPU's."""
        if self.machine["gpu"]:
            return None
        return WORKLOADS[self.workload].goals.get(runner.split()[1])

    def title(self, runner: str) -> str:
        """Return a runner's title."""
        method, place = runner.split()
        return f"{NAMES[method]}, {PLACES[place].title.format(workers=self.workers)}"

    def busy(self, threshold: float) -> bool:
        """Whether something else ran: before, or beside at most `workers` busy processes."""
        during = median(self.load) if self.load else 0.0
        before: float = self.machine["load_before"]
        return before > threshold or during > self.workers + threshold

    def as_json(self) -> dict[str, Any]:
        """Return plain values, from which `Measurement(**values)` is made again."""
        return asdict(self)


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return what the numbers depend on: processor, versions, and what else was running."""
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
        **{name: version(name) for name in ("torch", "flwr", "ray")},
        "gpu": _gpu() if device == "cuda" else "",
        "load_before": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def _gpu() -> str:
    """Return the GPU's name, memory, and what drives it."""
    import torch

    found = torch.cuda.get_device_properties(0)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    memory = f"{found.total_memory / 2**30:.0f} GiB"
    return f"{found.name}, {memory}, CUDA {torch.version.cuda}, cuDNN {cudnn}"


def portions(rounds: int, parts: int) -> list[int]:
    """Cut `rounds` into `parts` that differ by at most one; empty ones are left out."""
    found = [(rounds + part) // parts for part in reversed(range(parts))]
    return [part for part in found if part]


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
    `flwr run` cannot wait for its turn, so its rounds come in blocks, between blocks of the
    others: before, between and after.

    Parameters
    ----------
    blocks : int
        Blocks that the rounds of `flwr run` are cut into; each starts Ray anew.
    workers : int
        Processes, actors or hosting nodes.
    simulate : bool
        False leaves `flwr run` out.
    limit : float
        Seconds, with the start, after which no further turn is begun, but for the first `FEWEST`.
    """
    end, workload = time.monotonic() + limit, WORKLOADS[name]
    found = Measurement(name, workers, machine(device))
    with ExitStack() as stack:
        residents, simulations, peaks = dict[str, Resident](), dict[str, Simulation](), {}
        for method, place in runners(workload, simulate=simulate):
            runner, program = f"{method} {place}", PLACES[place].program
            if program is None:
                simulations[runner], peaks[runner] = Simulation(method, workers), Peak()
                continue
            say(f"{name}: starting {found.title(runner)}")
            residents[runner] = Resident(program, workload, method, workers, device)
            stack.callback(residents[runner].close)
            # One after the other: two Rays that start at once on two cores may time out.
            residents[runner].begin()
        runs = portions(rounds, blocks) if simulations else []
        turns = portions(rounds, len(runs) + 1)
        for number, part in enumerate(turns):
            say(f"{name}: block {number + 1} of {len(turns)}, {part} rounds each")
            alternate(residents, part, found, end)
            for runner, simulation in simulations.items() if number < len(runs) else ():
                say(f"{name}: {found.title(runner)}")
                found.add(runner, simulation.run(name, runs[number], peaks[runner]))
        peaks |= {runner: resident.peak for runner, resident in residents.items()}
    found.peak_bytes = {runner: peak.bytes for runner, peak in peaks.items()}
    return found


def alternate(
    residents: dict[str, Resident], rounds: int, found: Measurement, end: float = float("inf")
) -> None:
    """Run one unmeasured round of every resident, then `rounds` in turns."""
    for resident in residents.values():
        resident.round()
    for turn in range(rounds):
        if turn >= FEWEST and time.monotonic() > end:
            return
        for runner, resident in residents.items():
            found.add(runner, [resident.round()])
        found.load.append(os.getloadavg()[0])
