"""Draws the picture of the first page: clients, an initial model, and tasks with their accuracy.

python docs/overview.py writes docs/pictures/overview.svg from docs/tables.
"""

import math
from pathlib import Path

import pandas as pd
from scipy import stats

DOCS = Path(__file__).parent
PICTURE = DOCS / "pictures" / "overview.svg"
TABLE = DOCS / "tables" / "primary-coprefl-tuned.csv.gz"
METHODS = {"fedavg": "FedAvg", "coprefl": "CoPreFL"}

WIDTH, TOP, TASK, BAR = 760, 66, 52, 13  # pixels; of a task and of a bar the height
LEFT, FULL = 500, 190  # where bars begin, and how long 100 % is
SETTING = "Bars: means after 30 rounds. CIFAR-100 at 16 x 16 pixels, each method at its best rates."

STYLE = """
.card { fill: #ffffff; stroke: #d0d7de }
text { fill: #1f2328; font: 14px system-ui, "Segoe UI", "DejaVu Sans", sans-serif }
.soft { fill: #59636e; font-size: 13px }
.bold { font-weight: 600 }
.middle { text-anchor: middle }
.line { stroke: #8c959f; stroke-width: 1.5; fill: none }
.tip { fill: #8c959f }
.client { fill: #ddf0fb; stroke: #0072b2 }
.model { fill: #fdebd9; stroke: #d55e00; stroke-width: 1.5 }
.fedavg { fill: #0072b2 }
.coprefl { fill: #d55e00 }
.rest { fill: #8c959f; opacity: .18 }
@media (prefers-color-scheme: dark) {
  .card { fill: #161b22; stroke: #30363d }
  text { fill: #e6edf3 }
  .soft { fill: #9ba5b0 }
  .client { fill: #10304a; stroke: #56b4e9 }
  .model { fill: #4a2a10; stroke: #f08a3c }
  .fedavg { fill: #56b4e9 }
  .coprefl { fill: #f08a3c }
}
"""


def accuracies() -> "pd.DataFrame":
    """Return the mean accuracy over seeds, in percent: a row a task, a column a method."""
    table = pd.read_csv(TABLE)
    table = table[table["metric"] == "accuracy"]
    return table.pivot_table("value", "task", "row")[list(METHODS)]


def overview() -> str:
    """Return the picture as an SVG that is light or dark as its reader's system is."""
    found = accuracies()
    middle, height = TOP + TASK * len(found) / 2, TOP + TASK * len(found) + 64
    numbers = "; ".join(
        f"task {at}: " + ", ".join(f"{METHODS[name]} {row[name]:.1f} %" for name in METHODS)
        for at, (_, row) in enumerate(found.iterrows(), 1)
    )
    parts = [
        f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>',
        _text(108, 34, "100 clients", "bold middle"),
        _text(108, 54, "80 classes of images", "soft middle"),
        *_clients(middle),
        _arrow(184, middle, 240, middle),
        f'<rect class="model" x="246" y="{middle - 34}" width="118" height="68" rx="8"/>',
        _text(305, middle - 4, "initial", "bold middle"),
        _text(305, middle + 16, "model", "bold middle"),
        _text(420, 34, "new tasks", "bold middle"),
        _text(420, 54, "5 other classes", "soft middle"),
        *_legend(),
    ]
    for at, (_, row) in enumerate(found.iterrows()):
        y = TOP + TASK * (at + 0.5)
        parts += [_arrow(368, middle, 412, y), _text(420, y + 5, f"task {at + 1}", "")]
        for which, name in enumerate(METHODS):
            parts += _bar(name, row[name], y + (which - 1) * (BAR + 3) + 1)
    parts += [_text(24, height - 38, _difference(), ""), _text(24, height - 16, SETTING, "soft")]
    title = f"Clients pre-train an initial model; tasks start from it. {numbers}."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">'
        f"<title>{title}</title><style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _difference() -> str:
    """Return CoPreFL minus FedAvg with its 95 % interval, over the means of the seeds."""
    table = pd.read_csv(TABLE).query("metric == 'accuracy'")
    of_seeds = table.pivot_table("value", "seed", "row")
    less = of_seeds["coprefl"] - of_seeds["fedavg"]
    half = stats.t.ppf(0.975, len(less) - 1) * less.std() / math.sqrt(len(less))
    low, mean, high = (f"{less.mean() + side * half:+.2f}" for side in (-1, 0, 1))
    return f"CoPreFL minus FedAvg: {mean} points, 95 % interval {low} to {high}, {len(less)} seeds"


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{text}</text>'


def _clients(middle: float) -> list[str]:
    """Return dots for clients, in rows around a height."""
    places = [
        (40 + 27 * column, middle + 30 * row) for row in (-2, -1, 0, 1, 2) for column in range(6)
    ]
    return [f'<circle class="client" cx="{x:g}" cy="{y:g}" r="9"/>' for x, y in places]


def _arrow(x: float, y: float, end: float, at: float) -> str:
    tip = f"{end},{at:g} {end - 8},{at - 4:g} {end - 8},{at + 4:g}"
    path = f"M{x} {y:g}C{(x + end) / 2:g} {y:g} {(x + end) / 2:g} {at:g} {end - 7} {at:g}"
    return f'<path class="line" d="{path}"/><polygon class="tip" points="{tip}"/>'


def _bar(name: str, percent: float, y: float) -> list[str]:
    """Return a bar and its number."""
    box = f'x="{LEFT}" y="{y:g}" height="{BAR}" rx="2"'
    return [
        f'<rect class="rest" {box} width="{FULL}"/>',
        f'<rect class="{name}" {box} width="{FULL * percent / 100:.1f}"/>',
        _text(LEFT + FULL + 8, y + 11, f"{percent:.1f} %", "soft"),
    ]


def _legend() -> list[str]:
    parts = []
    for at, (name, shown) in enumerate(METHODS.items()):
        x = LEFT + 100 * at
        parts.append(f'<rect class="{name}" x="{x}" y="23" width="13" height="13" rx="2"/>')
        parts.append(_text(x + 20, 34, shown, "bold"))
    return [*parts, _text(LEFT, 54, "made the initial model", "soft")]


if __name__ == "__main__":
    PICTURE.write_text(overview(), encoding="utf-8")
