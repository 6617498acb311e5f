"""What starts are worth over what was spent on them: accuracy and variance by row and protocol.

The values are rows of the table that the claims are judged from: "protocol", "row", "metric",
"seed" and "value" of one recipe that compares no settings.
"""

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation
from verdicts import MIN_SEEDS, half_width

from coprefl_flwr.report.columns import column
from coprefl_flwr.report.figures import style
from coprefl_flwr.report.statistics import summarise

FIGURES = {
    "budget": ("step-size", "Accuracy and variance over the summed step size"),
    "loss": ("start-loss", "Accuracy and variance over the start's loss on the pre-training data"),
}
"""By the end of a file's name the metric on the horizontal axis, and what the figure shows."""
WORTH = ("accuracy", "variance")
METRICS = (*WORTH, *(metric for metric, _ in FIGURES.values()))
"""What the figures need of a recipe, as far as it has them."""
AXES = {"step-size": "Summed step size", "start-loss": "Loss on all pre-training clients' data"}
MARKERS = "osD^vP*X"
APART = 0.9  # points between neighbours in a row


def points(values: pd.DataFrame, at: str) -> pd.DataFrame:
    """Return a line per protocol and row of the table that has the metric `at`.

    Its columns are these two, "at" (mean over seeds), and for accuracy and variance the mean and
    "NAME half": half the 95 % t interval over seeds, nan for too few seeds. How hard a seed's tasks
    are for all rows alike is taken off before (see `without_seeds`), as rows are compared.
    """
    found, values = [], without_seeds(values)
    for (protocol, row), of_row in values.groupby(["protocol", "row"], sort=False):
        metrics = dict(iter(of_row.groupby("metric")))
        if not {at, *WORTH} <= metrics.keys():
            continue
        line = {"protocol": protocol, "row": row, "at": summarise(metrics[at]["value"]).mean}
        for metric in WORTH:
            line[metric] = summarise(metrics[metric]["value"]).mean
            _, std, n = summarise(metrics[metric]["alone"])
            line[f"{metric} half"] = half_width(std, n, 0.05) if n >= MIN_SEEDS else math.nan
        if math.isfinite(line["at"]):
            found.append(line)
    return pd.DataFrame(found)


def without_seeds(values: pd.DataFrame) -> pd.DataFrame:
    """Return the values with a column "alone": less the mean of all R rows of the seed.

    What is left of a row's variance is (R - 1) / R of its own (Morey, Confidence intervals from
    normalized data, 2008), so it is scaled; two rows have then the interval of their difference,
    over the root of 2. Where there is one row its values stay.
    """
    values = values.reset_index(drop=True)
    every = values.groupby(["protocol", "row", "metric"])["seed"].transform("nunique")
    full = (every == every.groupby(values["protocol"]).transform("max")) & (
        values["value"].abs() < math.inf
    )
    by_seed = values[full].groupby(["protocol", "metric", "seed"])["value"]
    rows = by_seed.transform("size").reindex(values.index, fill_value=1)
    mean = by_seed.transform("mean").reindex(values.index, fill_value=0.0)
    left = (values["value"] - mean) * (rows / (rows - 1).clip(lower=1)) ** 0.5
    return values.assign(alone=left.where(rows > 1, values["value"]))


def budget_figure(found: pd.DataFrame, at: str) -> Figure:
    """Draw accuracy and variance of `points` over the metric `at`.

    A colour is a row, a marker a protocol; a bar is the interval of `points`.
    """
    looks, rows = style.colours(found["row"]), list(dict.fromkeys(found["row"]))
    markers = dict(zip(dict.fromkeys(found["protocol"]), MARKERS * len(found), strict=False))
    figure, panels = style.row_of_panels(len(WORTH), 4.6)
    for panel, metric in zip(panels, WORTH, strict=True):
        style.plain(panel, column(metric).title, "mean, 95 % interval, paired by seed", AXES[at])
        for one in found.fillna({f"{metric} half": 0.0}).to_dict("records"):
            # Rows of equal budgets would hide each other.
            aside = APART * (rows.index(one["row"]) - (len(rows) - 1) / 2) / 72
            moved = panel.transData + ScaledTranslation(aside, 0, figure.dpi_scale_trans)
            (colour, dashes), mean, half = looks[one["row"]], one[metric], one[f"{metric} half"]
            panel.errorbar(
                [one["at"]], [mean], [half], color=colour, marker=markers[one["protocol"]],
                markersize=5.5, linewidth=0, elinewidth=1, alpha=0.9, transform=moved,
                markerfacecolor=colour if dashes == "-" else "white",
            )  # fmt: skip
            # What is drawn beside its place does not widen the axes by itself.
            panel.update_datalim([(one["at"], mean - half), (one["at"], mean + half)])
        panel.autoscale_view()
        if at == "step-size":
            by_size(panel, found["at"].tolist())
    names = [*rows, *(f"protocol {name}" for name in markers)]
    lines = [
        Line2D([], [], color=c, marker="s", linewidth=0, markerfacecolor=c if d == "-" else "white")
        for c, d in map(looks.get, rows)
    ] + [Line2D([], [], color=style.INK, marker=m, linewidth=0) for m in markers.values()]
    figure.legend(
        lines, names, loc="outside lower center", frameon=False, fontsize=9,
        ncols=max(1, min(len(names), 103 // (max(map(len, names)) + 6))),
    )  # fmt: skip
    return figure


def by_size(panel: Any, values: list[float]) -> None:
    """Make the axis logarithmic, with a place for 0: a start that nothing was trained for."""
    above = [value for value in values if value > 0]
    if not above or max(above) < 10 * min(above):
        return
    least = 10.0 ** math.floor(math.log10(min(above)))
    panel.set_xscale("symlog", linthresh=least, linscale=0.6)
    most = math.ceil(math.log10(max(above) / least))
    ticks = [0.0] * (0.0 in values) + [least * 10.0**power for power in range(most + 1)]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_xlim(-0.3 * least if 0.0 in values else least, 2 * max(above))
