"""Growth of time and memory with nodes, clients, participants, the model, rounds and tasks.

`python -m benchmarks.scale` varies one of these numbers, with the others fixed. It writes
docs/scale.json, docs/scale.png and the section "Growth" of docs/performance.md. Except where the
model grows, clients compute almost nothing, so the result is that of this package and of Flower's
messages.
"""

import argparse
import contextlib
import ctypes
import functools
import io
import json
import logging
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.growth import (
    HOSTED,
    MEGABYTE,
    PARTICIPANTS,
    ROUNDS,
    RUNS,
    Growth,
    Point,
    draw,
    seconds_of,
    section,
)
from benchmarks.idle import say, wait_until_idle
from benchmarks.measure import machine
from benchmarks.report import stored_results, write_page
from coprefl_flwr.arrays import to_record
from coprefl_flwr.client_app import app as study_app
from coprefl_flwr.clients import CoPreFLClient, TorchClient, client_app
from coprefl_flwr.data import as_samples
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import model_arrays
from coprefl_flwr.strategies import CoPreFL, FedAvg
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.known_methods import Methods
from coprefl_flwr.studies.running import run_study
from coprefl_flwr.studies.settings import Settings

DOCS = Path(__file__).parent.parent / "docs"
LAYERS, TRAINERS = 8, 3
Measure = Callable[[Sequence[int]], Iterator[Point]]


class Idle(NumPyClient):
    """A client that returns the model that it receives."""

    def fit(self, parameters: Any, _config: Any) -> Any:
        """Return the received model."""
        return parameters, 1, {"loss": 1.0}

    query = fit

    def evaluate(self, _parameters: Any, _config: Any) -> Any:
        """Return a loss, and one correct prediction of one sample."""
        return 1.0, 1, {"correct": 1}


def run_rounds(
    nodes: int,
    participants: int,
    every: int,
    clients: int | None = None,
    own: Sequence[int] | None = None,
) -> None:
    """Run CoPreFL's rounds with idle clients; all are evaluated after `every` rounds, 0: never.

    All nodes share `clients`, or each node has its `own`; without both, each node is a client.
    """
    grid = LocalGrid(client_app(lambda _context, _client: Idle(), clients=own), nodes)
    strategy = CoPreFL(
        participants=participants, min_available_nodes=nodes, evaluate_every=every, clients=clients
    )
    strategy.start(grid, to_record({"w": np.zeros(16, np.float32)}), num_rounds=ROUNDS)


def train_model(
    strategy: type[FedAvg] | type[CoPreFL], kind: type[TorchClient], megabytes: int
) -> None:
    """Run rounds with clients that train a model of `megabytes` MB for one step."""
    width = round(math.sqrt(megabytes * MEGABYTE / 4 / LAYERS))
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
    pairs = TensorDataset(torch.rand(10, width), torch.arange(10) % 2)
    data = as_samples("train", pairs)
    training, device = LocalTraining(local_steps=1, learning_rate=1e-6), torch.device("cpu")

    def client(_context: Any, _client: int) -> NumPyClient:
        return kind(model, data, training=training, device=device)

    grid = LocalGrid(client_app(client))
    initial = to_record(model_arrays(model))
    strategy(participants=TRAINERS, clients=TRAINERS).start(grid, initial, num_rounds=ROUNDS)


def run_tasks(tasks: int) -> None:
    """Run a study of `tasks` tasks of one round, with its tables and figures."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            run_name="scale",
            output_dir=folder,
            model="benchmarks.scale:network",
            method=Methods.read("random"),
            tasks=tasks,
            task_clients=2,
            task_partition="iid",
            task_rounds=1,
            task_local_steps=1,
            checkpoint_every=1,
        )
        run_study(LocalGrid(study_app, 1, settings.to_config()), build(settings))


def network(num_classes: int) -> nn.Module:
    """Return a network of one layer."""
    return nn.Sequential(nn.AvgPool2d(7), nn.Flatten(), nn.Linear(16, num_classes))


def totals(run: Callable[[int], None]) -> Measure:
    """Return a function that measures `run` at each size, each in a new process."""

    def measure(sizes: Sequence[int]) -> Iterator[Point]:
        with _silence():
            run(sizes[0])  # Imports modules, which belong to no size.
        for size in sizes:
            (point,) = forked(f"size {size}", _total, run, size)
            yield point

    return measure


def rounds(sizes: Sequence[int]) -> Iterator[Point]:
    """Measure the time of rounds with these numbers in a run, and the memory after them.

    A round takes milliseconds, and other programs only add time, so the shortest of `RUNS` times
    counts.
    """
    with _silence():
        run_rounds(1, PARTICIPANTS, 1, clients=PARTICIPANTS)
    runs = [forked("rounds", _rounds, sizes) for _ in range(RUNS)]
    yield from (min(points, key=seconds_of) for points in zip(*runs, strict=True))


def forked(what: str, function: Callable[..., Sequence[Point]], *arguments: Any) -> Sequence[Point]:
    """Return the result of a function in a forked process, which has all imports."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_answer, args=(there, function, *arguments))
    process.start()
    there.close()
    try:
        points: Sequence[Point] = here.recv()
    except EOFError as error:
        raise RuntimeError(f"{what}: the process failed") from error
    finally:
        process.join()
    return points


