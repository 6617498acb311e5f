"""Several labels of an image: which of four shapes it shows.

python examples/targets/multi_label.py
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coprefl_flwr as cp

SIDE, SHAPES = 16, 4


def shapes(number: int, seed: int, noise: float) -> TensorDataset:
    """Return noisy images (n, 1, 16, 16) and which shapes each shows, (n, 4), 0.0 or 1.0."""
    rng = np.random.default_rng(seed)
    shown = rng.random((number, SHAPES)) < 0.4
    images = rng.normal(0, noise, (number, 1, SIDE, SIDE))
    x, y = np.mgrid[:5, :5] - 2
    masks = [abs(x) + abs(y) <= 2, np.maximum(abs(x), abs(y)) == 2, (x == 0) | (y == 0), x == y]
    for image, labels in zip(images[:, 0], shown, strict=True):
        for mask in np.array(masks)[labels]:
            top, left = rng.integers(0, SIDE - 5, 2)
            image[top : top + 5, left : left + 5] += mask
    return TensorDataset(torch.tensor(images).float(), torch.tensor(shown).float())


def f1(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the F1 score in percent over all labels of a client's test samples."""
    found, shown = outputs > 0, targets > 0.5
    return 200 * float((found & shown).sum()) / max(float(found.sum() + shown.sum()), 1.0)


f1.title = "F1 %"


def network() -> nn.Module:
    """Return two convolutions and a linear layer, which a task replaces."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, SHAPES)),
    )


def main(rounds: int = 60, task_rounds: int = 20) -> cp.StartsResult:
    """Pre-train on clear images, compare on noisier ones."""
    clients = cp.partition(shapes(3000, 0, 0.2), clients=30)
    how = {"loss": nn.BCEWithLogitsLoss(), "learning_rate": 0.2, "local_steps": 10}
    starts = {"random": network()} | {
        method: cp.pretrain(method, network(), clients, rounds, participants=10, quiet=True, **how)
        for method in ("fedavg", "coprefl:meta-learning-rate=0.02")
    }
    tasks = cp.tasks(shapes(1200, 1, 0.4), number=3, clients=10)
    return cp.evaluate_starts(
        starts, tasks, task_rounds, client_metrics=f1, evaluate_every=0, **how
    )


if __name__ == "__main__":
    print(main())
