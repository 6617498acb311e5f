"""The model, and data that needs no download: three spirals, seen by each node from its angle."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small classifier of points in the plane."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Return the three classes' logits."""
        return self.layers(points)


def load_data(partition_id: int) -> tuple[DataLoader, DataLoader]:
    """Return a node's batches: (150 points, the other 50)."""
    generator = torch.Generator().manual_seed(partition_id)
    labels = torch.randint(0, 3, (200,), generator=generator)
    radius = torch.rand(200, generator=generator) * 2
    angle = radius + 2.1 * labels + 0.3 * partition_id
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    first, rest = (
        TensorDataset(points[:150], labels[:150]),
        TensorDataset(points[150:], labels[150:]),
    )
    return DataLoader(first, batch_size=32), DataLoader(rest, batch_size=50)


def train(model: nn.Module, batches: DataLoader, learning_rate: float) -> float:
    """Train for one epoch and return the last batch's loss."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for points, labels in batches:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimiser.step()
    return loss.item()
