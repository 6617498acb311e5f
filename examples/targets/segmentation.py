"""Segmentation: the class of every pixel, background, square or disc.

python examples/targets/segmentation.py
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coprefl_flwr as cp

SIDE, CLASSES = 16, 3


def scenes(scanners: int, seed: int, contrast: float) -> tuple[TensorDataset, np.ndarray]:
    """Return 30 scenes of each scanner (n, 1, 16, 16), and each pixel's class (n, 16, 16).

    A scene has a square and a disc. The scanners (n,) differ in brightness.
    """
    rng = np.random.default_rng(seed)
    scanner = np.repeat(np.arange(scanners), 30)
    classes = np.zeros((len(scanner), SIDE, SIDE), np.int64)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for scene in classes:
        y, x, radius = *rng.uniform(4, SIDE - 4, 2), rng.uniform(2, 4)
        scene[np.maximum(abs(rows - y), abs(columns - x)) <= radius] = 1
        y, x, radius = *rng.uniform(4, SIDE - 4, 2), rng.uniform(2, 4)
        scene[np.hypot(rows - y, columns - x) <= radius] = 2
    brightness = rng.normal(0, 0.2, scanners)[scanner, None, None]
    images = contrast * (classes > 0) + brightness + rng.normal(0, 0.2, classes.shape)
    return TensorDataset(torch.tensor(images[:, None]).float(), torch.tensor(classes)), scanner


def overlap(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the intersection over union in percent, the mean over the classes."""
    found = outputs.argmax(dim=1)
    both = [((found == c) & (targets == c)).sum() for c in range(CLASSES)]
    either = [((found == c) | (targets == c)).sum() for c in range(CLASSES)]
    return 100 * float(np.mean([float(b / e) for b, e in zip(both, either, strict=True) if e]))


overlap.title = "IoU %"


def network() -> nn.Module:
    """Return four convolutions with the same output size as the input; tasks keep them all."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.ReLU()),
        *(nn.Conv2d(8, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, CLASSES, 1)),
    )


def main(rounds: int = 60, task_rounds: int = 10) -> cp.StartsResult:
    """Pre-train across 20 scanners; each of two scanners of low contrast is a task."""
    images, scanner = scenes(20, 0, 1.0)
    clients = cp.partition(images, groups=scanner)
    how = {"learning_rate": 0.3, "local_steps": 5}  # The loss is cross-entropy, the default.
    starts = {"random": network()} | {
        method: cp.pretrain(method, network(), clients, rounds, participants=10, quiet=True, **how)
        for method in ("fedavg", "coprefl:meta-learning-rate=0.02")
    }
    images, scanner = scenes(2, 1, 0.6)
    tasks = cp.tasks(images, groups=scanner, clients=3, scheme="iid", min_samples=5)
    return cp.evaluate_starts(
        starts, tasks, task_rounds, head="keep", client_metrics=overlap, evaluate_every=0, **how
    )


if __name__ == "__main__":
    print(main())
