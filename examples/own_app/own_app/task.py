"""The model, its training, and data: three spirals, rotated differently for each node."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

POINTS = 200


class Net(nn.Module):
    """A small classifier of points in the plane."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (n, 3), for points, shape (n, 2)."""
        return self.layers(points)


class Spirals(Dataset):
    """Points of three spirals; each item is a dict, as in Hugging Face datasets."""

    def __init__(self, partition_id: int, first: int, last: int) -> None:
        generator = torch.Generator().manual_seed(partition_id)
        labels = torch.randint(0, 3, (POINTS,), generator=generator)
        radius = torch.rand(POINTS, generator=generator) * 2
        angle = radius + 2.1 * labels + 0.3 * partition_id
        points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
        self.points, self.labels = points[first:last], labels[first:last]

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.labels)

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        """Return a point and its label."""
        return {"img": self.points[position], "label": self.labels[position]}


def load_data(partition_id: int) -> tuple[DataLoader, DataLoader]:
    """Return a node's training batches and a batch to evaluate on."""
    training = Spirals(partition_id, 0, 150)
    evaluation = Spirals(partition_id, 150, POINTS)
    batches = DataLoader(training, batch_size=32, shuffle=True)
    return batches, DataLoader(evaluation, batch_size=50)


def train(
    model: nn.Module,
    batches: DataLoader,
    epochs: int,
    learning_rate: float,
) -> float:
    """Train the model by SGD and return the mean loss of its batches."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)
    losses = []
    for _ in range(epochs):
        for batch in batches:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["img"]), batch["label"])
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(model: nn.Module, batches: DataLoader) -> tuple[float, float]:
    """Return the mean loss and the accuracy, a fraction."""
    model.eval()
    loss, correct = 0.0, 0
    for batch in batches:
        outputs, labels = model(batch["img"]), batch["label"]
        loss += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
        correct += int((outputs.argmax(1) == labels).sum())
    return loss / len(batches.dataset), correct / len(batches.dataset)
