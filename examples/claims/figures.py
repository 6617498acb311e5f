"""The figures of the two pages, narrow enough to be read on a telephone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from starts import RANDOM, SEES_ALL, Setting
from verdicts import Verdict

from coprefl_flwr.report.figures import style

WIDE = 4.6  # inches; 9 points are 11 pixels where this is 390 pixels wide
# Longer intervals end in an arrow; a mean beyond is written as a number.
MOST, POINTS = 10.0, 13.0  # margins of a claim; points of accuracy of a start


def forest(claims: Sequence[tuple[Any, Verdict]]) -> Figure:
    """Draw the differences with 95 % intervals, in units of the margins; claimed sides are right.

    A filled marker is a claim with a verdict.
    """
    papers = list(dict.fromkeys(claim.paper for claim, _ in claims))
    looks, lines = style.colours(papers), len(claims) + 1.4 * len(papers)
    figure = _figure(1.25 + 0.2 * lines)
    panel = figure.subplots()
    ends = [1.08 * end / claim.width for claim, one in claims for end in (one.low, one.high)]
    limits = max(min(-1.5, *ends), -MOST), min(max(1.5, *ends), MOST)
    panel.axvspan(-1, 1, color="#F0F0F0", linewidth=0)
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
    _axis(panel, ticks, papers, at, limits, "Difference in margins; to the right as claimed")
    caption = (
        "Mean and 95 % interval over seeds. Filled: with a verdict.\nGrey: too small to matter."
    )
    figure.suptitle(caption, x=0.02, ha="left", fontsize=8.5, color=style.INK)
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
    """Draw, for each setting, the starts' accuracies minus the reference's, by megabytes sent.

    A filled marker is a difference from the reference by the test, in which centralised training
    does not take part. Seeds in which a start failed are left out.
    """
    rows = list(dict.fromkeys(row for setting in settings for row in setting.rows))
    looks = style.colours(rows)
    # A heading takes 1.4 lines, and the reference one line.
    figure = _figure(1.25 + 0.2 * sum(1.4 + len(setting.rows) for setting in settings))
    panel = figure.subplots()
    ends = [
        end
        for setting in settings
        for row in setting.rows
        if row != RANDOM
        for end in setting.less(row, "accuracy")[1:3]
        if end == end
    ]
    limits = tuple(np.clip([1.08 * min([-1.0, *ends]), 1.08 * max([1.0, *ends])], -POINTS, POINTS))
    panel.axvline(0, color=style.INK, linewidth=0.8)
    at, ticks = 0.0, []
    for setting in settings:
        at += 2.4
        accuracy = setting.mean(setting.reference, "accuracy")
        about = f"{setting.reference}: {accuracy:.1f} % ({_about(setting, setting.reference)})"
        ticks += [(at - 1, setting.title), (at, about)]
        found, others = setting.found(), [r for r in setting.rows if r != setting.reference]
        for row in sorted(others, key=lambda row: (row == SEES_ALL, setting.sent(row))):
            at += 1
            ticks.append((at, f"{row} ({_about(setting, row)})"))
            values = setting.less(row, "accuracy")[:3]
            _interval(panel, at, values, limits, looks[row][0], row in found)
    reference = settings[0].reference
    label = f"Points of accuracy against {reference}"
    _axis(panel, ticks, [setting.title for setting in settings], at, limits, label)
    caption = f"Mean and 95 % interval over seeds. Filled: differs from {reference}\n"
    caption += "by the test. In brackets: the megabytes that the start sent."
    figure.suptitle(caption, x=0.02, ha="left", fontsize=8.5, color=style.INK)
    return figure


def _about(setting: Setting, row: str) -> str:
    """Return in how many seeds a start failed, or else the megabytes that it sent."""
    if lost := setting.failures(row):
        return f"failed in {lost} of {len(setting.values)} seeds"
    return "all data" if row == SEES_ALL else f"{setting.sent(row):,.0f} MB"


def _axis(
    panel: Any,
    ticks: Sequence[tuple[float, str]],
    headings: Sequence[str],
    end: float,
    limits: tuple[float, float],
    label: str,
) -> None:
    """Label the lines of a panel; the labels that are headings are bold."""
    panel.set_yticks(*zip(*ticks, strict=True), fontsize=8.5, color=style.INK)
    for text in panel.get_yticklabels():
        text.set_fontweight("bold" if text.get_text() in headings else "normal")
    panel.set_ylim(end + 0.8, 0.6)
    panel.set_xlim(limits)
    panel.locator_params(axis="x", nbins=8, integer=True)
    panel.set_xlabel(label, fontsize=8.5, color=style.INK)
    height = panel.get_figure().get_figheight()
    below = 0.36 / max(height - 0.9, 0.5)  # Inches, as parts of the axis.
    panel.xaxis.set_label_coords(0.98, -below, panel.transAxes)
    panel.xaxis.label.set_ha("right")
    panel.tick_params(axis="x", labelsize=8.5, color=style.INK, labelcolor=style.INK)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)


def _figure(height: float) -> Figure:
    return Figure(figsize=(WIDE, height), dpi=220, layout="constrained", facecolor="white")
