"""The style of all figures: colours, fonts, panels and legends; functions to save figures."""

import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.cells import cell_len

from coprefl_flwr.errors import logger
from coprefl_flwr.files import write_atomically

# Importing matplotlib takes a second, and most functions of this package do not use matplotlib.
if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure


INK = "#222222"
# Inches. The text is still readable where a phone shows the figure at three quarters of this width.
_WIDTH = 4.8
_ACROSS = 60  # the same width in characters of the legend, roughly
_SETTINGS: dict[Any, Any] = {
    "axes.axisbelow": True, "axes.edgecolor": INK, "axes.grid": True, "axes.grid.axis": "y",
    "axes.labelcolor": INK, "axes.labelsize": 10, "axes.spines.right": False,
    "axes.spines.top": False, "axes.titlesize": 10, "errorbar.capsize": 3, "figure.dpi": 250,
    "figure.facecolor": "white", "figure.labelsize": 10, "font.size": 9, "grid.color": "#D9D9D9",
    "grid.linewidth": 0.6, "legend.frameon": False, "lines.linewidth": 1.6, "lines.markersize": 5,
    "savefig.dpi": "figure", "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    # The same figure is always the same bytes; PDF files have TrueType fonts, as journals require.
    "svg.hashsalt": "coprefl-flwr", "pdf.fonttype": 42,
}  # fmt: skip
# Fonts with the letters of other scripts, of which matplotlib takes those that are installed.
_OTHER_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans", "Microsoft YaHei", "Malgun Gothic",
    "PingFang SC", "Hiragino Sans", "Arial Unicode MS",
)  # fmt: skip
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}

# Okabe and Ito's colour-blind-safe palette, with two changes. Grey replaces yellow, which is too
# pale for lines on white. Dark grey replaces black, which is the colour of text and axes. Each is
# the colour of a method, so that the method has it in all figures.
_PALETTE = {
    "coprefl": "#D55E00", "fedavg": "#0072B2", "fedmeta": "#009E73", "qffl": "#CC79A7",
    "cyclic": "#56B4E9", "copreflsgd": "#E69F00", "centralised": "#474747", "random": "#A3A3A3",
}  # fmt: skip
Drawn = tuple["Figure", str] | None
"""A figure and its caption; None if the data have no values that the figure could show."""
# Lengths of dashes and gaps of solid, dashed and dotted lines.
DASHES: tuple[tuple[float, ...], ...] = ((), (4.0, 1.5), (1.0, 1.0))
Looks = dict[str, tuple[str, tuple[float, ...]]]  # colour and dashes of each start


def colours(starts: Iterable[str]) -> Looks:
    """Return the colour and the line style of each start, by name, in the order of `starts`.

    The looks depend on the set of starts, and not on their order. Each method of the papers has a
    fixed colour. The start with the shortest name of this method gets it ("coprefl" before
    "coprefl:gamma=0.5"). The other starts get the remaining colours, shorter names first. With more
    than eight starts, colours repeat with another line style.
    """
    starts = list(starts)
    names = sorted({*starts}, key=lambda name: (len(name), name))
    shown: Looks = {}
    for name in names:
        colour = _PALETTE.get(re.sub(r":[^+]*|[\W_]", "", name.lower()))  # Without options.
        if colour and (colour, ()) not in shown.values():
            shown[name] = (colour, ())
    looks = [(c, dashes) for dashes in DASHES for c in _PALETTE.values()]
    free = itertools.cycle(look for look in looks if look not in shown.values())
    shown |= {name: next(free) for name in names if name not in shown}
    return {name: shown[name] for name in starts}


@contextmanager
def settings() -> Iterator[None]:
    """Return a context, or a decorator, with Matplotlib's settings for these figures."""
    from matplotlib import rc_context
    from matplotlib.font_manager import fontManager

    installed = fontManager.get_font_names()
    families = ["DejaVu Sans", *(font for font in _OTHER_FONTS if font in installed)]
    with rc_context({**_SETTINGS, "font.family": families}):
        yield


def new_figure(
    count: int, height: float, columns: int = 1, **options: Any
) -> tuple["Figure", list["Axes"]]:
    """Return a figure and its `count` panels; `height` is the height of a panel in inches.

    Further options are those of matplotlib's `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    rows = -(-count // columns)
    figure = Figure((_WIDTH, height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for panel in panels[count:]:
        panel.remove()
    return figure, panels[:count]


def title(
    panel: "Axes",
    name: str,
    below: str,
    xlabel: str = "",
    ylabel: str = "",
    width: int = _ACROSS - 6,
) -> None:
    """Write a panel's title, its name above a line on the drawn data, and the axes' labels.

    A name of more than `width` characters is wrapped.
    """
    if len(name) > width:
        name = textwrap.fill(re.sub("[,:]", r"\g<0> ", name), width)
    panel.set_title(name, loc="left", pad=16, fontweight="bold", parse_math=False)
    panel.annotate(
        below, (0, 1), xytext=(0, 4), xycoords="axes fraction", textcoords="offset points"
    )
    panel.set(xlabel=xlabel, ylabel=ylabel)


def lines(panel: "Axes", data: pd.DataFrame, shown: Looks, **options: Any) -> None:
    """Draw the means of each start by round, and one sample standard deviation on either side.

    `data` has the columns "start", "round" and "value". Further options: of seaborn's lineplot.
    """
    import seaborn as sns
    from matplotlib.ticker import MaxNLocator

    sns.lineplot(
        data, x="round", y="value", hue="start", style="start", legend=False, ax=panel,
        palette={start: colour for start, (colour, _) in shown.items()},
        dashes={start: dashes or "" for start, (_, dashes) in shown.items()},
        err_kws={"alpha": 0.15, "linewidth": 0}, **{"errorbar": "sd", **options},
    )  # fmt: skip
    for line in panel.lines:
        if np.size(line.get_xdata()) == 1:  # A line of a single point is invisible.
            line.set_marker("o")
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))


def legend(figure: "Figure", shown: Looks) -> None:
    """Write a legend below the figure, which becomes taller; `shown` has each line's looks."""
    from matplotlib.lines import Line2D

    columns = max(1, _ACROSS // (max(map(cell_len, shown)) + 6))
    handles = [Line2D([], [], color=c, dashes=dashes) for c, dashes in shown.values()]
    labels = [textwrap.fill(name, _ACROSS - 6) for name in shown]
    rows = -(-len(labels) // columns) + sum(label.count("\n") for label in labels)
    figure.set_figheight(figure.get_figheight() + 0.2 * rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def save(figure: "Figure", path: str | Path) -> None:
    """Write a figure to the file `path`, atomically and without a date in the file.

    The suffix of the file is the format. Raises a ValueError if Matplotlib does not have it.
    """
    write_atomically(path, content_of(figure, Path(path).suffix.lower().removeprefix(".")))


@settings()
def content_of(figure: "Figure", suffix: str) -> bytes:
    """Return the file content of a figure, without a date; `suffix` is the format."""
    content = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        figure.savefig(content, format=suffix, metadata=_UNDATED.get(suffix, {}))
    if any("missing from font" in str(warning.message) for warning in caught):
        logger.warning("a figure lacks letters of names; install a font such as Noto Sans CJK")
    return content.getvalue()
