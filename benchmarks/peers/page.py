"""The page docs/peers.md and its picture."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.idle import BUSY
from benchmarks.peers.one import Outcome
from benchmarks.peers.packages import PEERS
from benchmarks.peers.workloads import TASKS

UNIT, OURS = "plain", "coprefl"
_COLOURS = {UNIT: "#999999", OURS: "#D55E00"}
_OTHERS = "#0072B2"


@dataclass
class Comparison:
    """The outcomes of the packages' runs on a workload, by package."""

    task: str
    rounds: int
    machine: Mapping[str, Any]
    outcomes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)

    def add(self, peer: str, outcome: Outcome) -> None:
        """Add a run."""
        self.outcomes.setdefault(peer, []).append(asdict(outcome))

    def median(self, peer: str, kind: str) -> float:
        """Return the median over a package's runs of "cpu", "wall", "memory" or "loss"."""
        values: list[float] = [outcome[kind] for outcome in self.outcomes[peer]]
        return median(values)

    def ratio(self, peer: str, kind: str) -> float:
        """Return the median of a package / that of the plain loop."""
        return self.median(peer, kind) / self.median(UNIT, kind)

    def shown(self) -> list[str]:
        """Return the packages that were measured, in the order of the table."""
        return [name for name in PEERS if name in self.outcomes]


def stored(folder: Path) -> dict[str, Comparison]:
    """Return the comparisons that a folder contains."""
    file = folder / "peers.json"
    values = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {name: Comparison(**values) for name, values in values.items()}


