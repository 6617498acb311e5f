"""Several labels of an image: which of four shapes it shows.

python examples/targets/multi_label.py
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coprefl_flwr as cp

SIDE, SHAPES = 16, 4


def shapes(cameras: int, seed: int, noise: float) -> tuple[TensorDataset, np.ndarray]:
    """Return 100 images of each camera (n, 1, 16, 16), with the shapes that each shows, (n, 4).

    A shape is 0.0 or 1.0. The cameras (n,) see the shapes with different frequencies.
    """
    rng = np.random.default_rng(seed)
    camera = np.repeat(np.arange(cameras), 100)
    shown = rng.random((len(camera), SHAPES)) < rng.uniform(0.1, 0.7, (cameras, SHAPES))[camera]
    images = rng.normal(0, noise, (len(camera), 1, SIDE, SIDE))
    x, y = np.mgrid[:5, :5] - 2
    masks = [abs(x) + abs(y) <= 2, np.maximum(abs(x), abs(y)) == 2, (x == 0) | (y == 0), x == y]
    for image, labels in zip(images[:, 0], shown, strict=True):
        for mask in np.array(masks)[labels]:
            top, left = rng.integers(0, SIDE - 5, 2)
            image[top : top + 5, left : left + 5] += mask
    return TensorDataset(torch.tensor(images).float(), torch.tensor(shown).float()), camera


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


def main(rounds: int = 60, task_rounds: int = 10) -> cp.StartsResult:
    """Pre-train across 30 cameras; each of three cameras with noisier images is a task."""
    images, camera = shapes(30, 0, 0.2)
    clients = cp.partition(images, groups=camera)
    how = {"loss": nn.BCEWithLogitsLoss(), "learning_rate": 0.2, "local_steps": 10}
    starts = {"random": network()} | {
        method: cp.pretrain(method, network(), clients, rounds, participants=10, quiet=True, **how)
        for method in ("fedavg", "coprefl:meta-learning-rate=0.02")
    }
    images, camera = shapes(3, 1, 0.3)
    tasks = cp.tasks(images, groups=camera, clients=4, scheme="iid")
    return cp.evaluate_starts(
        starts, tasks, task_rounds, client_metrics=f1, evaluate_every=0, **how
    )


if __name__ == "__main__":
    print(main())
