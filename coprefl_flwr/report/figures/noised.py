"""An image before and after noise was laid over it (FedPCL, Figure 6)."""

from dataclasses import dataclass

import numpy as np

from coprefl_flwr.report.figures import style


@dataclass(frozen=True)
class Noised:
    """An image without and with noise, both (C, H, W); without, its pixels are from 0 to 1."""

    before: style.Floats
    after: style.Floats


def noised_figure(found: Noised) -> "style.Figure":
    """Draw both beside each other; what noise takes beyond 0 and 1 is shown as 0 and 1."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 2.8), dpi=150, layout="constrained")
    panels = {"as it is": found.before, "with noise": found.after}
    for axes, (title, image) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        shown = np.clip(np.moveaxis(image, 0, -1), 0, 1)
        axes.imshow(shown if shown.shape[-1] == 3 else shown[..., 0], cmap="gray", vmin=0, vmax=1)
        axes.set_title(title, color=style.INK)
        axes.set_axis_off()
    return figure
