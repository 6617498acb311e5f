"""How much each backbone is in what several are fused to: the heat map of FedPCL's Figure 3.

`python -m coprefl_flwr.report.figures.similarity FIGURE.png ONE TWO THREE ALL` reads the folders of
finished FedPCL runs of the same clients: one for each backbone alone, and last that with all.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import style
from coprefl_flwr.report.results import read_rows

LOCAL = "local.safetensors"
"""The file in which a FedPCL run leaves every client's padded prototypes, by client."""


@dataclass(frozen=True)
class Similarity:
    """Normalised similarity scores, (backbones, clients); a client's add up to 1."""

    scores: style.Floats
    backbones: Sequence[str]
    clients: Sequence[str]


def similarities(alone: Sequence[Arrays], fused: Arrays) -> style.Floats:
    """Return the normalised similarity scores, (backbones, clients); a client's add up to 1.

    A score is the inner product of a client's prototypes under one backbone and under all (section
    5.5), the mean over classes. The heads of two runs begin apart, so it also holds by how much
    training has brought them together. `alone` (a backbone each) and `fused` (all of them) are
    every client's prototypes, (C, d) by client.
    """
    for one in alone:
        if {n: a.shape for n, a in one.items()} != {n: a.shape for n, a in fused.items()}:
            raise SettingsError("the runs are not of the same clients and classes")
    clients = sorted(fused, key=int)
    scores = np.array(
        [[np.sum(np.float64(one[c]) * fused[c], axis=1).mean() for c in clients] for one in alone]
    )
    return np.asarray(scores / scores.sum(axis=0))


def similarity(
    folders: Sequence[Path], backbones: Sequence[str], clients: Sequence[str]
) -> Similarity:
    """Return the heat map of finished FedPCL runs: of each backbone alone, and of all last."""
    *alone, fused = [load_file(folder / LOCAL) for folder in folders]
    return Similarity(similarities(alone, fused), backbones, clients)


def similarity_figure(found: Similarity) -> "style.Figure":
    """Draw the heat map: a row a backbone, a column a client."""
    from matplotlib.figure import Figure

    rows, columns = found.scores.shape
    figure = Figure(figsize=(2.2 + 0.9 * columns, 1.4 + 0.6 * rows), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(found.scores, cmap="Blues", aspect="auto")
    axes.set_xticks(range(columns), found.clients, rotation=30, ha="right")
    axes.set_yticks(range(rows), found.backbones)
    middle = (found.scores.min() + found.scores.max()) / 2
    for (row, column), value in np.ndenumerate(found.scores):
        colour = "white" if value > middle else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    figure.colorbar(image, ax=axes, label="normalised similarity")
    return figure


def main(arguments: Sequence[str]) -> None:
    """Draw the heat map of the runs whose folders are given, the one of all backbones last."""
    if len(arguments) < 4:
        raise SettingsError("name a figure, the runs of single backbones, and the run of all")
    path, *folders = map(Path, arguments)
    methods = [folder / "methods" / "fedpcl" for folder in folders]
    for folder, method in zip(folders, methods, strict=True):
        if not (method / LOCAL).is_file():
            raise SettingsError(f"{folder} holds no finished run of fedpcl")
    clients = list(read_rows(folders[-1] / "rows.jsonl")["domain"])
    found = similarity(methods, [folder.name for folder in folders[:-1]], clients)
    style.save(similarity_figure(found), path)
    print(path)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SettingsError as error:
        sys.exit(str(error))
