"""The model, its training, and data: three spirals, rotated differently for each node."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

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

    def __init__(self, partition_id: int, num_partitions: int) -> None:
        generator = torch.Generator().manual_seed(partition_id)
        self.labels = torch.randint(0, 3, (POINTS,), generator=generator)
        radius = torch.rand(POINTS, generator=generator) * 2
        angle = radius + 2.1 * self.labels + 1.2 * partition_id / num_partitions
        self.points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.labels)

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        """Return a point and its label."""
        return {"img": self.points[position], "label": self.labels[position]}


def load_data(partition_id: int, num_partitions: int, batch_size: int) -> tuple[DataLoader, ...]:
    """Return a node's training batches and its batches to evaluate on."""
    partition = Spirals(partition_id, num_partitions)
    partition_train_test = {
        "train": Subset(partition, range(150)),
        "test": Subset(partition, range(150, POINTS)),
    }
    trainloader = DataLoader(partition_train_test["train"], batch_size=batch_size, shuffle=True)
    testloader = DataLoader(partition_train_test["test"], batch_size=batch_size)
    return trainloader, testloader


def train(
    net: nn.Module, trainloader: DataLoader, epochs: int, lr: float, device: torch.device
) -> float:
    """Train the model by SGD and return the mean loss of its batches."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    losses = []
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            outputs = net(batch["img"].to(device))
            loss = nn.functional.cross_entropy(outputs, batch["label"].to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(net: nn.Module, testloader: DataLoader, device: torch.device) -> tuple[float, float]:
    """Return the mean loss and the accuracy, a fraction."""
    net.eval()
    loss, correct = 0.0, 0
    for batch in testloader:
        outputs, labels = net(batch["img"].to(device)), batch["label"].to(device)
        loss += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
        correct += int((outputs.argmax(1) == labels).sum())
    return loss / len(testloader.dataset), correct / len(testloader.dataset)
