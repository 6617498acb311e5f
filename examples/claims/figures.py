"""The figures of the two pages, narrow enough to be read on a telephone."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation
from starts import SEES_ALL, Setting
from verdicts import Verdict

from coprefl_flwr.report.figures import style

WIDE = 4.6  # inches; 9 points are 11 pixels where this is 390 pixels wide
MOST = 10.0  # margins; an interval beyond is an arrow, with its mean if that is beyond too
APART = 5.0  # points between starts that cost the same


def forest(claims: Sequence[tuple[Any, Verdict]]) -> Figure:
    """Draw the claims' differences with 95 % intervals in their margins, as claimed to the right.

    A filled marker is a claim with a verdict.
    """
    papers = list(dict.fromkeys(claim.paper for claim, _ in claims))
    looks, lines = style.colours(papers), len(claims) + 1.4 * len(papers)
    figure = _figure(1.25 + 0.2 * lines)
    panel = figure.subplots()
    ends = [1.08 * end / claim.width for claim, one in claims for end in (one.low, one.high)]
    limits = max(min(-1.5, *ends), -MOST), min(max(1.5, *ends), MOST)
    panel.axvspan(-1, 1, color=style.FAINT, alpha=0.7, linewidth=0)
    panel.axvline(0, color=style.INK, linewidth=0.8)
    at, ticks = 0.0, []
    for paper in papers:
        at += 1.4
        ticks.append((at, paper))
        for claim, one in claims:
            if claim.paper == paper:
                at += 1
                ticks.append((at, claim.short))
                _interval(panel, at, [v / claim.width for v in one[1:4]], limits,
                          looks[paper][0], one.decided)  # fmt: skip
    panel.set_yticks(*zip(*ticks, strict=True), fontsize=8.5, color=style.INK)
    for label in panel.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in papers else "normal")
    panel.set_ylim(at + 0.8, 0.6)
    panel.set_xlim(limits)
    panel.locator_params(axis="x", nbins=8, integer=True)
    panel.set_xlabel(
        "Difference in margins; to the right as claimed", fontsize=8.5, color=style.INK
    )
    below = 0.36 / max(figure.get_figheight() - 0.9, 0.5)  # Inches, as parts of the axis.
    panel.xaxis.set_label_coords(0.98, -below, panel.transAxes)
    panel.xaxis.label.set_ha("right")
    panel.tick_params(axis="x", labelsize=8.5, color=style.INK, labelcolor=style.INK)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)
    told = "Mean and 95 % interval over seeds. Filled: with a verdict.\nGrey: too small to matter."
    figure.suptitle(told, x=0.02, ha="left", fontsize=8.5, color=style.INK)
    return figure


def _interval(
    panel: Any,
    at: float,
    values: Sequence[float],
    limits: tuple[float, float],
    colour: str,
    filled: bool,
) -> None:
    mean, low, high = values
    panel.plot(np.clip([low, high], *limits), [at, at], color=colour, linewidth=1.5)
    if limits[0] <= mean <= limits[1]:
        face = colour if filled else "white"
        panel.plot([mean], [at], "o", color=colour, markerfacecolor=face, markersize=4.5)
    for beyond, edge, marker, side, inner in (
        (low < limits[0], limits[0], "<", -1, high),
        (high > limits[1], limits[1], ">", 1, low),
    ):
        if beyond:
            panel.plot([edge], [at], marker, color=colour, markersize=5, clip_on=False)
        if beyond and not limits[0] <= mean <= limits[1]:
            panel.annotate(
                f"{mean:+.1f}", (np.clip(inner, *limits), at), (-side * 6, 0),
                textcoords="offset points",
                ha="right" if side > 0 else "left", va="center", fontsize=8, color=colour,
            )  # fmt: skip


def worth_over_cost(settings: Sequence[Setting]) -> Figure:
    """Draw each setting's starts: accuracy less the reference's, over the megabytes that were sent.

    Those that cost the same stand beside each other. A line is the start that sees all data.
    """
    rows = list(dict.fromkeys(row for one in settings for row in one.starts))
    looks = style.colours(rows)
    lines = -(-(len(settings) + 1) // 2)
    figure = _figure(0.5 + 2.25 * lines)
    panels = list(figure.subplots(lines, 2, squeeze=False).flat)
    for panel, setting in zip(panels, settings, strict=False):
        _worth(panel, setting, looks)
    for panel in panels[len(settings) :]:
        panel.axis("off")
    dots = [_dot(*looks[row]) for row in rows]
    line = Line2D([], [], color=style.INK, linestyle=":", linewidth=1)
    panels[len(settings)].legend(
        [*dots, line], [*rows, SEES_ALL], loc="center", frameon=False, fontsize=8.5,
        labelspacing=0.45, handletextpad=0.3,
    )  # fmt: skip
    figure.supxlabel("Megabytes sent to make the start", fontsize=8.5, color=style.INK)
    what = f"Points of accuracy against {settings[0].reference}, 95 % interval"
    figure.supylabel(what, fontsize=8.5, color=style.INK)
    return figure


def _worth(panel: Any, setting: Setting, looks: Mapping[str, tuple[str, str]]) -> None:
    style.plain(panel, "", "")
    panel.set_title(
        "\n".join(wrap(setting.title, 24)), loc="left", fontsize=8.5, fontweight="bold",
        color=style.INK,
    )  # fmt: skip
    panel.tick_params(labelsize=8)
    panel.axhline(0, color=style.INK, linewidth=0.8)
    if (sees_all := setting.less(SEES_ALL, "accuracy").mean) == sees_all:
        panel.axhline(sees_all, color=style.INK, linewidth=1, linestyle=":")
    clusters: dict[int, list[str]] = {}
    for row in setting.starts:
        if (cost := setting.mean(row, "megabytes")) == cost:
            clusters.setdefault(round(20 * cost / setting.most_megabytes), []).append(row)
    for together in clusters.values():
        for number, row in enumerate(together):
            aside = APART * (number - (len(together) - 1) / 2) / 72
            figure = panel.get_figure()
            moved = panel.transData + ScaledTranslation(aside, 0, figure.dpi_scale_trans)
            at, found = setting.mean(row, "megabytes"), setting.less(row, "accuracy")
            colour, _ = looks[row]
            panel.plot(
                [at] * 2, [found.low, found.high], color=colour, transform=moved, linewidth=1.3
            )
            dot = _dot(*looks[row])
            dot.set_data([at], [found.mean])
            dot.set_transform(moved)
            panel.add_line(dot)
            ends = [v for v in (found.mean, found.low, found.high) if v == v]
            panel.update_datalim([(at, value) for value in ends])
    panel.margins(x=0.3, y=0.08)
    panel.autoscale_view()
    panel.locator_params(axis="x", nbins=4)


def _dot(colour: str, dashes: str) -> Line2D:
    """Return a marker of a start; hollow where its colour is another's too."""
    face = colour if dashes == "-" else "white"
    return Line2D(
        [], [], color=colour, marker="o", linewidth=0, markersize=4.5, markerfacecolor=face
    )


def _figure(height: float) -> Figure:
    return Figure(figsize=(WIDE, height), dpi=220, layout="constrained", facecolor="white")
