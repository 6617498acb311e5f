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

from benchmarks.memory import Peak
from benchmarks.residents import (
    Program,
    Resident,
    bare_one_process,
    bare_several_processes,
    coprefl_on_local_grid,
    fedavg_on_local_grid,
)
from benchmarks.simulated import Simulation
from benchmarks.workloads import WORKLOADS

BARE_THREADS, BARE_PROCESSES = "bare-threads", "bare-processes"
FASTER_BARE = "faster-bare"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Runner:
    """One line of the table.

    Parameters
    ----------
    title : str
        May hold {workers} and {clients}.
    against : str
        Name of the runner whose time divides this one's; "faster-bare" is the faster plain loop.
    goal : float, optional
        What the ratio should not exceed.
    """

    title: str
    against: str = FASTER_BARE
    goal: float | None = None


RUNNERS = {
    BARE_THREADS: Runner("plain PyTorch, 1 process x {workers} threads"),
    BARE_PROCESSES: Runner("plain PyTorch, {workers} processes x 1 thread"),
    "local-fedavg": Runner("FedAvg, local grid, 1 x {workers} threads", BARE_THREADS, 1.05),
    "local-coprefl": Runner("CoPreFL, local grid, 1 x {workers} threads", BARE_THREADS),
    "hosted-fedavg": Runner("FedAvg, flwr run, {workers} hosting nodes", goal=1.15),
    "hosted-coprefl": Runner("CoPreFL, flwr run, {workers} hosting nodes"),
    "alone-fedavg": Runner("FedAvg, flwr run, a node per client ({clients})"),
}
RESIDENTS: dict[str, Program] = {
    BARE_THREADS: bare_one_process,
    BARE_PROCESSES: bare_several_processes,
    "local-fedavg": fedavg_on_local_grid,
    "local-coprefl": coprefl_on_local_grid,
}


@dataclass
class Measurement:
    """What one workload gave: seconds of the measured rounds, and peak bytes, by runner."""

    workload: str
    workers: int
    blocks: int
    machine: dict[str, Any]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)

    def faster_bare(self) -> str:
        """Return the name of the faster plain loop."""
        return min((BARE_THREADS, BARE_PROCESSES), key=lambda name: median(self.seconds[name]))

    def ratio(self, name: str) -> float:
        """Return a runner's median seconds over those of what it is held against."""
        against = RUNNERS[name].against
        if against == FASTER_BARE:
            against = self.faster_bare()
        return median(self.seconds[name]) / median(self.seconds[against])

    def title(self, name: str) -> str:
        """Return a runner's title."""
        clients = WORKLOADS[self.workload].clients
        return RUNNERS[name].title.format(workers=self.workers, clients=clients)

    def as_json(self) -> dict[str, Any]:
        """Return plain values, from which `Measurement(**values)` is made again."""
        return asdict(self)


def machine() -> dict[str, Any]:
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
        "load_before": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def portions(rounds: int, blocks: int) -> list[int]:
    """Cut `rounds` into `blocks` parts that differ by at most one; empty ones are left out."""
    parts = [(rounds + block) // blocks for block in reversed(range(blocks))]
    return [part for part in parts if part]


def measure(
    name: str, rounds: int, blocks: int, workers: int, say: Say, *, simulate: bool = True
) -> Measurement:
    """Measure `rounds` rounds of every runner of the workload `name`.

    The runners in processes of this command alternate round by round (A B C A B C ...). A
    `flwr run` cannot wait for its turn, so its rounds come in blocks, between blocks of the
    others: before, between and after.

    Parameters
    ----------
    rounds : int
        Rounds of each `flwr run` runner, and at least as many of the others.
    blocks : int
        Blocks that the rounds of `flwr run` are cut into; each starts Ray anew.
    workers : int
        Threads, processes, or hosting nodes.
    simulate : bool
        False leaves `flwr run` out.
    """
    found = Measurement(name, workers, blocks, machine())
    simulations = {
        "hosted-fedavg": Simulation("fedavg", workers, hosting=True),
        "hosted-coprefl": Simulation("coprefl", workers, hosting=True),
        "alone-fedavg": Simulation("fedavg", WORKLOADS[name].clients, hosting=False),
    }
    peaks = {runner: Peak() for runner in simulations} if simulate else {}
    with ExitStack() as stack:
        residents = {}
        for runner, program in RESIDENTS.items():
            residents[runner] = Resident(program, WORKLOADS[name], workers)
            stack.callback(residents[runner].close)
        parts = portions(rounds, blocks)
        for number, part in enumerate(parts, start=1):
            say(f"{name}: block {number} of {len(parts)}, {part} rounds each")
            alternate(residents, part, found)
            for runner, peak in peaks.items():
                say(f"{name}: {found.title(runner)}")
                seconds = simulations[runner].run(name, part, peak)
                found.seconds.setdefault(runner, []).extend(seconds)
        if peaks:
            alternate(residents, parts[-1], found)
        found.peak_bytes = {r: resident.peak.bytes for r, resident in residents.items()}
    found.peak_bytes |= {runner: peak.bytes for runner, peak in peaks.items()}
    return found


def alternate(residents: dict[str, Resident], rounds: int, found: Measurement) -> None:
    """Run one unmeasured round of every resident, then `rounds` in turns."""
    for resident in residents.values():
        resident.round()
    for _ in range(rounds):
        for runner, resident in residents.items():
            found.seconds.setdefault(runner, []).append(resident.round())
