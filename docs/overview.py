"""Draws the picture of the first page: clients, an initial model, and tasks with their accuracy.

python docs/overview.py writes docs/pictures/overview.svg, and overview-narrow.svg for phones, from
docs/tables.
"""

import math
from pathlib import Path

import pandas as pd
from scipy import stats

DOCS = Path(__file__).parent
PICTURE = DOCS / "pictures" / "overview.svg"
NARROW = DOCS / "pictures" / "overview-narrow.svg"
TABLE = DOCS / "tables" / "primary-coprefl-tuned.csv.gz"
METHODS = {"fedavg": "FedAvg", "coprefl": "CoPreFL"}

WIDTH, TOP, TASK, BAR = 760, 66, 52, 13  # pixels; TASK and BAR are heights
LEFT, FULL = 500, 190  # pixels: beginning of the bars, length of 100 %
PHONE_WIDTH, PHONE_LEFT, PHONE_TOP = 360, 84, 258  # pixels, for phones
SETTING = (
    "Bars: means after 30 rounds.",
    "CIFAR-100 at 16 x 16 pixels,",
    "each method at its best rates.",
)

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
    """Return the mean accuracy over seeds in percent: rows are tasks, columns are methods."""
    table = pd.read_csv(TABLE)
    table = table[table["metric"] == "accuracy"]
    return table.pivot_table("value", "task", "row")[list(METHODS)]


def overview() -> str:
    """Return the picture as an SVG, which is light or dark like the reader's system."""
    table = accuracies()
    middle, height = TOP + TASK * len(table) / 2, TOP + TASK * len(table) + 64
    parts = [
        _text(108, 34, "100 clients", "bold middle"),
        _text(108, 54, "80 classes of images", "soft middle"),
        *_clients(40, middle),
        _arrow(184, middle, 240, middle),
        *_model(305, middle),
        _text(420, 34, "new tasks", "bold middle"),
        _text(420, 54, "5 other classes", "soft middle"),
        *_legend(LEFT, 34),
    ]
    for at, (_, row) in enumerate(table.iterrows()):
        y = TOP + TASK * (at + 0.5)
        parts += [_arrow(368, middle, 412, y), *_task(at, row, 420, LEFT, y)]
    parts.append(_text(24, height - 38, ", ".join(_difference()), ""))
    parts.append(_text(24, height - 16, " ".join(SETTING), "soft"))
    return _picture(parts, WIDTH, height, table)


def narrow() -> str:
    """Return the picture for phones: the tasks are below the clients and the model."""
    table = accuracies()
    middle, last, tip = 136, PHONE_TOP + TASK * len(table), PHONE_TOP - 44
    parts = [
        _text(94, 30, "100 clients", "bold middle"),
        _text(94, 50, "80 classes of images", "soft middle"),
        *_clients(26, middle),
        _arrow(172, middle, 210, middle),
        *_model(274, middle),
        f'<path class="line" d="M274 {middle + 36}V{tip - 8}"/>',
        f'<polygon class="tip" points="274,{tip} 270,{tip - 8} 278,{tip - 8}"/>',
        _text(20, PHONE_TOP - 28, "new tasks", "bold"),
        _text(20, PHONE_TOP - 8, "5 other classes", "soft"),
        *_legend(PHONE_LEFT + 66, PHONE_TOP - 28),
    ]
    for at, (_, row) in enumerate(table.iterrows()):
        parts += _task(at, row, 20, PHONE_LEFT, PHONE_TOP + TASK * (at + 0.5))
    lines = [(text, "") for text in _difference()] + [(text, "soft") for text in SETTING]
    for at, (text, kind) in enumerate(lines):
        parts.append(_text(20, last + 18 + 20 * at, text, kind))
    return _picture(parts, PHONE_WIDTH, last + 18 + 20 * len(lines), table)


