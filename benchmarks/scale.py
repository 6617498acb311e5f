"""How time and memory grow with the number of nodes, of clients, of participants and of tasks.

`python -m benchmarks.scale` varies one of them with all else fixed and writes docs/scale.json,
docs/scale.png and the section "Growth" of docs/performance.md. What the clients compute themselves
is next to nothing: what grows is this package, and Flower's messages.
"""

import argparse
import contextlib
import io
import json
import logging
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import nn

from benchmarks.measure import Measurement, machine
from benchmarks.report import BUSY, page
from coprefl_flwr.arrays import to_record
from coprefl_flwr.client_app import app as study_app
from coprefl_flwr.clients import client_app
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.strategies import CoPreFL
from coprefl_flwr.studies.build import run_study
from coprefl_flwr.studies.settings import Settings

DOCS = Path(__file__).parent.parent / "docs"
ROUNDS, PARTICIPANTS, HOSTED = 2, 10, 100_000
GOAL = 1.1
"""The slope that growth should not exceed: 1 is linear, 2 quadratic."""
SMALLEST = 2**20
"""Bytes that memory counts as at least, or noise would have a slope."""


class Idle(NumPyClient):
    """A client that answers with what it was sent."""

    def fit(self, parameters: Any, _config: Any) -> Any:
        """Return the model that was sent."""
        return parameters, 1, {"loss": 1.0}

    query = fit

    def evaluate(self, _parameters: Any, _config: Any) -> Any:
        """Return a loss and a hit."""
        return 1.0, 1, {"correct": 1}


def run_rounds(clients: Any, nodes: int, participants: int, every: int) -> None:
    """Run CoPreFL's rounds with idle clients; all are evaluated after `every` rounds, 0: never."""
    grid = LocalGrid(client_app(lambda _context, _client: Idle(), clients=clients), nodes)
    strategy = CoPreFL(participants=participants, min_nodes=nodes, evaluate_every=every)
    strategy.start(grid, to_record({"w": np.zeros(16, np.float32)}), num_rounds=ROUNDS)


def network(num_classes: int) -> nn.Module:
    """Return a network of one layer."""
    return nn.Sequential(nn.AvgPool2d(7), nn.Flatten(), nn.Linear(16, num_classes))


def run_tasks(tasks: int) -> None:
    """Run a study of so many tasks of one round, tables and figures included."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            run_name="scale",
            output_dir=folder,
            model="benchmarks.scale:network",
            method="random",
            tasks=tasks,
            task_clients=2,
            task_partition="iid",
            task_rounds=1,
            task_local_steps=1,
            checkpoint_every=1,
        )
        run_study(LocalGrid(study_app, 1, settings.to_config()), settings)


@dataclass(frozen=True)
class Way:
    """One way to grow: what is run at a size, and the sizes."""

    title: str
    about: str
    run: Callable[[int], None]
    sizes: tuple[int, ...]


def _sizes(largest: int) -> tuple[int, ...]:
    """Return three sizes a decade over two decades, ascending to the largest."""
    return tuple(round(largest * 10 ** (-step / 3)) for step in range(6, -1, -1))


WAYS = {
    "nodes": Way(
        "nodes",
        f"a client each, {PARTICIPANTS} participants, all evaluated",
        lambda n: run_rounds(None, n, PARTICIPANTS, 1),
        _sizes(10_000),
    ),
    "clients": Way(
        "clients of a node",
        f"{PARTICIPANTS} participants, all evaluated",
        lambda n: run_rounds(list(range(n)), 1, PARTICIPANTS, 1),
        _sizes(100_000),
    ),
    "participants": Way(
        "participants",
        f"of {HOSTED:,} clients that 10 nodes share",
        lambda n: run_rounds(HOSTED, 10, n, 0),
        _sizes(100_000),
    ),
    "tasks": Way("tasks", "of a study, 2 clients and 1 round each", run_tasks, _sizes(2_000)),
}


@dataclass(frozen=True)
class Point:
    """What a size took: seconds of CPU time, and bytes beyond those of the imports."""

    size: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Growth:
    """The points of every way, by its name, and the machine."""

    machine: Mapping[str, Any]
    points: Mapping[str, Sequence[Point]]

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Growth":
        """Make it from its JSON."""
        points = {name: [Point(**one) for one in of] for name, of in stored["points"].items()}
        return cls(stored["machine"], points)


def measured(way: Way, size: int) -> Point:
    """Run one size in a process of its own, which has imported everything already."""
    forked = multiprocessing.get_context("fork")
    here, there = forked.Pipe()
    process = forked.Process(target=_measure, args=(way, size, there))
    process.start()
    there.close()
    try:
        seconds, held = here.recv()
    except EOFError as error:
        raise RuntimeError(f"{way.title} {size}: the process failed") from error
    finally:
        process.join()
    return Point(size, seconds, held)


def _measure(way: Way, size: int, answer: Connection) -> None:
    """Send the seconds of CPU time and the bytes that a run takes; its log goes nowhere."""
    with _silence():
        before, began = _peak(), time.process_time()
        way.run(size)
        answer.send((time.process_time() - began, _peak() - before))


@contextmanager
def _silence() -> Iterator[None]:
    """Show nothing of Flower's and this package's log but errors."""
    flower = logging.getLogger("flwr")
    level = flower.level
    flower.setLevel(logging.ERROR)
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(io.StringIO()):
        yield
    flower.setLevel(level)


def _peak() -> int:
    """Return the most bytes that this process has held in memory, of Linux's /proc."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def slope(points: Collection[Point], of: Callable[[Point], float]) -> float:
    """Return the slope of log(of) over log(size) in the last decade, by least squares."""
    last = [one for one in points if one.size >= 0.99 * max(p.size for p in points) / 10]
    x, y = np.log([one.size for one in last]), np.log([of(one) for one in last])
    return round(float(np.polyfit(x, y, 1)[0]), 3) + 0.0  # No -0.0.