def write_page(folder: Path, results: Mapping[str, Comparison]) -> None:
    """Write the comparisons, the picture and the page."""
    shown = [results[name] for name in TASKS if name in results]
    values = {result.task: asdict(result) for result in shown}
    (folder / "peers.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    draw(shown, folder / "peers.png")
    (folder / "peers.md").write_text(page(shown), encoding="utf-8")


def page(results: Sequence[Comparison]) -> str:
    """Return docs/peers.md."""
    measured = {name for result in results for name in result.shown()}
    rows = [f"| {peer.title} | {peer.best} | {peer.lacks} |" for peer in PEERS.values()]
    missing = [peer.title for name, peer in PEERS.items() if name not in measured]
    parts = [
        "# Next to other packages",
        "This page compares the time of FedAvg in this package, in other packages for federated "
        "learning, and in a plain PyTorch loop. A ratio of 1 means the CPU time of the plain loop.",
        "![CPU time of a round over that of the plain loop, by package](peers.png)",
        *(section(result) for result in results),
        "## What each package does in this time",
        "\n".join(["| package | mode | what it leaves out |", "|---|---|---|", *rows]),
        *([f"Not measured here: {', '.join(missing)}."] if missing else []),
        _HOW,
    ]
    return "\n\n".join(parts) + "\n"


def section(result: Comparison) -> str:
    """Return a workload's heading, table and machine."""
    task, about = TASKS[result.task], result.machine
    turns = max(map(len, result.outcomes.values()))
    low, high = min(result.load), max(result.load)
    lines = [
        f"## {task.title}",
        "",
        f"{task.clients:,} clients of {task.samples} samples, {task.participants:,} participants "
        f"in each round, one pass in batches of {task.batch}; measured rounds: {result.rounds}. "
        f"Numbers are medians over runs ({turns} for each package). Brackets contain the smallest "
        "and the largest number.",
        "",
        "| package | version | CPU ms/round | ratio | wall ms/round | MiB | loss |",
        "|---|---|---:|---:|---:|---:|---:|",
        *(_row(result, name) for name in result.shown()),
        "",
        *([_REASONS[result.task], ""] if result.task in _REASONS else []),
        f"Measured on {about['date']}: {about['processor']}, {about['cores']} cores; Python "
        f"{about['python']}, torch {about['torch']}; load average {low:.1f} to {high:.1f}.",
    ]
    if median(result.load) > 1 + BUSY:
        lines[-1] += (
            " The machine was busy with other programs: wall times are too long, and CPU times "
            "vary more than on an idle machine."
        )
    return "\n".join(lines)


def _row(result: Comparison, name: str) -> str:
    runs = [1e3 * outcome["cpu"] for outcome in result.outcomes[name]]
    cells = [
        PEERS[name].title,
        str(result.outcomes[name][-1]["version"]),
        f"{1e3 * result.median(name, 'cpu'):.4g} ({min(runs):.4g} to {max(runs):.4g})",
        f"{result.ratio(name, 'cpu'):.2f}",
        f"{1e3 * result.median(name, 'wall'):.4g}",
        f"{result.median(name, 'memory') / 2**20:.0f}",
        f"{result.median(name, 'loss'):.3f}",
    ]
    return f"| {' | '.join(cells)} |"


_REASONS = {
    "lr-mnist": "This package computes the 10 clients of a round as [one](how-to/training.md#"
    "many-clients-at-once), because the network is linear and small. `together=1` switches it off.",
    "tiny-clients": "This package computes 64 clients at a time as one, as above. Flower's "
    "simulation was measured in one run only, on the same day: its round took 135 s of CPU time, "
    "114 times that of the plain loop.",
    "resnet18": "Flower's simulation has the shortest wall time, because it trains on two cores. "
    "The other packages compute on one core here. This package uses several cores with its [Ray "
    "grid](performance.md).",
}
"""{workload: what explains the numbers}."""

_HOW = """## How this is measured

- `make beside-peers` (`python -m benchmarks.peers`, in `benchmarks/peers/`) installs the packages
  from the registry, each into a separate environment on top of the same PyTorch, and writes this
  page. `peers.json` has every run.
- **Data** are synthetic, of the shapes that the headings name. Labels are those of a random linear
  teacher.
- **Same work:** all packages begin with the same weights. In a round they train the same number of
  clients and samples, by SGD without momentum. Each package draws its clients and batches, so the
  final losses (on the first 1,000 samples) are similar, but not equal.
- **Not in the measured rounds:** evaluation, checkpoints and logs. The first round of a run is
  not measured.
- **CPU time** is that of the process and of all processes that it started, with one thread each.
  The packages run in turns (A B C A B C ...), each run in a new process.
- **Memory** is that of the processes after the last round, including the data and PyTorch.
- **Freed memory:** in the plain loop and in this package, glibc keeps freed memory. The other
  packages run with glibc's defaults, as they do for their users.
- **Layout:** the plain loop and this package store images and weights of convolutions channels
  last. The other packages leave the layout to the user's network, which has PyTorch's default."""


def draw(results: Sequence[Comparison], path: Path) -> None:
    """Draw the ratios of CPU time as bars, one panel for each workload."""
    from matplotlib.figure import Figure

    sizes = [len(result.shown()) for result in results]
    height = sum(0.3 * size + 0.75 for size in sizes) + 0.4
    figure = Figure(figsize=(8, height), dpi=150, layout="constrained", facecolor="white")
    panels = figure.subplots(len(results), squeeze=False, height_ratios=sizes)[:, 0]
    for panel, result in zip(panels, results, strict=True):
        _bars(panel, result)
    panels[-1].set_xlabel("CPU time of a round / that of the plain PyTorch loop", fontsize=9)
    figure.savefig(path)


def _bars(panel: Any, result: Comparison) -> None:
    """Draw a workload's bars, one for each package."""
    names = result.shown()
    for row, name in enumerate(names):
        ratio = result.ratio(name, "cpu")
        panel.barh(row, ratio, color=_COLOURS.get(name, _OTHERS), height=0.7)
        panel.annotate(
            f"{ratio:.2f}",
            (ratio, row),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    panel.axvline(1, color="#222222", linewidth=0.8, linestyle=":")
    panel.set_yticks(range(len(names)), [PEERS[name].title for name in names])
    panel.invert_yaxis()
    panel.set_xlim(0, 1.12 * max(result.ratio(name, "cpu") for name in names))
    panel.set_title(TASKS[result.task].title, loc="left", fontsize=10)
    panel.tick_params(labelsize=9)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
