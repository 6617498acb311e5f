"""Measure one package on one workload in this process: `python -m benchmarks.peers.one`.

Prints one line of JSON. The first round is not measured: it starts workers and fills caches.
"""

import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version

MARK = "measured: "
"""The beginning of the line of JSON; the packages print other lines."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run: seconds per round, and memory in bytes after the last round.

    `loss` is that of the final model on the first 1,000 samples; `version` is the package's.
    """

    cpu: float
    wall: float
    memory: int
    loss: float
    version: str


def measure(peer: str, task_name: str, rounds: int) -> Outcome:
    """Measure a package's rounds on a task, after one round that is not measured."""
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks.peers.packages import PEERS
    from benchmarks.peers.workloads import TASKS
    from benchmarks.processes import Stopwatch, memory

    torch.set_num_threads(1)
    task, package = TASKS[task_name], PEERS[peer].package
    program = importlib.import_module(f"benchmarks.peers.programs.{peer}")
    watch, measured, done = Stopwatch(os.getpid()), list[tuple[float, float, int]](), 0

    def after_round() -> None:
        nonlocal done
        done += 1
        if done == rounds + 1:
            measured.append((*watch.seconds(), memory(os.getpid())))
        elif done == 1:
            watch.start()

    model = program.run(task, rounds + 1, after_round)
    wall, cpu, bytes_in_memory = measured[0]
    inputs, labels = (tensor[:1000] for tensor in task.data())
    model.eval()
    with torch.no_grad():
        loss = cross_entropy(model(inputs), labels).item()
    return Outcome(cpu / rounds, wall / rounds, bytes_in_memory, loss, version(package))


def main(argv: Sequence[str]) -> None:
    """Measure, and print the outcome."""
    peer, task, rounds = argv
    print(MARK + json.dumps(asdict(measure(peer, task, int(rounds)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
