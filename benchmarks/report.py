"""The page and the picture that the command writes from its measurements."""

from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median, quantiles

from benchmarks.measure import BARE_PROCESSES, BARE_THREADS, RUNNERS, Measurement
from benchmarks.simulated import WARM_UP
from benchmarks.workloads import WORKLOADS

_INK, _FAINT = "#222222", "#D9D9D9"
_COLOURS = {"bare": "#A3A3A3", "fedavg": "#0072B2", "coprefl": "#D55E00"}
_GOALS = {1.05: ("--", "local grid"), 1.15: (":", "flwr run, hosted")}
BUSY = 0.5
"""Load before a measurement from which the page warns."""


def page(results: Sequence[Measurement], growth: str = "") -> str:
    """Return docs/performance.md; `growth` is the section of `benchmarks.scale`."""
    parts = [
        "# Performance",
        "Written by `python -m benchmarks` from its measurements (`performance.json` has every "
        "round); do not edit.",
        "![Time of a round over that of the plain PyTorch loop](performance.png)",
        *(_section(result) for result in results),
        _how(results),
        *([growth] if growth else []),
    ]
    return "\n\n".join(parts) + "\n"


def _section(result: Measurement) -> str:
    workload = WORKLOADS[result.workload]
    lines = [
        f"## {workload.title}",
        "",
        f"{workload.clients} clients of {workload.samples_per_client} images, "
        f"{workload.participants} participants a round, {workload.local_steps} steps of "
        f"{workload.batch_size}. {_machine(result)}",
        "",
        "| runner | rounds | seconds a round (quartiles) | ratio | held against | goal | memory |",
        "|---|---:|---:|---:|---|---:|---:|",
        *(_row(result, name) for name in RUNNERS if name in result.seconds),
        "",
        f"CoPreFL takes {workload.coprefl_work():.2f} times FedAvg's gradients (the query sets), "
        "in a second exchange.",
    ]
    return "\n".join(lines)


def _machine(result: Measurement) -> str:
    found = result.machine
    text = (
        f"Measured on {found['date']}: {found['processor']}, {found['cores']} cores, "
        f"{found['memory_bytes'] / 2**30:.0f} GiB; Python {found['python']}, torch "
        f"{found['torch']}, flwr {found['flwr']}, ray {found['ray']}; load before "
        f"{found['load_before']:.1f}."
    )
    if found["load_before"] > BUSY:
        text += " **The machine was busy with something else: these are no figures to quote.**"
    return text


def _row(result: Measurement, name: str) -> str:
    runner, seconds = RUNNERS[name], result.seconds[name]
    low, high = spread(seconds)
    against = {BARE_THREADS: "plain, 1 process"}.get(runner.against, "faster plain")
    goal = "" if runner.goal is None else f"{runner.goal:.2f}"
    cells = [
        result.title(name),
        str(len(seconds)),
        f"{median(seconds):.3f} ({low:.3f} to {high:.3f})",
        f"{result.ratio(name):.3f}",
        against,
        goal,
        f"{result.peak_bytes[name] / 2**20:.0f} MiB",
    ]
    return f"| {' | '.join(cells)} |"


def spread(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the lower and the upper quartile."""
    if len(seconds) < 2:
        return seconds[0], seconds[0]
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return low, high


def _how(results: Sequence[Measurement]) -> str:
    blocks = ", ".join(f"{result.workload} {result.blocks}" for result in results)
    return f"""## How this is measured

- A ratio is the median time of a round over that of the plain PyTorch loop: FedAvg without Flower
  (`benchmarks/bare.py`), on the same model, participants, batches and memory format; a test checks
  that both end with the same weights. `flwr run` and CoPreFL there are held against the faster of
  the two plain loops, the local grid against the one with as many processes.
- The plain loops and the local grid are processes that wait their turn and alternate round by round
  (A B C D A B C D ...), so that drift hits all alike. `flwr run` cannot wait, so its rounds are run
  in blocks ({blocks}), with blocks of the others before, between and after; the first round of
  every block is not counted.
- Under `flwr run` a round is timed inside the ServerApp, from hook to hook. The first {WARM_UP}
  rounds of every run are left out: Ray starts its workers and these import torch.
- Memory is the peak of the runner's processes together, looked at every half second: what each has
  for itself plus the largest shared part (RSS less shared pages, summed, plus the largest shared);
  under `flwr run` with the SuperLink, Ray and the command line. The plain loops' processes have
  imported this package and Flower too, which they do not use.
- Data are random uint8 images, CPU only. There is no evaluation and no checkpoint."""


def draw(results: Collection[Measurement], path: Path) -> None:
    """Draw the ratios as bars, one panel a workload, with the goals as lines."""
    from matplotlib.figure import Figure

    names = [[name for name in RUNNERS if name in result.seconds] for result in results]
    height = sum(0.32 * len(part) + 1.3 for part in names) + 0.3
    figure = Figure(figsize=(8, height), dpi=200, layout="constrained", facecolor="white")
    sizes = [len(part) + 1 for part in names]
    panels = figure.subplots(len(names), squeeze=False, height_ratios=sizes)[:, 0]
    for panel, result, shown in zip(panels, results, names, strict=True):
        ratios = [result.ratio(name) for name in shown]
        colours = [_COLOURS[_kind(name)] for name in shown]
        panel.barh([result.title(name) for name in shown], ratios, color=colours, height=0.66)
        for row, ratio in enumerate(ratios):
            # In the margin, where no bar and no goal's line runs through it.
            panel.text(
                1.01,
                row,
                f"{ratio:.3f}",
                transform=panel.get_yaxis_transform(),
                va="center",
                fontsize=9,
                color=_INK,
            )
        for goal, (dashes, what) in _GOALS.items():
            label = f"goal {goal:.2f} ({what})"
            panel.axvline(goal, color=_INK, linestyle=dashes, linewidth=1, label=label)
        panel.invert_yaxis()
        panel.set_xlim(0, 1.03 * max(*ratios, *_GOALS))
        panel.set_title(WORKLOADS[result.workload].title, loc="left", fontsize=10, color=_INK)
        panel.tick_params(labelsize=9, color=_INK, labelcolor=_INK)
        panel.grid(axis="x", color=_FAINT, linewidth=0.6)
        panel.set_axisbelow(True)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
    what = "Time of a round / plain PyTorch (local grid: in one process, others: the faster)"
    panels[-1].set_xlabel(what, fontsize=10, color=_INK)
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path)


def _kind(name: str) -> str:
    return "bare" if name in (BARE_THREADS, BARE_PROCESSES) else name.rpartition("-")[2]
