"""Write the .npz files that recipes name, from datasets that torchvision downloads.

    python examples/claims/data.py FOLDER

FOLDER/cifar100.npz and FOLDER/fashion.npz have `train_images` (uint8), `train_labels`,
`test_images` and `test_labels`. FOLDER/mnist_people.npz has the training digits of MNIST with the
writer of each digit (`groups`). The writers are drawn into three groups (`domains`: pretraining,
tuning, tasks). The writers come from QMNIST (Yadav and Bottou 2019), or from
FOLDER/mnist_writers.npz (`train_writer`).
"""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torchvision.datasets import CIFAR100, MNIST, QMNIST, FashionMNIST

WRITERS = {"pretraining": 300, "tuning": 100, "tasks": 139}


def main(folder: str) -> None:
    """Download the datasets and write the three files."""
    for name, source in (("cifar100", CIFAR100), ("fashion", FashionMNIST)):
        arrays = {}
        for part in ("train", "test"):
            found = source(folder, train=part == "train", download=True)
            arrays[f"{part}_images"] = np.asarray(found.data, np.uint8)
            arrays[f"{part}_labels"] = np.asarray(found.targets, np.int64)
        np.savez(Path(folder) / f"{name}.npz", **arrays)
    digits = MNIST(folder, train=True, download=True)
    write_people(Path(folder), digits.data.numpy(), digits.targets.numpy())


def write_people(
    folder: Path, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]
) -> None:
    """Write mnist_people.npz from MNIST's training digits, (60000, 28, 28) and (60000,)."""
    file = folder / "mnist_writers.npz"
    if file.exists():
        writers = np.load(file)["train_writer"]
    else:
        # The columns of QMNIST's labels: class, series, writer, and more.
        found = QMNIST(str(folder), what="train", compat=False, download=True)
        writers = found.targets[:, 2].numpy()
    numbers, groups = np.unique(writers, return_inverse=True)
    drawn = np.random.default_rng(0).permutation(len(numbers))
    ends = np.cumsum(list(WRITERS.values()))
    domains = np.searchsorted(ends, drawn[groups], side="right")
    np.savez(
        folder / "mnist_people.npz", images=images, labels=labels, groups=groups, domains=domains,
        domain_names=np.array(list(WRITERS)),
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
