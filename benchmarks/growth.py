"""The section "Growth" of docs/performance.md, and its picture; `benchmarks.scale` measures."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.idle import BUSY

PARTICIPANTS, HOSTED, ROUNDS, RUNS = 10, 100_000, 2, 5
GOAL, COPIES, LATER = 1.1, 8, 1.2
"""Goals, as largest values: of a slope (1 is linear, 2 quadratic), of the copies of a model in
memory, and of the time of round 1,000 / that of round 10."""
SMALLEST = 2**20
"""Smallest memory in bytes that a slope uses: smaller values are noise."""
MEGABYTE = 10**6

WHAT = {
    "nodes": ("nodes", f"one client on each, {PARTICIPANTS} participants, all clients evaluated"),
    "clients": ("clients of a node", f"{PARTICIPANTS} participants, all clients evaluated"),
    "participants": ("participants", f"of {HOSTED:,} clients that 10 nodes share"),
    "model": ("MB of the model, FedAvg", "3 participants that train it, 1 step each"),
    "model-coprefl": ("MB of the model, CoPreFL", "3 participants that train it, 1 step each"),
    "rounds": (
        "rounds",
        f"time of one round: {PARTICIPANTS} participants, evaluation, checkpoint; shortest "
        f"of {RUNS} runs",
    ),
    "tasks": ("tasks", "in one study, 2 clients and 1 round each"),
}
"""{name: (the number that grows, the fixed numbers)}."""


@dataclass(frozen=True)
class Point:
    """A size with its seconds of CPU time, and its memory without that of the imports, in bytes."""

    size: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Growth:
    """The points of each number that grows, by its name in `WHAT`, and the machine."""

    machine: Mapping[str, Any]
    points: Mapping[str, Sequence[Point]]

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Growth":
        """Return the growth that is stored as JSON."""
        points = {name: [Point(**values) for values in of] for name, of in stored["points"].items()}
        return cls(stored["machine"], points)


def slope(points: Collection[Point], of: Callable[[Point], float]) -> float:
    """Return the slope of log(of) over log(size) in the last decade, by least squares."""
    last = [
        point for point in points if point.size >= 0.99 * max(other.size for other in points) / 10
    ]
    x, y = np.log([point.size for point in last]), np.log([of(point) for point in last])
    return round(float(np.polyfit(x, y, 1)[0]), 3) + 0.0  # No -0.0.


def seconds_of(point: Point) -> float:
    """Return the time of a point."""
    return point.seconds


def bytes_of(point: Point) -> float:
    """Return the memory of a point, at least `SMALLEST`."""
    return max(point.bytes, SMALLEST)


def section(growth: Growth) -> str:
    """Return the section of docs/performance.md."""
    about = growth.machine
    lines = [
        "## Growth",
        "",
        "![Time and memory over the number of nodes, clients, participants, rounds and tasks, and "
        "over the size of the model](scale.png)",
        "",
        "The table shows how time and memory grow with the size of a federation. Each row "
        f"changes one number, on the local grid. The method is CoPreFL with {ROUNDS} rounds, "
        "unless the row has another method or number. Clients compute nothing unless the row "
        "says that they train. `python -m benchmarks.scale` measures this.",
        "",
        "- CPU seconds and MiB are those of the largest size. The memory of the imports is not "
        "included. Each size runs in a separate process.",
        "- The slope is that of the log-log curve over the last factor of 10 in size. A slope of "
        f"1 is linear growth. The goal is at most {GOAL}.",
        "",
        "| what grows | with | from | to | CPU seconds | slope | MiB | slope |",
        "| --- | --- | --: | --: | --: | --: | --: | --: |",
    ]
    for name in (name for name in WHAT if name in growth.points):
        (title, fixed), points = WHAT[name], growth.points[name]
        last = points[-1]
        cells = [
            title,
            fixed,
            f"{points[0].size:,}",
            f"{last.size:,}",
            f"{last.seconds:.{1 if last.seconds >= 1 else 3}f}",
            f"{slope(points, seconds_of):.2f}",
            f"{last.bytes / 2**20:.0f}",
            f"{slope(points, bytes_of):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_sentences(growth.points), _measured(about)])


def _sentences(points: Mapping[str, Sequence[Point]]) -> list[str]:
    """Return the sentences on late rounds and on copies of models, each with its goal."""
    sentences = []
    if "rounds" in points:
        first, last = points["rounds"][0], points["rounds"][-1]
        ratio = last.seconds / first.seconds
        sentences.append(
            f"Round {last.size:,} takes {ratio:.2f} times the CPU time of round {first.size} "
            f"(goal: at most {LATER})."
        )
    for name in ("model", "model-coprefl"):
        if name not in points:
            continue
        last, method = points[name][-1], WHAT[name][0].rpartition(" ")[2]
        copies = last.bytes / (last.size * MEGABYTE)
        sentences.append(
            f"{method} has at most {copies:.1f} copies of a model of {last.size} MB in memory at "
            f"the same time, including the network and its gradient (goal: at most {COPIES})."
        )
    if "model" in points or "model-coprefl" in points:
        sentences.append(_HELD)
    return [*sentences, ""] if sentences else []


_HELD = (
    "The copies are the network, its gradient, the caller's initial model, the global model, and "
    "sums in float64; a sum takes as much memory as two copies. FedAvg has one sum: 4 + 2 = 6 "
    "copies. CoPreFL has two sums (of the gradients, and of the gradients times the losses) and a "
    "temporary model: 4 + 4 + 1 = 9 copies. The rest is short-lived arrays, and freed memory that "
    "is kept for reuse. With glibc's defaults (`MALLOC_MMAP_THRESHOLD_=131072`) FedAvg had 6.7 and "
    "CoPreFL 9.5 copies on 2026-11-23, on the machine below."
)


def _measured(about: Mapping[str, Any]) -> str:
    versions = f"Python {about['python']}, torch {about['torch']}, flwr {about['flwr']}"
    load = f"load average before {about['load_before']:.1f}"
    line = f"Measured on {about['date']}: {about['processor']}, {versions}; {load}."
    if about["load_before"] > BUSY:
        line += " **The machine was busy with other programs: do not quote the seconds.**"
    return line


SHOWN: dict[str, Callable[[Point], float]] = {
    "CPU seconds": seconds_of,
    "MiB beyond the imports": lambda point: bytes_of(point) / 2**20,
}
"""The picture's panels, by the label of their axis."""
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw(growth: Growth, path: Path) -> None:
    """Draw time and memory over the sizes: a line for each growing number, and one of slope 1."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), dpi=200, layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2)
    for panel, (label, of) in zip(panels, SHOWN.items(), strict=True):
        for name, colour in zip(WHAT, _COLOURS, strict=True):
            points = growth.points.get(name, ())
            if not points:
                continue
            text = f"{WHAT[name][0]} ({slope(points, of):.2f})"
            x, y = [point.size for point in points], [of(point) for point in points]
            panel.plot(x, y, "o-", color=colour, markersize=3, linewidth=1.2, label=text)
        panel.set(xscale="log", yscale="log", xlabel="number", ylabel=label)
        low, high = panel.get_ylim()
        x = [point.size for points in growth.points.values() for point in points]
        ends = np.array([min(x), max(x)])
        panel.plot(ends, high * ends / max(x), ":", color="#474747", linewidth=1, label="linear")
        panel.set_ylim(low, high)
        panel.grid(color="#D9D9D9", linewidth=0.6)
        panel.legend(
            loc="upper center",
            bbox_to_anchor=(
                0.5,
                -0.14,
            ),  # Below the axes, because the lines leave no room between them.
            ncols=2,
            frameon=False,
            fontsize=7,
            title="slope over the last decade",
            title_fontsize=7,
        )
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.savefig(path)


def growth_in(folder: Path) -> str:
    """Return the section of the result that a folder contains, "" if it has none."""
    file = folder / "scale.json"
    return section(Growth.of(json.loads(file.read_text(encoding="utf-8")))) if file.exists() else ""
