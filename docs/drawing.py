"""Draws the messages of a method: a fenced block `exchanges` becomes an SVG.

A line of the block is an arrow, "server -> clients: train: w", or a note on a party's work,
"clients: 5 steps of SGD". The columns are in the order of their first names in the block.
"""

import html
import re
from textwrap import wrap

WIDTH, MARGIN, LINE, LETTER = 560, 84, 17, 7.4  # pixels of the drawing, not of the screen
ARROW = re.compile(r"(?P<of>[^:>]+?) -> (?P<to>[^:]+?): (?P<text>.+)")
NOTE = re.compile(r"(?P<of>[^:]+?): (?P<text>.+)")


def exchanges(source: str) -> str:
    """Return the SVG of a block; raises a ValueError for a line that is neither arrow nor note."""
    steps = [_read(line) for line in source.splitlines() if line.strip()]
    names = list(dict.fromkeys(name for of, to, _ in steps for name in (of, to) if name))
    apart = (WIDTH - 2 * MARGIN) / max(len(names) - 1, 1)
    x = {name: MARGIN + apart * number for number, name in enumerate(names)}
    drawn, y = [], 44.0
    for of, to, text in steps:
        part, y = _arrow(x[of], x[to], text, y) if to else _note(x[of], text, y, apart)
        drawn.append(part)
    heads = "".join(
        f'<line class="life" x1="{at}" y1="34" x2="{at}" y2="{y}"/>'
        f'<text class="who" x="{at}" y="24">{html.escape(name)}</text>'
        for name, at in x.items()
    )
    text = "; ".join(line.strip() for line in source.splitlines() if line.strip())
    return (
        f'<svg class="exchanges" viewBox="0 0 {WIDTH} {y + 8:.0f}" role="img" '
        f'aria-label="{html.escape(text)}">'
        f"{heads}{''.join(drawn)}</svg>"
    )


def _read(line: str) -> tuple[str, str, str]:
    """Return (sender or acting party, receiver or "", text)."""
    if match := ARROW.fullmatch(line.strip()):
        return match["of"], match["to"], match["text"]
    if match := NOTE.fullmatch(line.strip()):
        return match["of"], "", match["text"]
    raise ValueError(f"exchanges: '{line}' is neither 'A -> B: what' nor 'A: what'")


def _arrow(start: float, end: float, text: str, y: float) -> tuple[str, float]:
    lines = wrap(text, int(abs(end - start) / LETTER) - 1) or [""]
    middle, side = (start + end) / 2, 1 if end > start else -1
    label = _text(lines, middle, y + 12, "what")
    y += LINE * len(lines) + 6
    tip = f"{end},{y} {end - side * 9},{y - 4} {end - side * 9},{y + 4}"
    shaft = f'<line class="arrow" x1="{start}" y1="{y}" x2="{end - side * 8}" y2="{y}"/>'
    return f'{label}{shaft}<polygon class="tip" points="{tip}"/>', y + 10


def _note(at: float, text: str, y: float, apart: float) -> tuple[str, float]:
    width = min(2 * MARGIN - 4, apart - 6)
    lines = wrap(text, int(width / LETTER)) or [""]
    height = LINE * len(lines) + 8
    place = f'x="{at - width / 2}" y="{y}" width="{width}" height="{height}"'
    box = f'<rect class="note" {place} rx="4"/>'
    return box + _text(lines, at, y + 17, "does"), y + height + 8


def _text(lines: list[str], at: float, y: float, kind: str) -> str:
    parts = (
        f'<text class="{kind}" x="{at}" y="{y + LINE * number}">{html.escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    return "".join(parts)
