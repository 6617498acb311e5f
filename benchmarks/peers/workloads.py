"""The workloads: a network, synthetic data of a published shape, and the clients of a round.

This file uses nothing of any package that is measured.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

SEED = 0


@dataclass(frozen=True)
class Task:
    """FedAvg on synthetic data: each participant takes one pass over its samples.

    Parameters
    ----------
    network : str
        "linear", "cnn", "femnist-cnn" or "resnet18".
    shape : tuple[int, ...]
        Shape of one input, float32.
    samples : int
        Samples of each client, a multiple of `batch`.
    rounds : int
        Number of measured rounds.
    """

    name: str
    title: str
    network: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    participants: int
    samples: int
    batch: int
    learning_rate: float
    rounds: int

    def model(self) -> nn.Module:
        """Return the network with its initial weights, the same in every process."""
        torch.manual_seed(SEED)
        return _NETWORKS[self.network](self)

    def data(self) -> tuple[Tensor, Tensor]:
        """Return all clients' inputs and labels (int64), the same in every process.

        The labels are those of a random linear teacher, so that a model can learn them.
        """
        numbers = torch.Generator().manual_seed(SEED)
        count = self.clients * self.samples
        inputs = torch.randn(count, *self.shape, generator=numbers)
        flat = inputs.flatten(1)
        teacher = torch.randn(flat.shape[1], self.classes, generator=numbers)
        return inputs, (flat @ teacher).argmax(dim=1)

    def shares(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return each client's inputs and labels."""
        inputs, labels = self.data()
        return torch.split(inputs, self.samples), torch.split(labels, self.samples)


def _linear(task: Task) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(task.shape[0], task.classes))


def _cnn(task: Task) -> nn.Module:
    """Return the CNN of pfl's CIFAR-10 benchmark, without its dropout."""
    channels, height, width = task.shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(),
        nn.Linear(128, task.classes),
    )


def _femnist_cnn(task: Task) -> nn.Module:
    channels, height, width = task.shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        nn.ReLU(),
        nn.Linear(128, task.classes),
    )


def _resnet18(task: Task) -> nn.Module:
    """Return ResNet-18 with GroupNorm of two groups, and a first layer for small images."""
    import torchvision

    model: nn.Module = torchvision.models.resnet18(
        num_classes=task.classes, norm_layer=lambda channels: nn.GroupNorm(2, channels)
    )
    model.conv1 = nn.Conv2d(task.shape[0], 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


_NETWORKS = {
    "linear": _linear,
    "cnn": _cnn,
    "femnist-cnn": _femnist_cnn,
    "resnet18": _resnet18,
}
_ALL = (
    Task(
        "lr-mnist",
        "Logistic regression in the shape of MNIST (FLUTE's comparison)",
        network="linear",
        shape=(784,),
        classes=10,
        clients=1000,
        participants=10,
        samples=60,
        batch=10,
        learning_rate=0.03,
        rounds=100,
    ),
    Task(
        "tiny-clients",
        "10,000 clients in a round, one step each",
        network="linear",
        shape=(32,),
        classes=10,
        clients=10_000,
        participants=10_000,
        samples=10,
        batch=10,
        learning_rate=0.03,
        rounds=2,
    ),
    Task(
        "cifar10-cnn",
        "CNN in the shape of CIFAR-10 (pfl's comparison)",
        network="cnn",
        shape=(3, 32, 32),
        classes=10,
        clients=1000,
        participants=50,
        samples=50,
        batch=10,
        learning_rate=0.03,
        rounds=20,
    ),
    Task(
        "femnist-cnn",
        "CNN in the shape of FEMNIST",
        network="femnist-cnn",
        shape=(1, 28, 28),
        classes=62,
        clients=100,
        participants=20,
        samples=100,
        batch=20,
        learning_rate=0.03,
        rounds=10,
    ),
    Task(
        "resnet18",
        "ResNet-18 with GroupNorm, 32x32 images",
        network="resnet18",
        shape=(3, 32, 32),
        classes=10,
        clients=20,
        participants=5,
        samples=20,
        batch=10,
        learning_rate=0.01,
        rounds=5,
    ),
    # For the tests of the benchmark itself.
    Task(
        "smoke",
        "a small linear network",
        network="linear",
        shape=(8,),
        classes=3,
        clients=6,
        participants=3,
        samples=8,
        batch=4,
        learning_rate=0.1,
        rounds=2,
    ),
)
TASKS = {task.name: task for task in _ALL}
REAL = tuple(name for name in TASKS if name != "smoke")
