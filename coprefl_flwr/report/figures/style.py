"""The style of all figures: colours, fonts and axes; functions to save figures."""

import io
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import write_atomically

# Importing matplotlib takes a second, and most functions of this package do not use matplotlib.
if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

FORMATS = ("png", "svg", "pdf")
_ON_A_PAGE = {  # The page's light or dark colours, for everything except the lines of methods.
    "#222222": "CanvasText",
    "#ffffff": "Canvas",
    "#d9d9d9": "color-mix(in srgb, CanvasText 18%, Canvas)",
    "#474747": "color-mix(in srgb, CanvasText 70%, Canvas)",
}

# Okabe and Ito's colour-blind-safe palette, with two changes. Grey replaces yellow, which is too
# pale for lines on white. Dark grey replaces black, which is the colour of text and axes.
_PALETTE = (
    "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#474747", "#A3A3A3",
)  # fmt: skip
LineStyle = Literal["-", "--", ":"]
Looks = Mapping[str, tuple[str, LineStyle]]
_DASHES: tuple[LineStyle, ...] = ("-", "--", ":")
# Index in the palette by method, so that a method has the same colour in all figures.
_OWN_COLOURS = {
    "coprefl": 0, "fedavg": 1, "fedmeta": 2, "qffl": 3, "cyclic": 4, "copreflsgd": 5,
    "centralized": 6, "centralised": 6, "random": 7,
}  # fmt: skip
_NARROW, _NARROW_WIDTH = ContextVar("narrow", default=False), 4.0  # inches
INK, FAINT = "#222222", "#D9D9D9"
# Metadata without dates, so that the same figure is always the same bytes.
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


class NothingToDrawError(SettingsError):
    """The data have no values that the figure could show."""

    def __init__(self, needed: str) -> None:
        super().__init__(f"the figure has no data; it needs {needed}")


def colours(starts: Iterable[str]) -> dict[str, tuple[str, LineStyle]]:
    """Return the colour and the line style of each start, by name.

    The result depends on the set of starts, and not on their order. Each method of the papers has a
    fixed colour. The start with the shortest name of this method gets it ("coprefl" before
    "coprefl:gamma=0.5"). The other starts get the remaining colours, shorter names first. With more
    than eight starts, colours repeat with another line style.
    """
    slots: dict[str, int] = {}
    names = sorted(set(starts), key=lambda name: (len(name), name))
    for name in names:
        own = _OWN_COLOURS.get(re.sub(r":[^+]*|[\W_]", "", name.lower()))  # Without options.
        if own is not None and own not in slots.values():
            slots[name] = own
    for name in names:
        if name not in slots:
            slots[name] = next(slot for slot in itertools.count() if slot not in slots.values())
    looks = [(colour, dashes) for dashes in _DASHES for colour in _PALETTE]
    return {name: looks[slot % len(looks)] for name, slot in slots.items()}


@contextmanager
def narrow() -> Iterator[None]:
    """Return a context in which figures are drawn for a phone.

    These figures are half as wide, and their panels are in one column.
    """
    token = _NARROW.set(True)
    try:
        yield
    finally:
        _NARROW.reset(token)


