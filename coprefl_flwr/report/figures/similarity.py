"""How much each backbone is in what several are fused to (FedPCL, Figure 3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Similarity:
    """Normalised similarity scores, (backbones, clients); a client's add up to 1."""

    scores: npt.NDArray[np.float64]
    backbones: Sequence[str]
    clients: Sequence[str]


def similarity_figure(found: Similarity) -> "Figure":
    """Draw the heat map: a row a backbone, a column a client."""
    # matplotlib takes a second to import, and most of what this package does needs none.
    from matplotlib.figure import Figure

    rows, columns = found.scores.shape
    figure = Figure(figsize=(2.2 + 0.9 * columns, 1.4 + 0.6 * rows), dpi=150)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    image = axes.imshow(found.scores, cmap="Blues", aspect="auto")
    axes.set_xticks(range(columns), found.clients, rotation=30, ha="right")
    axes.set_yticks(range(rows), found.backbones)
    middle = (found.scores.min() + found.scores.max()) / 2
    for row, column in np.ndindex(rows, columns):
        value = found.scores[row, column]
        colour = "white" if value > middle else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    figure.colorbar(image, ax=axes, label="normalised similarity")
    return figure
