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
"""What the line of JSON begins with, among what the packages print."""


@dataclass(frozen=True)
class Outcome:
    """What a run took: seconds a round, and the bytes that its processes held after the last.

    `loss` is the final model's on the first samples of the data; `version` that of the package.
    """

    cpu: float
    wall: float
    memory: int
    loss: float
    version: str


def measure(peer: str, task_name: str, rounds: int) -> Outcome:
    """Run a package's rounds on a task and one round before, which is not measured."""
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks.peers.packages import PEERS
    from benchmarks.peers.workloads import TASKS
    from benchmarks.processes import Stopwatch, memory

    torch.set_num_threads(1)
    task, package = TASKS[task_name], PEERS[peer].package
    program = importlib.import_module(f"benchmarks.peers.programs.{peer}")
    watch, found, done = Stopwatch(os.getpid()), list[tuple[float, float, int]](), 0

    def after_round() -> None:
        nonlocal done
        done += 1
        if done == rounds + 1:
            found.append((*watch.seconds(), memory(os.getpid())))
        elif done == 1:
            watch.start()

    model = program.run(task, rounds + 1, after_round)
    wall, cpu, held = found[0]
    inputs, labels = (tensor[:1000] for tensor in task.data())
    model.eval()
    with torch.no_grad():
        loss = cross_entropy(model(inputs), labels).item()
    return Outcome(cpu / rounds, wall / rounds, held, loss, version(package))


def main(given: Sequence[str]) -> None:
    """Measure, and print what was found."""
    peer, task, rounds = given
    print(MARK + json.dumps(asdict(measure(peer, task, int(rounds)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
