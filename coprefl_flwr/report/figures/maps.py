"""Figures of loss landscapes, and of similarities of backbones."""

import textwrap

import numpy as np

from coprefl_flwr.report.comparison import Comparison
from coprefl_flwr.report.figures import style

_LEVELS = 24
_STEEP = 20.0  # ratio of largest to smallest loss above which contour levels are geometric


@style.settings()
def landscape(comparison: Comparison) -> style.Drawn:
    """Draw the losses around each model as filled contours on one colour scale.

    A cross marks the model. The unit of a step is the norm of the filters. If the largest loss is
    more than 20 times the smallest loss, the ratio of neighbouring contour levels is constant.
    Losses that are not finite are white.
    """
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import LogLocator, MaxNLocator

    maps = {row.name: row.landscape for row in comparison.rows if row.landscape is not None}
    grids = [np.ma.masked_invalid(losses.to_numpy()) for losses in maps.values()]
    finite = np.concatenate([np.empty(0), *(losses.compressed() for losses in grids)])
    if not finite.size:
        return None
    low, high = finite.min(), finite.max()
    high = max(high, low + max(1e-6, abs(low) * 1e-6))
    steep = 0 < low < high / _STEEP
    levels = (np.geomspace if steep else np.linspace)(low, high, _LEVELS)
    norm = LogNorm(low, high) if steep else Normalize(low, high)
    ticks = LogLocator(subs=(1.0, 2.0, 5.0), numticks=12) if steep else MaxNLocator(8)
    columns = min(len(maps), 2)
    figure, panels = style.new_figure(len(maps), 4.4 / columns, columns, sharex=True, sharey=True)
    for panel, losses, (name, steps) in zip(panels, grids, maps.items(), strict=True):
        x, y = steps.index.to_numpy(), steps.columns.to_numpy()
        drawn = panel.contourf(x, y, losses.T, levels=levels, norm=norm, cmap="viridis")
        panel.plot(0, 0, marker="+", color="white", markersize=9, markeredgewidth=1.6)
        below = f"loss {losses[len(x) // 2, len(y) // 2]:.3g} at the cross"
        style.title(panel, name, below, width=16 if columns > 1 else 54)
        panel.set_aspect("equal")
    figure.supxlabel("First direction")
    figure.supylabel("Second direction")
    bar = figure.colorbar(drawn, ax=panels, shrink=0.8, format="%.4g", ticks=ticks, label="Loss")
    bar.ax.minorticks_off()
    return figure, (
        "Loss around each model in the same two random directions, normalised filter by filter (Li "
        "et al., 2018); a step of 1 has the norm of the filters. All panels have one colour scale."
    )


@style.settings()
def similarity(comparison: Comparison) -> style.Drawn:
    """Draw a heat map of normalised similarities: a row per client, a column per backbone."""
    import seaborn as sns

    scores = next((r.similarity for r in comparison.rows if r.similarity is not None), None)
    if scores is None:
        return None
    figure, (panel,) = style.new_figure(1, 1.3 + 0.3 * scores.shape[1])
    sns.heatmap(
        scores.T, annot=True, fmt=".2f", cmap="Blues", yticklabels=list(scores.columns),
        xticklabels=[textwrap.fill(name, 12) for name in scores.index],
        cbar_kws={"label": "Normalised similarity"}, ax=panel,
    )  # fmt: skip
    panel.tick_params(axis="x", rotation=0)
    return figure, (
        "Normalised similarity of each client's prototypes with one backbone and with all "
        "backbones (FedPCL, section 5.5), for the first seed; each row adds up to 1."
    )