def seconds_of(point: Point) -> float:
    """Return a point's time."""
    return point.seconds


def bytes_of(point: Point) -> float:
    """Return a point's memory, or the smallest that counts."""
    return max(point.bytes, SMALLEST)


def section(found: Growth) -> str:
    """Return the page's section."""
    about = found.machine
    lines = [
        "## Growth",
        "",
        "![Time and memory over the number of nodes, clients, participants and tasks](scale.png)",
        "",
        f"By `python -m benchmarks.scale`: {ROUNDS} rounds of CoPreFL with clients that compute "
        "nothing, or a whole study of tasks, on the local grid, each size in a process of its own. "
        "CPU seconds of that process, and the memory it took beyond its imports, at the largest "
        "size; slopes of their logarithms over the last decade of sizes (1 is linear; the goal is "
        f"at most {GOAL}).",
        "",
        "| what grows | with | largest | CPU seconds | slope | MiB | slope |",
        "| --- | --- | --: | --: | --: | --: | --: |",
    ]
    for name, points in found.points.items():
        way, last = WAYS[name], points[-1]
        cells = [
            way.title,
            way.about,
            f"{last.size:,}",
            f"{last.seconds:.1f}",
            f"{slope(points, seconds_of):.2f}",
            f"{last.bytes / 2**20:.0f}",
            f"{slope(points, bytes_of):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    versions = f"Python {about['python']}, torch {about['torch']}, flwr {about['flwr']}"
    load = f"load before {about['load_before']:.1f}"
    told = f"Measured on {about['date']}: {about['processor']}, {versions}; {load}."
    if about["load_before"] > BUSY:
        told += " **The machine was busy with something else: the seconds are none to quote.**"
    return "\n".join([*lines, "", told])


SHOWN: dict[str, Callable[[Point], float]] = {
    "CPU seconds": seconds_of,
    "MiB beyond the imports": lambda point: bytes_of(point) / 2**20,
}
"""The picture's panels, by the label of their axis."""


def draw(found: Growth, path: Path) -> None:
    """Draw time and memory over the sizes, a line a way, beside one of slope 1."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), dpi=200, layout="constrained", facecolor="white")
    colours = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
    panels = figure.subplots(1, 2)
    for panel, (label, of) in zip(panels, SHOWN.items(), strict=True):
        for (name, points), colour in zip(found.points.items(), colours, strict=False):
            text = f"{WAYS[name].title} ({slope(points, of):.2f})"
            x, y = [one.size for one in points], [of(one) for one in points]
            panel.plot(x, y, "o-", color=colour, markersize=3, linewidth=1.2, label=text)
        panel.set(xscale="log", yscale="log", xlabel="number", ylabel=label)
        low, high = panel.get_ylim()
        x = [one.size for points in found.points.values() for one in points]
        ends = np.array([min(x), max(x)])
        panel.plot(ends, high * ends / max(x), ":", color="#474747", linewidth=1, label="linear")
        panel.set_ylim(low, high)
        panel.grid(color="#D9D9D9", linewidth=0.6)
        panel.legend(
            frameon=False, fontsize=7, title="slope over the last decade", title_fontsize=7
        )
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.savefig(path)


def growth_in(folder: Path) -> str:
    """Return the section of what a folder holds, "" if it holds none."""
    kept = folder / "scale.json"
    return section(Growth.of(json.loads(kept.read_text(encoding="utf-8")))) if kept.exists() else ""


def write_page(folder: Path, results: Sequence[Measurement]) -> None:
    """Write performance.md of these results and of what the folder holds of growth."""
    text = page(results, growth_in(folder))
    (folder / "performance.md").write_text(text, encoding="utf-8")


def stored_results(folder: Path) -> dict[str, Measurement]:
    """Return the measurements of rounds that a folder holds."""
    kept = folder / "performance.json"
    stored = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    return {name: Measurement(**values) for name, values in stored.items()}


def main(given: Sequence[str] | None = None) -> None:
    """Measure the ways one after the other, then write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"{', '.join(WAYS)} (default: all)")
    parser.add_argument("--part", type=int, default=1, help="divide all sizes by this (a trial)")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the page (docs)")
    chosen = parser.parse_args(given)
    for name in chosen.ways:
        if name not in WAYS:
            parser.error(f"way '{name}': allowed are {', '.join(WAYS)}")
    if not 1 <= chosen.part <= 20:
        parser.error(f"--part {chosen.part}: must be between 1 and 20")
    about, points = machine(), dict[str, list[Point]]()
    torch.set_num_threads(1)
    for name in chosen.ways or WAYS:
        with _silence():
            WAYS[name].run(
                WAYS[name].sizes[0] // chosen.part
            )  # What it imports belongs to no size.
        points[name] = []
        for size in WAYS[name].sizes:
            one = measured(WAYS[name], size // chosen.part)
            points[name].append(one)
            told = f"{name} {one.size}: {one.seconds:.2f} s, {one.bytes / 2**20:.1f} MiB"
            print(told, file=sys.stderr, flush=True)
    found = Growth(about, points)
    chosen.output.mkdir(parents=True, exist_ok=True)
    kept = chosen.output / "scale.json"
    kept.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    draw(found, chosen.output / "scale.png")
    write_page(chosen.output, list(stored_results(chosen.output).values()))
    print(section(found))


if __name__ == "__main__":
    main()
