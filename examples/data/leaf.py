"""Write LEAF's FEMNIST (Caldas et al. 2018) as an .npz file, which `dataset: OUT.npz` reads.

python examples/data/leaf.py FOLDER OUT.npz     FOLDER has train/*.json and test/*.json

The writers are the groups, numbered in the order of their names. Images are uint8 (N, 28, 28), the
characters dark on light, unlike in EMNIST.
"""

import json
import string
import sys
from pathlib import Path

import numpy as np

CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""The classes in the order of LEAF and of EMNIST byclass."""


def convert(folder: Path, out: Path) -> None:
    """Write the images, labels and writers of both splits."""
    arrays, writers = {"classes": list(CLASSES)}, {}
    for part in ("train", "test"):
        images, labels, names = [], [], []
        for file in sorted((folder / part).glob("*.json")):
            stored = json.loads(file.read_bytes())
            for writer in stored["users"]:
                user = stored["user_data"][writer]
                pixels = np.reshape(user["x"], (-1, 28, 28))  # numbers in 0..1
                images.append(np.rint(255 * pixels).astype(np.uint8))
                labels += user["y"]
                names += [writer] * len(user["y"])
        arrays[f"{part}_images"] = np.concatenate(images)
        arrays[f"{part}_labels"] = np.array(labels)
        writers[part] = names
    everyone = sorted({*writers["train"], *writers["test"]})
    for part, names in writers.items():
        arrays[f"{part}_groups"] = np.searchsorted(everyone, names)
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(out, **arrays)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(*map(Path, sys.argv[1:]))