def _picture(parts: list[str], width: int, height: float, table: "pd.DataFrame") -> str:
    """Return an SVG of these parts on a card, with all numbers in the SVG's title."""
    numbers = "; ".join(
        f"task {at}: " + ", ".join(f"{METHODS[name]} {row[name]:.1f} %" for name in METHODS)
        for at, (_, row) in enumerate(table.iterrows(), 1)
    )
    title = f"Clients pre-train an initial model; tasks start from it. {numbers}."
    card = f'<rect class="card" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" role="img">'
        f"<title>{title}</title><style>{STYLE}</style>\n" + "\n".join([card, *parts]) + "\n</svg>\n"
    )


def _difference() -> tuple[str, str]:
    """Return CoPreFL minus FedAvg, and its 95 % interval, over the means of the seeds."""
    table = pd.read_csv(TABLE).query("metric == 'accuracy'")
    of_seeds = table.pivot_table("value", "seed", "row")
    less = of_seeds["coprefl"] - of_seeds["fedavg"]
    half = stats.t.ppf(0.975, len(less) - 1) * less.std() / math.sqrt(len(less))
    low, mean, high = (f"{less.mean() + side * half:+.2f}" for side in (-1, 0, 1))
    interval = f"95 % interval {low} to {high}, {len(less)} seeds"
    return f"CoPreFL minus FedAvg: {mean} points", interval


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{text}</text>'


def _clients(left: float, middle: float) -> list[str]:
    """Return dots for clients, in rows around a height."""
    places = [
        (left + 27 * column, middle + 30 * row) for row in (-2, -1, 0, 1, 2) for column in range(6)
    ]
    return [f'<circle class="client" cx="{x:g}" cy="{y:g}" r="9"/>' for x, y in places]


def _model(x: float, y: float) -> list[str]:
    """Return the box of the initial model around a point."""
    return [
        f'<rect class="model" x="{x - 59:g}" y="{y - 34:g}" width="118" height="68" rx="8"/>',
        _text(x, y - 4, "initial", "bold middle"),
        _text(x, y + 16, "model", "bold middle"),
    ]


def _task(at: int, row: "pd.Series[float]", x: float, left: float, y: float) -> list[str]:
    """Return a task's name and bars around a height; bars begin at `left`."""
    parts = [_text(x, y + 5, f"task {at + 1}", "")]
    for which, name in enumerate(METHODS):
        parts += _bar(name, row[name], left, y + (which - 1) * (BAR + 3) + 1)
    return parts


def _arrow(x: float, y: float, end: float, at: float) -> str:
    tip = f"{end},{at:g} {end - 8},{at - 4:g} {end - 8},{at + 4:g}"
    path = f"M{x} {y:g}C{(x + end) / 2:g} {y:g} {(x + end) / 2:g} {at:g} {end - 7} {at:g}"
    return f'<path class="line" d="{path}"/><polygon class="tip" points="{tip}"/>'


def _bar(name: str, percent: float, left: float, y: float) -> list[str]:
    """Return a bar and its number."""
    box = f'x="{left:g}" y="{y:g}" height="{BAR}" rx="2"'
    return [
        f'<rect class="rest" {box} width="{FULL}"/>',
        f'<rect class="{name}" {box} width="{FULL * percent / 100:.1f}"/>',
        _text(left + FULL + 8, y + 11, f"{percent:.1f} %", "soft"),
    ]


def _legend(left: float, y: float) -> list[str]:
    """Return the colours of the methods; their names are at height `y`."""
    parts = []
    for at, (name, shown) in enumerate(METHODS.items()):
        x = left + 100 * at
        box = f'x="{x:g}" y="{y - 11:g}" width="13" height="13" rx="2"'
        parts += [f'<rect class="{name}" {box}/>', _text(x + 20, y, shown, "bold")]
    return [*parts, _text(left, y + 20, "pre-trained the model", "soft")]


if __name__ == "__main__":
    PICTURE.write_text(overview(), encoding="utf-8")
    NARROW.write_text(narrow(), encoding="utf-8")