def new_figure(height: float, width: float = 8.0) -> "Figure":
    """Return an empty figure; `height` and `width` are in inches, with 200 pixels per inch."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from coprefl_flwr.report.figures.fonts import ReadableFigure

    # With less space, the label of an axis would touch the panel to its left.
    apart = ConstrainedLayoutEngine(wspace=0.06)
    width = min(width, _NARROW_WIDTH) if _NARROW.get() else width
    return ReadableFigure(figsize=(width, height), dpi=200, layout=apart, facecolor="white")


def grid(
    count: int,
    columns: int,
    height: tuple[float, float],
    xlabel: str = "",
    ylabel: str = "",
    *,
    sharex: bool = True,
) -> tuple["Figure", list["Axes"]]:
    """Return a figure and its `count` panels in a grid, with shared axes and axis labels.

    `height` is (constant, height per row of panels), in inches. The height of the figure is the
    constant plus the heights of all rows.
    """
    columns = 1 if _NARROW.get() else columns
    lines = -(-count // columns)
    figure = new_figure(height[0] + height[1] * lines)
    panels = list(figure.subplots(lines, columns, sharex=sharex, sharey=True, squeeze=False).flat)
    for panel in panels[count:]:
        panel.set_visible(False)
    for panel in panels[max(0, count - columns) : count]:
        panel.tick_params(labelbottom=True)
    figure.supxlabel(xlabel, fontsize=10, color=INK)
    figure.supylabel(ylabel, fontsize=10, color=INK)
    return figure, panels[:count]


def row_of_panels(
    count: int, height: float = 3.9, widths: Sequence[float] | None = None
) -> tuple["Figure", list["Axes"]]:
    """Return a figure and its `count` panels, side by side, or in one column for a phone.

    `height` is the height of a panel in inches. `widths` are the relative widths of the panels.
    """
    if _NARROW.get():
        figure = new_figure(0.85 * height * count)
        return figure, list(figure.subplots(count, 1, squeeze=False).flat)
    figure = new_figure(height)
    return figure, list(figure.subplots(1, count, squeeze=False, width_ratios=widths).flat)


def title(panel: "Axes", name: str, below: str) -> None:
    """Write the title of a panel: its name, and the line `below` that describes the drawn data."""
    panel.set_title(
        name, loc="left", pad=18, fontsize=10, fontweight="bold", color=INK, parse_math=False
    )
    panel.annotate(
        below, (0, 1), xytext=(0, 5), xycoords="axes fraction", textcoords="offset points",
        fontsize=9, color=INK,
    )  # fmt: skip


def plain(panel: "Axes", name: str, below: str, xlabel: str = "", ylabel: str = "") -> None:
    """Write the title and axis labels of a panel; keep only two axis lines and faint grid lines."""
    title(panel, name, below)
    panel.set_xlabel(xlabel, fontsize=10, color=INK)
    panel.set_ylabel(ylabel, fontsize=10, color=INK)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(INK)
    panel.tick_params(labelsize=9, color=INK, labelcolor=INK)
    panel.grid(axis="y", color=FAINT, linewidth=0.6)
    panel.set_axisbelow(True)


def by_round(panel: "Axes", name: str, below: str, ylabel: str = "", xlabel: str = "Round") -> None:
    """Format a panel as `plain` does, with integer rounds on the horizontal axis."""
    from matplotlib.ticker import MaxNLocator

    plain(panel, name, below, xlabel, ylabel)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    panel.margins(x=0.02)


def line(panel: "Axes", x: Any, y: Any, colour: str, dashes: str) -> None:
    """Draw a line. A line of a single point is invisible, so the point has a marker."""
    marker = "o" if len(x) == 1 else ""
    panel.plot(x, y, color=colour, linestyle=dashes, linewidth=1.6, marker=marker)


# Width of a figure in characters of the legend, and of a line sample in characters, both roughly.
_ACROSS, _SAMPLE = 103, 6


def drawn(names: Iterable[str]) -> list[str]:
    """Return the names as they are drawn: with the codes of characters that no font has."""
    from coprefl_flwr.report.figures import fonts

    return fonts.drawn(list(names))


def legend(figure: "Figure", starts: Sequence[str], shown: Looks) -> None:
    """Write a legend of the starts (the compared initial models) below the figure.

    The starts are in order from left to right. `shown` has the colour and the line style of each
    start. If the legend needs several lines, the figure is made taller.
    """
    from matplotlib.lines import Line2D

    across = _ACROSS // 2 if _NARROW.get() else _ACROSS
    widest = min(max(map(cell_len, drawn(starts))) + _SAMPLE, across)
    rows = -(-len(starts) // min(len(starts), across // widest))
    columns = -(-len(starts) // rows)
    # Matplotlib fills a legend column by column.
    names = [starts[at] for first in range(columns) for at in range(first, len(starts), columns)]
    labels = ["\n".join(textwrap.wrap(name, across - _SAMPLE)) for name in names]
    lines = [
        Line2D([], [], color=colour, linestyle=dashes, linewidth=2.4)
        for colour, dashes in map(shown.__getitem__, names)
    ]
    more = rows - 1 + sum(label.count("\n") for label in labels)
    figure.set_figheight(figure.get_figheight() + 0.2 * more)
    figure.legend(
        lines, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9,
        labelcolor=INK,
    )  # fmt: skip


def save(figure: "Figure", path: str | Path) -> None:
    """Write a figure to the file `path`, atomically and without a date in the file.

    The suffix of the file is the format, one of `FORMATS`. Raises a SettingsError for another
    suffix.
    """
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        allowed = ", ".join(FORMATS)
        raise SettingsError(f"figure {str(path)!r} ends in {suffix!r}; allowed: {allowed}")
    write_atomically(path, content_of(figure, suffix))


def content_of(figure: "Figure", suffix: str) -> bytes:
    """Return the file content of a figure, without a date; `suffix` is one of `FORMATS`."""
    from matplotlib import rc_context

    content = io.BytesIO()
    # Font type 42 embeds TrueType fonts in PDF files, which journals require.
    with rc_context({"svg.hashsalt": "coprefl-flwr", "pdf.fonttype": 42}):
        figure.savefig(content, format=suffix, metadata=_UNDATED.get(suffix, {}))
    return content.getvalue()


def as_svg(figure: "Figure", name: str) -> str:
    """Return a figure as an SVG element for a page, in the colours of the page.

    `name` is the prefix of all ids in the element, so that ids of several figures differ.
    """
    text = content_of(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub(r' (width|height)="[0-9.]+pt"', "", text, count=2)
    text = re.sub(r'( id="|href="#|url\(#)', rf"\1{name}.", text)
    for ours, theirs in _ON_A_PAGE.items():
        text = text.replace(ours, theirs)
    return text
