"""CIFAR-100 and Fashion-MNIST, which torchvision downloads, as the .npz files that recipes name.

    python examples/claims/data.py FOLDER

writes FOLDER/cifar100.npz and FOLDER/fashion.npz, with `train_images` (uint8), `train_labels`,
`test_images` and `test_labels`.
"""

import sys
from pathlib import Path

import numpy as np
from torchvision.datasets import CIFAR100, FashionMNIST


def main(folder: str) -> None:
    """Download and write both."""
    for name, source in (("cifar100", CIFAR100), ("fashion", FashionMNIST)):
        arrays = {}
        for part in ("train", "test"):
            found = source(folder, train=part == "train", download=True)
            arrays[f"{part}_images"] = np.asarray(found.data, np.uint8)
            arrays[f"{part}_labels"] = np.asarray(found.targets, np.int64)
        np.savez(Path(folder) / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
