"""The page's section and the picture of how time and memory grow, from `benchmarks.scale`."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.idle import BUSY

PARTICIPANTS, HOSTED, ROUNDS, RUNS = 10, 100_000, 2, 5
GOAL, COPIES, LATER = 1.1, 8, 1.2
"""What should not be exceeded: a slope (1 is linear, 2 quadratic), copies of a model in memory, and
round 1,000's time in round 10's."""
SMALLEST = 2**20
"""Bytes that memory counts as at least, or noise would have a slope."""
MEGABYTE = 10**6

WHAT = {
    "nodes": ("nodes", f"a client each, {PARTICIPANTS} participants, all evaluated"),
    "clients": ("clients of a node", f"{PARTICIPANTS} participants, all evaluated"),
    "participants": ("participants", f"of {HOSTED:,} clients that 10 nodes share"),
    "model": ("MB of the model, FedAvg", "3 participants that train it, 1 step each"),
    "model-coprefl": ("MB of the model, CoPreFL", "3 participants that train it, 1 step each"),
    "rounds": (
        "rounds",
        f"one round: {PARTICIPANTS} participants, evaluation, checkpoint; least of {RUNS} runs",
    ),
    "tasks": ("tasks", "of a study, 2 clients and 1 round each"),
}
"""By its name what grows, with what else fixed."""


@dataclass(frozen=True)
class Point:
    """What a size took: seconds of CPU time, and bytes beyond those of the imports."""

    size: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Growth:
    """The points of every way to grow, by its name, and the machine."""

    machine: Mapping[str, Any]
    points: Mapping[str, Sequence[Point]]

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Growth":
        """Make it from its JSON."""
        points = {name: [Point(**one) for one in of] for name, of in stored["points"].items()}
        return cls(stored["machine"], points)


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
        "![Time and memory over the number of nodes, clients, participants, rounds and tasks, and "
        "over the size of the model](scale.png)",
        "",
        f"Each row grows one number, on the local grid: {ROUNDS} rounds of CoPreFL unless the row "
        "has another method or number. Clients compute nothing unless the row says that they "
        "train. Each size runs in a separate process. CPU seconds, and memory in addition to the "
        "imports, are those of the largest size. A slope is that of the logarithms over the last "
        f"decade of sizes; 1 is linear, and the goal is at most {GOAL}. "
        "`python -m benchmarks.scale` measures this.",
        "",
        "| what grows | with | from | to | CPU seconds | slope | MiB | slope |",
        "| --- | --- | --: | --: | --: | --: | --: | --: |",
    ]
    for name in (name for name in WHAT if name in found.points):
        (title, fixed), points = WHAT[name], found.points[name]
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
    return "\n".join([*lines, "", *_sentences(found.points), _measured(about)])


def _sentences(points: Mapping[str, Sequence[Point]]) -> list[str]:
    """Return what is said of rounds and of models, each with its goal."""
    found = []
    if "rounds" in points:
        first, last = points["rounds"][0], points["rounds"][-1]
        ratio = last.seconds / first.seconds
        found.append(
            f"Round {last.size:,} takes {ratio:.2f} times the CPU time of round {first.size} "
            f"(goal: at most {LATER})."
        )
    for name in ("model", "model-coprefl"):
        if name not in points:
            continue
        last, method = points[name][-1], WHAT[name][0].rpartition(" ")[2]
        copies = last.bytes / (last.size * MEGABYTE)
        found.append(
            f"{method} has at most {copies:.1f} copies of a model of {last.size} MB in memory at "
            f"once, the network's own and its gradient among them (goal: at most {COPIES})."
        )
    if "model" in points or "model-coprefl" in points:
        found.append(_HELD)
    return [*found, ""] if found else []


_HELD = (
    "These copies are the network, its gradient, the caller's first model, the global model, and "
    "sums in float64, each of which takes two copies. FedAvg has one such sum, CoPreFL two (of the "
    "gradients, and of the gradients times the losses) and its temporary model. This makes 6 and "
    "9. The rest are short-lived arrays, and freed memory that is reused. With glibc's own malloc "
    "(`MALLOC_MMAP_THRESHOLD_=131072`) the totals were 6.7 and 9.5 on 2026-11-23, on the machine "
    "below."
)


def _measured(about: Mapping[str, Any]) -> str:
    versions = f"Python {about['python']}, torch {about['torch']}, flwr {about['flwr']}"
    load = f"load before {about['load_before']:.1f}"
    told = f"Measured on {about['date']}: {about['processor']}, {versions}; {load}."
    if about["load_before"] > BUSY:
        told += " **The machine was busy with something else: the seconds are none to quote.**"
    return told


SHOWN: dict[str, Callable[[Point], float]] = {
    "CPU seconds": seconds_of,
    "MiB beyond the imports": lambda point: bytes_of(point) / 2**20,
}
"""The picture's panels, by the label of their axis."""
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw(found: Growth, path: Path) -> None:
    """Draw time and memory over the sizes, a line a way, beside one of slope 1."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), dpi=200, layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2)
    for panel, (label, of) in zip(panels, SHOWN.items(), strict=True):
        for name, colour in zip(WHAT, _COLOURS, strict=True):
            points = found.points.get(name, ())
            if not points:
                continue
            text = f"{WHAT[name][0]} ({slope(points, of):.2f})"
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
            loc="upper center",
            bbox_to_anchor=(0.5, -0.14),  # Below the axes: so many lines leave no room between.
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
    """Return the section of what a folder holds, "" if it holds none."""
    kept = folder / "scale.json"
    return section(Growth.of(json.loads(kept.read_text(encoding="utf-8")))) if kept.exists() else ""