def _answer(answer: Connection, function: Callable[..., Sequence[Point]], *arguments: Any) -> None:
    with _silence():
        _count_from_here()
        answer.send(function(*arguments))


def _count_from_here() -> None:
    """Return freed memory to the system, so that its reuse counts; reset the peak."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def _total(run: Callable[[int], None], size: int) -> list[Point]:
    """Return the CPU seconds and the peak memory of a run, as one point."""
    before, began = _memory("VmHWM"), time.process_time()
    run(size)
    return [Point(size, time.process_time() - began, _memory("VmHWM") - before)]


def _rounds(sizes: Sequence[int]) -> list[Point]:
    """Return the CPU seconds of a run's rounds near the sizes, and the memory after them.

    The seconds are the median of the rounds whose numbers differ by at most a fifth.
    """
    before, began = _memory("VmRSS"), [time.process_time()]
    seconds, sizes_in_memory = list[float](), list[int]()

    def after_round(_: Any) -> None:
        now = time.process_time()
        seconds.append(now - began[0])
        sizes_in_memory.append(_memory("VmRSS") - before)
        began[0] = time.process_time()

    app = client_app(lambda _context, _client: Idle())
    strategy = CoPreFL(participants=PARTICIPANTS, evaluate_every=1, clients=PARTICIPANTS)
    initial = to_record({"w": np.zeros(16, np.float32)})
    with tempfile.TemporaryDirectory() as folder:
        file, last = Path(folder) / "checkpoint", sizes[-1] + 1
        # A round's checkpoint is written after its hooks, so it counts for the next round.
        strategy.start(LocalGrid(app), initial, last, hooks=[after_round], checkpoint=file)
    near = [seconds[max(1, round(0.8 * n)) : round(1.2 * n) + 1] for n in sizes]
    return [Point(n, median(s), sizes_in_memory[n]) for n, s in zip(sizes, near, strict=True)]


@contextmanager
def _silence() -> Iterator[None]:
    """Show only errors of Flower's and this package's logs."""
    flower = logging.getLogger("flwr")
    level = flower.level
    flower.setLevel(logging.ERROR)
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(io.StringIO()):
        yield
    flower.setLevel(level)


def _memory(line: str) -> int:
    """Return the memory in a line of /proc/self/status: VmRSS current, VmHWM peak, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(row.split()[1]) * 1024 for row in lines if row.startswith(line))


@dataclass(frozen=True)
class Way:
    """A number that grows: the function that measures its points, and the sizes."""

    measure: Measure
    sizes: tuple[int, ...]


def _sizes(largest: int, decades: int = 2) -> tuple[int, ...]:
    """Return three sizes for each factor of 10, in ascending order up to the largest."""
    return tuple(round(largest * 10 ** (-step / 3)) for step in range(3 * decades, -1, -1))


WAYS: Mapping[str, Way] = {
    "nodes": Way(totals(lambda n: run_rounds(n, PARTICIPANTS, 1)), _sizes(10_000)),
    "clients": Way(
        totals(lambda n: run_rounds(1, PARTICIPANTS, 1, own=range(n))), _sizes(100_000, 3)
    ),
    "participants": Way(totals(lambda n: run_rounds(10, n, 0, clients=HOSTED)), _sizes(100_000)),
    "model": Way(totals(functools.partial(train_model, FedAvg, TorchClient)), _sizes(100)),
    "model-coprefl": Way(
        totals(functools.partial(train_model, CoPreFL, CoPreFLClient)), _sizes(100)
    ),
    "rounds": Way(rounds, _sizes(1_000)),
    "tasks": Way(totals(run_tasks), _sizes(2_000)),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the ways in sequence, then write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"{', '.join(WAYS)} (default: all)")
    parser.add_argument("--part", type=int, default=1, help="divide all sizes by this (a trial)")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the page (docs)")
    chosen = parser.parse_args(argv)
    for name in chosen.ways:
        if name not in WAYS:
            parser.error(f"way '{name}': allowed are {', '.join(WAYS)}")
    if not 1 <= chosen.part <= 20:
        parser.error(f"--part {chosen.part}: must be between 1 and 20")
    wait_until_idle()
    about, points = machine(), dict[str, list[Point]]()
    torch.set_num_threads(1)
    for name in chosen.ways or WAYS:
        points[name] = []
        sizes = sorted({max(1, size // chosen.part) for size in WAYS[name].sizes})
        for point in WAYS[name].measure(sizes):
            points[name].append(point)
            say(f"{name} {point.size}: {point.seconds:.3f} s, {point.bytes / 2**20:.1f} MiB")
    growth = Growth(about, points)
    chosen.output.mkdir(parents=True, exist_ok=True)
    file = chosen.output / "scale.json"
    file.write_text(json.dumps(asdict(growth), indent=1) + "\n", encoding="utf-8")
    draw(growth, chosen.output / "scale.png")
    write_page(chosen.output, stored_results(chosen.output))
    print(section(growth))


if __name__ == "__main__":
    main()
