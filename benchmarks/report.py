"""The page docs/performance.md and its picture, from the measurements."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks import beside
from benchmarks.growth import growth_in
from benchmarks.idle import BUSY
from benchmarks.measure import CPU, WALL, Measurement, runners
from benchmarks.simulated import WARM_UP
from benchmarks.workloads import WORKLOADS

_INK, _FAINT = "#222222", "#D9D9D9"
_COLOURS = {CPU: "#56B4E9", WALL: "#0072B2"}
_KINDS = {CPU: "CPU seconds", WALL: "wall time"}


def page(results: Sequence[Measurement], *others: str) -> str:
    """Return docs/performance.md; `others` are the sections of other commands, "" for none."""
    parts = [
        "# Performance",
        "This page compares the time of a round in this package with that of a plain PyTorch "
        "program that runs the same method. A ratio of 1 means that Flower and the package add "
        "no time. The column `goal` has the largest ratio of wall times that we aim for.",
        *_summary(results),
        "`python -m benchmarks` writes this page from its measurements; `performance.json` has "
        "every round.",
        "![Time of a round over that of the plain PyTorch loop](performance.png)",
        *(section(result) for result in results),
        ON_GPU,
        TOGETHER,
        ADAPTERS,
        _how(),
        TRIED,
        *filter(None, others),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(results: Sequence[Measurement]) -> list[str]:
    """Return the range of the ratios for each place and the number of missed goals.

    The list is empty if nothing was measured.
    """
    ratios: dict[str, list[float]] = {}
    goals = []
    for result in results:
        for runner in shown_runners(result):
            if result.goal(runner) is not None:
                goals.append(_misses(result, runner))
            place = result.title(runner).partition(", ")[2]
            if result.against(runner) and not place.startswith("plain"):
                ratios.setdefault(place, []).append(result.ratio(runner, WALL))
    lines = [f"- {name}: {min(of):.2f} to {max(of):.2f}" for name, of in ratios.items()]
    title = "Range of the ratio of wall times, over all measured methods and networks:"
    missed = f"{sum(goals)} of {len(goals)} goals are missed; the column `goal` says which."
    return ["\n".join([title, "", *lines]), _GRIDS, missed] if lines else []


_GRIDS = (
    "The local grid runs all clients in the program's own process. The Ray grid runs them in Ray "
    "actors, which are processes. `flwr run` is Flower's own simulation, which also uses Ray."
)


def section(result: Measurement) -> str:
    """Return a workload's heading, table, number of rounds and machine."""
    workload = WORKLOADS[result.workload]
    shown = shown_runners(result)
    rounds = sorted({len(of[WALL]) for of in result.seconds.values()})
    counted = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    samples = "feature vectors" if workload.heads else "images"
    lines = [
        f"## {workload.title}",
        "",
        f"{workload.clients} clients of {workload.samples_per_client} {samples}, "
        f"{workload.participants} participants in each round, {workload.local_steps} steps of "
        f"{workload.batch_size} samples; {counted} measured rounds for each row. Seconds are "
        "medians, with the quartiles in brackets.",
        "",
        "| method, where | CPU s/round | ratio | wall s/round | ratio | goal | MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(_row(result, runner) for runner in shown),
        "",
        *([_coprefl(workload.coprefl_work())] if "coprefl" in workload.methods else []),
        *([_FEDPCL] if "fedpcl" in workload.methods else []),
        *([_LATER[workload.name]] if workload.name in _LATER else []),
        about(result),
    ]
    return "\n".join(lines)


_FEDPCL = (
    "The package's FedPCL clients store their heads in files before they reply; the plain "
    "loop keeps the heads in memory. With the package's heads in memory too, FedPCL's ratio was "
    "1.09 in a comparison of 30 rounds in turns, on a busy machine. In a run with checkpoints, a "
    "client also waits until its state is on the disk."
)


_LATER = {
    "resnet18": "After this measurement, a client with a large network became faster. In 3 rounds "
    "of each on 2026-11-26 (AMD EPYC), CoPreFL on the local grid took 0.98 of the wall time and "
    "1.00 of the CPU time of the plain loop."
}
"""{workload: figures that were measured later, separately}."""


