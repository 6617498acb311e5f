"""What starts are worth over what was spent on them: accuracy and variance by row and protocol.

The values are rows of the table that the claims are judged from: "protocol", "where", "row",
"metric", "seed" and "value".
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from coprefl_flwr.report.columns import column
from coprefl_flwr.report.figures import style
from coprefl_flwr.report.statistics import summarise
from coprefl_flwr.report.verdicts import MIN_SEEDS, half_width

FIGURES: Mapping[str, tuple[str, str]] = {
    "budget": ("step-size", "Accuracy and variance over the summed step size"),
    "loss": ("start-loss", "Accuracy and variance over the start's loss on the pre-training data"),
}
"""By the end of a file's name the metric on the horizontal axis, and what the figure shows."""
_WORTH = ("accuracy", "variance")
METRICS = (*_WORTH, *(metric for metric, _ in FIGURES.values()))
"""What the figures need of a recipe, as far as it has them."""
_AXES = {"step-size": "Summed step size", "start-loss": "Loss on all pre-training clients' data"}
_MARKERS = "osD^vP*X"
_APART = 0.9  # points between neighbours in a row


def points(values: pd.DataFrame, at: str) -> pd.DataFrame:
    """Return a row per protocol, "where" and row of the table that has the metric `at`.

    Its columns are these three, "at" (mean over seeds), and for accuracy and variance the mean and
    "NAME half": half the 95 % t interval over seeds, nan for too few seeds. How hard a seed's tasks
    are for all rows alike is taken off before (see `_without_seeds`), as rows are compared.
    """
    found, values = [], _without_seeds(values)
    for (protocol, where, row), of_row in values.groupby(["protocol", "where", "row"], sort=False):
        by_metric = {str(name): of["value"].tolist() for name, of in of_row.groupby("metric")}
        if at not in by_metric or not set(_WORTH) <= set(by_metric):
            continue
        spent = summarise(by_metric[at]).mean
        alone = {str(name): of["alone"].tolist() for name, of in of_row.groupby("metric")}
        entry: dict[str, Any] = {"protocol": protocol, "where": where, "row": row, "at": spent}
        for metric in _WORTH:
            mean, (_, std, n) = summarise(by_metric[metric]).mean, summarise(alone[metric])
            half = half_width(std, n, 0.05) if n >= MIN_SEEDS else math.nan
            entry |= {metric: mean, f"{metric} half": half}
        if math.isfinite(spent):
            found.append(entry)
    return pd.DataFrame(found)


def _without_seeds(values: pd.DataFrame) -> pd.DataFrame:
    """Return the values with a column "alone": less the mean of all R rows of the seed.

    What is left of a row's variance is (R - 1) / R of its own (Morey, Confidence intervals from
    normalized data, 2008), so it is scaled; two rows have then the interval of their difference,
    over the root of 2. Where there is one row its values stay.
    """
    values = values.reset_index(drop=True)
    finite = values["value"].abs() < math.inf
    every = values.groupby(["protocol", "where", "row", "metric"])["seed"].transform("nunique")
    most = every.groupby([values["protocol"], values["where"]]).transform("max")
    full = (every == most) & finite
    by_seed = values[full].groupby(["protocol", "where", "metric", "seed"])["value"]
    rows = by_seed.transform("size").reindex(values.index, fill_value=1)
    mean = by_seed.transform("mean").reindex(values.index, fill_value=0.0)
    left = (values["value"] - mean) * (rows / (rows - 1).clip(lower=1)) ** 0.5
    return values.assign(alone=left.where(rows > 1, values["value"]))


def budget_figure(found: pd.DataFrame, at: str) -> "style.Figure":
    """Draw accuracy and variance of `points` over the metric `at`.

    A colour is a row, a marker a protocol; a bar is the interval of `points`.
    """
    shown = style.colours(found["row"])
    names = list(dict.fromkeys(found["row"]))
    markers = dict(zip(dict.fromkeys(found["protocol"]), _MARKERS * len(found), strict=False))
    figure, panels = style.row_of_panels(len(_WORTH), 4.6)
    apart = _apart(figure, names)
    for panel, metric in zip(panels, _WORTH, strict=True):
        style.plain(
            panel,
            column(metric).title,
            "mean, 95 % interval, paired by seed",
            _AXES[at],
        )
        for one in found.to_dict("records"):
            colour, dashes = shown[one["row"]]
            half = 0.0 if math.isnan(one[f"{metric} half"]) else one[f"{metric} half"]
            panel.errorbar(
                [one["at"]], [one[metric]], [half], color=colour,
                marker=markers[one["protocol"]], markersize=5.5, linewidth=0, elinewidth=1,
                markerfacecolor=colour if dashes == "-" else "white", alpha=0.9,
                transform=panel.transData + apart[one["row"]],
            )  # fmt: skip
            # What is drawn beside its place does not widen the axes by itself.
            panel.update_datalim([(one["at"], one[metric] + side) for side in (-half, half)])
        panel.autoscale_view()
        if at == "step-size":
            _by_size(panel, found["at"].tolist())
    _legend(figure, {name: shown[name] for name in names}, markers)
    return figure


def _apart(figure: "style.Figure", names: Sequence[str]) -> dict[str, Any]:
    """Return how far each row is moved to the side: those of equal budgets would hide others."""
    from matplotlib.transforms import ScaledTranslation

    moved = {name: _APART * (at - (len(names) - 1) / 2) for at, name in enumerate(names)}
    scale = figure.dpi_scale_trans
    return {name: ScaledTranslation(points / 72, 0, scale) for name, points in moved.items()}


def _by_size(panel: "style.Axes", values: Sequence[float]) -> None:
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


def _legend(figure: "style.Figure", shown: style.Looks, markers: Mapping[str, str]) -> None:
    """Write below the figure which colour is which row, and which marker which protocol."""
    from matplotlib.lines import Line2D

    rows = [
        Line2D([], [], color=c, marker="s", linewidth=0, markerfacecolor=c if d == "-" else "white")
        for c, d in shown.values()
    ]
    protocols = [Line2D([], [], color=style.INK, marker=m, linewidth=0) for m in markers.values()]
    names = [*shown, *(f"protocol {name}" for name in markers)]
    columns = max(1, min(len(names), 103 // (max(map(len, names)) + 6)))
    figure.legend(
        [*rows, *protocols], names, loc="outside lower center", ncols=columns, frameon=False,
        fontsize=9,
    )  # fmt: skip
