"""What is measured: a model, random images, and how much local training a round asks for."""

import functools
from dataclasses import dataclass

import torch
from torch import nn

from coprefl_flwr import seeds
from coprefl_flwr.data import ImageDataset, Samples
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.models import build_model

SEED = 0
POPULATION = "train"


@dataclass(frozen=True)
class Workload:
    """One federated task; every client holds `samples_per_client` random uint8 images.

    Parameters
    ----------
    model : str
        Name of the network, as `build_model` takes it.
    image_shape : tuple[int, int, int]
        (channels, height, width).
    samples_per_client : int
        A multiple of what a participation uses, so that every batch is full, CoPreFL's (which come
        from 80% of the samples) too.
    rounds : int
        Rounds that are measured, unless the command says otherwise.
    """

    title: str
    model: str
    image_shape: tuple[int, int, int]
    num_classes: int
    samples_per_client: int
    local_steps: int
    batch_size: int
    rounds: int
    clients: int = 100
    participants: int = 20
    learning_rate: float = 1e-3

    def build(self) -> nn.Module:
        """Return the model on the CPU, with the same weights in every process."""
        return build_model(self.model, self.num_classes, self.image_shape)

    def training(self) -> LocalTraining:
        """Return what a client does in a round."""
        return LocalTraining(
            local_steps=self.local_steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
        )

    def coprefl_work(self) -> float:
        """Return how many gradients of samples a CoPreFL round takes for one of FedAvg's."""
        steps = self.local_steps * self.batch_size
        query = self.samples_per_client - int(0.8 * self.samples_per_client)
        return (steps + query) / steps


WORKLOADS = {
    "femnist-cnn": Workload(
        "FEMNIST CNN (1x28x28, 62 classes)", "femnist-cnn", (1, 28, 28), 62, 200, 5, 32, rounds=20
    ),
    "resnet18": Workload(
        "ResNet-18 (CIFAR stem, 3x32x32, 10 classes)",
        "resnet18",
        (3, 32, 32),
        10,
        20,
        2,
        8,
        rounds=6,
    ),
    # For the test of the benchmark itself.
    "tiny": Workload(
        "tiny CNN", "femnist-cnn", (1, 4, 4), 3, 20, 2, 8, rounds=2, clients=6, participants=4
    ),
}


@functools.cache
def dataset(workload: Workload) -> ImageDataset:
    """Return the random images of all clients, the same in every process."""
    rng = seeds.generator(SEED, "benchmark-images")
    n = workload.clients * workload.samples_per_client
    images = torch.from_numpy(rng.integers(0, 256, (n, *workload.image_shape), dtype="uint8"))
    labels = rng.integers(0, workload.num_classes, n)
    names = tuple(str(label) for label in range(workload.num_classes))
    return ImageDataset.of("benchmark", images, labels, names)


def samples(workload: Workload, client: int) -> Samples:
    """Return what client number `client` holds: as many consecutive images as all the others."""
    data = dataset(workload)
    n = workload.samples_per_client
    rows = torch.arange(client * n, (client + 1) * n).numpy()
    return Samples(data, rows, data.labels[rows])
