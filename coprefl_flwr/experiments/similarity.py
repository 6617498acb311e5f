"""How much each backbone is in what several are fused to: the heat map of FedPCL's Figure 3.

`python -m coprefl_flwr.experiments.similarity FIGURE.png ONE TWO THREE ALL` reads the folders of
finished FedPCL runs of the same clients: one run for each backbone alone, and last the one with all
of them.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.experiments.personalised import LOCAL, read_run


def similarities(alone: Sequence[Arrays], fused: Arrays) -> npt.NDArray[np.float64]:
    """Return the normalised similarity scores, (backbones, clients); a client's add up to 1.

    A score is the inner product of a client's prototypes under one backbone and under all (section
    5.5), the mean over classes. The heads of two runs begin apart, so it also holds by how much
    training has brought them together.

    Parameters
    ----------
    alone, fused : Arrays
        Every client's prototypes, (C, d) by client, of a backbone each and of all.
    """
    for one in alone:
        if {n: a.shape for n, a in one.items()} != {n: a.shape for n, a in fused.items()}:
            raise SettingsError("the runs are not of the same clients and classes")
    clients = sorted(fused, key=int)
    scores = np.zeros((len(alone), len(clients)))
    for row, one in enumerate(alone):
        for column, client in enumerate(clients):
            products = np.sum(np.float64(one[client]) * fused[client], axis=1)
            scores[row, column] = products.mean()
    return np.asarray(scores / scores.sum(axis=0))


def draw(
    scores: npt.NDArray[np.float64], backbones: Sequence[str], clients: Sequence[str], path: Path
) -> None:
    """Write the heat map: a row a backbone, a column a client."""
    # matplotlib takes a second to import, and most of what this package does needs none.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.2 + 0.9 * len(clients), 1.4 + 0.6 * len(backbones)), dpi=150)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    image = axes.imshow(scores, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(clients)), clients, rotation=30, ha="right")
    axes.set_yticks(range(len(backbones)), backbones)
    middle = (scores.min() + scores.max()) / 2
    for row, column in np.ndindex(*scores.shape):
        value = scores[row, column]
        colour = "white" if value > middle else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    figure.colorbar(image, ax=axes, label="normalised similarity")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main(arguments: Sequence[str]) -> None:
    """Draw the heat map of the runs whose folders are given, the one of all backbones last."""
    if len(arguments) < 4:
        raise SettingsError("name a figure, the runs of single backbones, and the run of all")
    path, *folders = map(Path, arguments)
    for folder in folders:
        if not (folder / "methods" / "fedpcl" / LOCAL).is_file():
            raise SettingsError(f"{folder} holds no finished run of fedpcl")
    prototypes = [load_file(folder / "methods" / "fedpcl" / LOCAL) for folder in folders]
    scores = similarities(prototypes[:-1], prototypes[-1])
    names = [folder.name for folder in folders[:-1]]
    draw(scores, names, read_run(folders[-1]).domains, path)
    print(path)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SettingsError as error:
        sys.exit(str(error))