def _coprefl(work: float) -> str:
    return (
        f"CoPreFL takes {work:.2f} times FedAvg's gradients: it also computes gradients on the "
        "query sets, in a second exchange."
    )


def shown_runners(result: Measurement) -> list[str]:
    """Return the runners that were measured, in the order of the table."""
    known = (f"{method} {place}" for method, place in runners(WORKLOADS[result.workload]))
    return [runner for runner in known if runner in result.seconds]


def about(result: Measurement) -> str:
    """Return the date, the machine and the load of a measurement as a sentence."""
    machine = result.machine
    gpu = f"**{machine['gpu']}**; " if machine["gpu"] else ""
    text = (
        f"Measured on {machine['date']}: {gpu}{machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB; Python {machine['python']}, torch "
        f"{machine['torch']}, flwr {machine['flwr']}, ray {machine['ray']}; load average before "
        f"{machine['load_before']:.1f}"
    )
    if result.load:
        low, high = min(result.load), max(result.load)
        text += f", during {low:.1f} to {high:.1f} (the benchmark alone: up to {result.workers})"
    if result.busy(BUSY):
        text += ". **The machine was busy with other programs: do not quote these numbers**"
    return text + "."


def _row(result: Measurement, runner: str) -> str:
    plain, goal = not result.against(runner), result.goal(runner)
    cells = [result.title(runner)]
    for kind in (CPU, WALL):
        seconds = result.seconds[runner][kind]
        low, high = spread(seconds)
        cells.append(f"{median(seconds):.3f} ({low:.3f} to {high:.3f})")
        cells.append("1" if plain else f"{result.ratio(runner, kind):.3f}")
    missed = " (missed)" * _misses(result, runner)
    cells.append("" if goal is None else f"{goal:.2f}{missed}")
    cells.append(f"{result.peak_bytes[runner] / 2**20:.0f}")
    return f"| {' | '.join(cells)} |"


def _misses(result: Measurement, runner: str) -> bool:
    """Return whether the ratio of wall times, to two decimals, is above its goal."""
    goal = result.goal(runner)
    return goal is not None and round(result.ratio(runner, WALL), 2) > goal


