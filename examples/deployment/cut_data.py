"""Cut the embedded glyphs into one file per node, as if each had collected its own.

python cut_data.py FOLDER NODES   writes FOLDER/node-0.npz, FOLDER/node-1.npz, ...
"""

import sys
from pathlib import Path

import numpy as np

from coprefl_flwr.data import glyphs, partition


def cut(folder: Path, nodes: int) -> None:
    """Write each node's images, uint8 (n, 28, 28), their labels and the names of the classes."""
    dataset = glyphs()
    parts = partition(
        dataset.labels,
        nodes,
        "dirichlet",
        alpha=0.5,
        classes_per_client=2,
        seed_key=("deployment",),
    )
    folder.mkdir(parents=True, exist_ok=True)
    for node, positions in enumerate(parts):
        np.savez_compressed(
            folder / f"node-{node}.npz",
            images=dataset.images.numpy()[positions, 0],
            labels=dataset.labels[positions],
            classes=np.array(dataset.classes),
        )


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        sys.exit("usage: python cut_data.py FOLDER NODES")
    cut(Path(sys.argv[1]), int(sys.argv[2]))
