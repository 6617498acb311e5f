"""Pre-train with CoPreFL and evaluate the start, on the built-in images of characters.

python examples/ten_lines.py
"""

import torch
from torch import nn

import coprefl_flwr as cp


class Net(nn.Module):
    """Two convolutions and a linear layer, which a task replaces."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, stride=2), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten()),
        )
        self.last = nn.Linear(32 * 6 * 6, 80)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the classes' logits."""
        return self.last(self.body(images))


def main(rounds: int = 50, number: int = 5, task_rounds: int = 20) -> cp.StartsResult:
    """Pre-train on 80 classes, compare on tasks of the other 20."""
    data = cp.load_dataset("glyphs")  # or any torch Dataset
    clients = cp.partition(data, clients=100, alpha=0.5, only=range(80))
    start = cp.pretrain(cp.CoPreFL(gamma=0.5, participants=20), Net(), clients, rounds=rounds)
    tasks = cp.tasks(data, number=number, classes=5, clients=10, only=range(80, 100))
    starts = {"random": Net(), "coprefl": start}
    return cp.evaluate_starts(starts, tasks, rounds=task_rounds, evaluate_every=0)


if __name__ == "__main__":
    print(main())
