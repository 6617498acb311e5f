"""Measure FedAvg of several packages and in plain PyTorch; write docs/peers.{json,md,png}.

The packages run in turns, each run in a new process. --install installs missing packages into
.peers/, each into a separate environment.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.idle import say
from benchmarks.peers.one import MARK, Outcome
from benchmarks.peers.packages import PEERS, ROOT, Peer
from benchmarks.peers.page import UNIT, Comparison, stored, write_page
from benchmarks.peers.workloads import REAL, TASKS

DOCS = ROOT / "docs"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument(
        "tasks",
        nargs="*",
        metavar="WORKLOAD",
        help=f"of {', '.join(REAL)} (default: all); the page keeps the others' last results",
    )
    parser.add_argument("--turns", type=int, default=3, help="runs of each package (default 3)")
    parser.add_argument("--rounds", type=int, help="measured rounds (default: the workload's own)")
    parser.add_argument(
        "--packages",
        nargs="+",
        choices=list(PEERS),
        default=list(PEERS),
        metavar="PACKAGE",
        help=f"of {', '.join(PEERS)} (default: all); the plain loop is the unit and always runs",
    )
    parser.add_argument("--install", action="store_true", help="install what is missing first")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the page (docs)")
    chosen = parser.parse_args(argv)
    for name in chosen.tasks:
        if name not in TASKS:
            parser.error(f"workload '{name}': allowed are {', '.join(TASKS)}")
    for option in ("turns", "rounds"):
        value = getattr(chosen, option)
        if value is not None and value < 1:
            parser.error(f"--{option} {value}: at least 1 is needed")
    chosen.tasks = chosen.tasks or list(REAL)
    chosen.packages = [name for name in PEERS if name in (UNIT, *chosen.packages)]
    return chosen


def run(peer: Peer, task: str, rounds: int) -> Outcome:
    """Measure a package in a new process."""
    command = [str(peer.python), "-m", "benchmarks.peers.one", peer.name, task, str(rounds)]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=peer.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith(MARK)]
    if ended.returncode or not lines:
        raise RuntimeError(f"{peer.title} on {task} failed; its end:\n{ended.stdout[-4000:]}")
    return Outcome(**json.loads(lines[-1].removeprefix(MARK)))


def measure(task: str, rounds: int, turns: int, peers: Sequence[Peer]) -> Comparison:
    """Run each package `turns` times, in turns."""
    from benchmarks.measure import machine

    comparison = Comparison(task, rounds, machine())
    for turn in range(turns):
        for peer in peers:
            comparison.load.append(os.getloadavg()[0])
            outcome = run(peer, task, rounds)
            comparison.add(peer.name, outcome)
            say(f"{task}, turn {turn + 1} of {turns}, {peer.title}: {outcome.cpu:.4f} CPU s/round")
    return comparison


def installed_peers(names: Sequence[str], install: bool) -> list[Peer]:
    """Return the installed packages; print the names of the missing ones."""
    peers = [PEERS[name] for name in names]
    for peer in peers:
        if install and not peer.installed():
            say(f"installing {peer.requirement}")
            peer.install()
    missing = [peer.title for peer in peers if not peer.installed()]
    if missing:
        say(f"not installed, so not measured (--install installs them): {', '.join(missing)}")
    return [peer for peer in peers if peer.installed()]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the workloads in sequence; the page is written after each."""
    chosen = arguments(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    peers = installed_peers(chosen.packages, chosen.install)
    results = stored(chosen.output)
    for name in chosen.tasks:
        results[name] = measure(name, chosen.rounds or TASKS[name].rounds, chosen.turns, peers)
        chosen.output.mkdir(parents=True, exist_ok=True)
        write_page(chosen.output, results)
    print(chosen.output / "peers.md")


if __name__ == "__main__":
    main()