def spread(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the lower and the upper quartile."""
    if len(seconds) < 2:
        return seconds[0], seconds[0]
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return low, high


def _how() -> str:
    return f"""## How this is measured

- **Plain loops** (`benchmarks/bare.py`, `benchmarks/bare_heads.py`) use neither Flower nor this
  package. They have the same participants, batches and memory format as the package. Tests check
  that both end with the same weights.
- **Ratio:** the median of a row divided by the median of a plain loop of the same method. The
  local grid and the plain loop in two processes are compared with the plain loop in one process.
  The Ray grid and `flwr run` are compared with the plain loop in two processes.
- **CPU seconds** are those of the measured process and of all processes that it started, such as
  Ray's processes and the SuperLink. They measure the work, also on a busy machine.
- **Wall time** is the time that a user waits. The machine must be idle.
- **Goal:** the largest ratio of wall times that we aim for.
- **Threads:** every process computes with one thread. Two threads in one process took 12 to 16
  times as long on a busy machine.
- **Order:** the plain loops and the grids alternate round by round (A B C D A B C D ...), so that
  changes of the machine's speed affect all of them. `flwr run` cannot pause, so its rounds run in
  blocks before, between and after blocks of the other rows. The first round of every block is not
  counted.
- **`flwr run`:** a round is timed inside the ServerApp, from one call of a hook to the next. The
  strategy calls the hook after each round. The first {WARM_UP} rounds of a run are not counted,
  because Ray then starts its workers, and these import PyTorch.
- **Memory** is the peak memory of all processes of a row together, sampled every half second: the
  sum of their unshared memory (RSS minus shared pages), plus the largest shared memory.
- **ReLU:** the plain CNN has ReLU before pooling, as most programs do. The package's
  `femnist-cnn` pools first. The results are the same, with a quarter of the work for ReLU.
- **Sums:** the package sums in float64, so that the distribution of clients over processes
  changes only the rounding. The plain loops sum in float32. For CoPreFL with ResNet-18 the float64
  sums of 60 sets of arrays (20 models, 20 gradients, 20 gradients times losses) take 1 s of the
  13 s of a round (measured separately on 2026-11-23, on an Intel Xeon). FedAvg sums 20 models.
- **Freed memory:** the plain loops reuse the memory of freed arrays, as the package's processes
  do (`machine.py`). Most programs use glibc's defaults instead. Compared with CNN loops that use
  the defaults, the ratios of wall times were 0.69 (FedAvg) and 0.72 (CoPreFL) on the local grid,
  0.72 and 0.96 on the Ray grid, and 0.83 and 1.27 under `flwr run` (30 rounds, on 2026-11-23, on an
  AMD EPYC).
- **Data** are random. No evaluation and no checkpoint is in the measured rounds.
- **GPU:** `python -m benchmarks --device cuda` measures the same on a GPU in about five minutes,
  and prints a text to paste into an issue."""


ON_GPU = """## On a GPU

Measured on 2026-11-28: one NVIDIA H200 (140 GiB, CUDA 13.0), 16 cores of an Intel Xeon; Python
3.12.3, torch 2.11.0, flwr 1.42.0, without Ray; TensorFloat-32 off where weights are compared. The
load average before and during the rounds below was 0.9 to 1.3.

- **The numbers are the CPU's.** Every method in each of its roles was run from the same seeds on
  both (`pytest -m gpu tests/gpu`): after four rounds the weights differ by at most 2.2e-5, and by
  at most 4e-6 in all methods but those that train by Adam. With another network (a convolution and
  BatchNorm, three rounds), 18 of 20 methods agree to 1.4e-4; `cyclic` and `centralised`, whose
  model takes some two hundred steps one after another, differ by 5.3e-3 and 2.5e-3. In the same
  programs on one CPU, another order of summation makes 2.6e-3 and 1.7e-3. The largest differences
  of the first comparison are from 2026-11-27; a day later all were below 1e-3 again.
- **No step waits for the GPU.** A client's round has two waits, with 2 steps and with 20. The
  memory of a run is returned.
- **Memory** of the local grid at its peak: CoPreFL 96 MiB (FEMNIST CNN) and 191 MiB (ResNet-18, and
  FedAvg the same), FedPCL's heads 68 MiB.

| workload, method | rounds | plain loop, wall s/round | local grid | ratio |
|---|---:|---:|---:|---:|
| FEMNIST CNN, FedAvg | 20 | 0.187 | 0.271 | 1.45 |
| FEMNIST CNN, CoPreFL | 20 | 0.225 | 0.345 | 1.53 |
| ResNet-18, FedAvg | 2 | 0.335 | 1.668 | 4.98 |
| ResNet-18, CoPreFL | 2 | 0.490 | 3.801 | 7.76 |
| heads, FedAvg | 44 | 0.141 | 0.183 | 1.30 |
| heads, FedPCL | 44 | 0.322 | 0.426 | 1.32 |

The plain loop leaves its sums on the GPU, in float32. The package sends arrays and adds them up in
float64 on the host, on one core here: 67 ms for a FedAvg client with a ResNet-18 (11 million
weights), whose part of the plain loop is 17 ms. With more local steps the ratio falls. After this
measurement, the host's part of such a client was made faster by 32 % (FedAvg) and 26 % (CoPreFL),
measured on a CPU; on the GPU this was not measured. In a profiled round of CoPreFL with the FEMNIST
CNN (1.7 million weights) the GPU computes for 34 ms.

Launching kernels takes most of a small network's step. Clients that are computed together take this
part of the time of one after another on the H200 (5 steps, SGD, float32, median of three; weights
differ by at most 2e-6). It was measured by a program that is not in this repository, before the
package had this: `python -m benchmarks.together --device cuda` measures what it has now.

| network, batch | one client's step | 4 together | 16 | 64 |
|---|---:|---:|---:|---:|
| linear 60-10, 10 | 0.36 ms | 1.11 | 0.26 | 0.06 |
| linear 784-10, 10 | 0.34 ms | 1.38 | 0.33 | 0.09 |
| head 512-256-10, 25 | 0.82 ms | 0.72 | 0.17 | 0.05 |
| LeNet-5, 32 | 1.59 ms | 0.64 | 0.18 | 0.06 |
| FEMNIST CNN, 32 | 1.56 ms | 0.65 | 0.18 | 0.12 |
| CIFAR CNN with GroupNorm, 32 | 2.17 ms | 0.97 | 0.29 | 0.11 |
"""


TOGETHER = """## Clients that are computed together

Clients of one process can be one computation, with their weights stacked
([how](how-to/training.md#many-clients-at-once)). `python -m benchmarks.together` measures the part
of the time of one after another that this takes:

| network, batch | one client's step | 4 together | 10 | 16 | 64 | unless set |
|---|---:|---:|---:|---:|---:|---:|
| linear 32-10, 10 | 0.08 ms | 0.83 | 0.41 | 0.29 | 0.13 | 64 |
| linear 784-10, 10 | 0.09 ms | 0.91 | 0.58 | 0.47 | 0.35 | 64 |
| head 512-256-10, 25 | 0.31 ms | 1.13 | 1.19 | 1.28 | 1.45 | one after another |
| LeNet-5, 32 | 1.91 ms | 1.28 | 1.20 | 1.17 | 1.17 | one after another |
| FEMNIST CNN, 32 | 11.78 ms | 0.83 | 1.17 | 1.15 | 1.25 | one after another |
| CNN with GroupNorm, 32 | 11.96 ms | 1.24 | 1.26 | 1.26 | 1.45 | one after another |

Measured on 2026-11-28: AMD EPYC, 2 cores, one thread; Python 3.11.7, torch 2.14.1; load 1.0.

The last column is what the package does unless `together` is set. On a CPU, only linear networks
gain enough: in others, the computing of a step takes longer than the starting of its operations,
and batched products of matrices are no faster than single ones. Groups of fewer than 8 clients are
computed one after another. On a GPU, networks of at most 2,000,000 weights in linear layers,
convolutions and GroupNorm are computed together, as the table above says.

Earlier this page had 0.75 to 1.9 for `torch.vmap`, and 0.4 to 0.6 for grouped convolutions with
LeNet-5, from programs that were not kept. `vmap` uses grouped convolutions too, and LeNet-5 does
not gain here. A prototype on another machine had 0.20 for linear networks in groups of 64, 0.61 for
784 inputs in groups of 10, 0.85 for the head, and 0.94 for LeNet-5."""


ADAPTERS = """## Adapters

`python -m benchmarks.adapters` compares FedAvg of `cp.pretrain` over adapters with a plain loop
with `peft`. 20 clients take 5 steps of Adam on 16 texts of 64 tokens. The transformer has 103,000
weights, and the adapters 9,472. A test checks that both end with the same adapters. 12 rounds of
each, in turns, on 2026-11-28 (AMD EPYC, 2 cores; Python 3.11.7, torch 2.14.1, flwr 1.42.0, peft
0.21.2):

| | CPU s/round | ratio | MiB | ratio |
|---|---:|---:|---:|---:|
| plain loop with peft | 2.246 | 1 | 1033 | 1 |
| `cp.pretrain` | 2.283 | 1.02 | 1188 | 1.15 |

The goal is a ratio of at most 1.1. Other programs kept the machine busy (load average 9 to 14), so
wall times were not compared. Of the 155 MiB, 126 are there before the first round: the imports of
Flower, pandas and others. Copies of the frozen weights share their memory: in a separate
measurement, with 197 MiB of frozen weights, the peaks were 1216 MiB (plain loop) and 1395 MiB."""


TRIED = """## Optimisations that do not pay off on a CPU

The table shows times relative to the code without the optimisation; below 1 is faster. They were
measured earlier on a similar machine with 2 cores, not by this command.

| optimisation | ratio |
|---|---|
| convolutions as im2col and `bmm` | 1.4 to 6 |
| `torch.compile` | 0.95 to 2.7, after a minute of compiling |
| fused SGD | 4.2 (ResNet-18) |
| fused Adam | 0.43 for the optimiser's step, 0.93 for a client with a head; last digits differ |
| Hessian-vector products instead of second derivatives, for FedMeta | no gain |"""


def draw(results: Collection[Measurement], path: Path) -> None:
    """Draw the ratios as bars, one panel for each workload, with a tick at each bar's goal."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows = [
        [runner for runner in shown_runners(result) if result.against(runner)] for result in results
    ]
    sizes = [len(part) + 1 for part in rows]
    height = sum(0.42 * size + 0.6 for size in sizes) + 0.7
    figure = Figure(figsize=(8, height), dpi=200, layout="constrained", facecolor="white")
    panels = figure.subplots(len(rows), squeeze=False, height_ratios=sizes)[:, 0]
    for panel, result, shown in zip(panels, results, rows, strict=True):
        _bars(panel, result, shown)
        panel.set_title(WORKLOADS[result.workload].title, loc="left", fontsize=10, color=_INK)
    label = "time of a round / that of the plain PyTorch loop of the same method"
    panels[-1].set_xlabel(label, fontsize=9, color=_INK)
    marks: list[Any] = [Patch(color=_COLOURS[kind], label=text) for kind, text in _KINDS.items()]
    marks.append(Line2D([], [], color=_INK, linewidth=2, label="goal for the wall time"))
    figure.legend(handles=marks, loc="outside lower right", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path)


def _bars(panel: Any, result: Measurement, shown: Sequence[str]) -> None:
    """Draw a workload's bars, two for each runner."""
    from matplotlib.patheffects import withStroke

    longest = 1.0
    for row, runner in enumerate(shown):
        for kind, shift in ((CPU, -0.2), (WALL, 0.2)):
            ratio = result.ratio(runner, kind)
            longest = max(longest, ratio)
            panel.barh(row + shift, ratio, color=_COLOURS[kind], height=0.38)
            panel.text(
                1.01,  # In the margin, which no bar reaches.
                row + shift,
                f"{ratio:.3f}",
                transform=panel.get_yaxis_transform(),
                va="center",
                fontsize=8,
                color=_INK,
            )
        goal = result.goal(runner)
        if goal is not None:
            longest = max(longest, goal)
            edge = [withStroke(linewidth=4, foreground="white")]
            panel.plot([goal, goal], [row, row + 0.4], color=_INK, linewidth=2, path_effects=edge)
    panel.axvline(1, color=_INK, linewidth=0.8, linestyle=":")
    panel.set_yticks(range(len(shown)), [result.title(runner) for runner in shown])
    panel.invert_yaxis()
    panel.set_xlim(0, 1.03 * longest)
    panel.tick_params(labelsize=9, color=_INK, labelcolor=_INK)
    panel.grid(axis="x", color=_FAINT, linewidth=0.6)
    panel.set_axisbelow(True)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def stored_results(folder: Path) -> dict[str, Measurement]:
    """Return the measurements that a folder contains."""
    file = folder / "performance.json"
    stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {name: Measurement(**values) for name, values in stored.items()}


def write_page(folder: Path, results: dict[str, Measurement]) -> None:
    """Write performance.md from these results and the other results in the folder."""
    shown = [results[name] for name in WORKLOADS if name in results]
    text = page(shown, beside.section_in(folder), growth_in(folder))
    (folder / "performance.md").write_text(text, encoding="utf-8")


def write_all(folder: Path, results: dict[str, Measurement]) -> None:
    """Write the measurements, the picture and the page."""
    values = {name: result.as_json() for name, result in results.items()}
    file = folder / "performance.json"
    file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    draw([results[name] for name in WORKLOADS if name in results], folder / "performance.png")
    write_page(folder, results)


def pasted(result: Measurement) -> str:
    """Return a measurement on a GPU as a text to paste into an issue."""
    return section(result).replace("## ", "### ", 1) + "\n"
