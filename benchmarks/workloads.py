"""The measured workloads: a network, random data, and the local training of a round.

This file, `benchmarks.bare` and `benchmarks.bare_heads` use nothing of the package.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

SEED, POPULATION = 0, "train"
MEAN, STD = 0.5, 0.3
"""Mean and standard deviation that normalise pixels between 0 and 1."""
SUPPORT, GAMMA, META_RATE = 0.8, 0.5, 0.05
"""CoPreFL's support fraction, gamma and zeta; the package's defaults."""
TEMPERATURE = 0.07
"""FedPCL's tau; the package's default."""
WIDTH = 256
"""Length of the representation in a head."""


@dataclass(frozen=True)
class Workload:
    """One federated task; every client holds `samples_per_client` random samples.

    Parameters
    ----------
    model : str
        "femnist-cnn", "resnet18", or "head": a layer of `WIDTH` on cached features, trained by
        Adam.
    shape : tuple[int, ...]
        (channels, height, width) of uint8 images, or (number,) of float32 features.
    samples_per_client : int
        A number for which every batch is full, also CoPreFL's, which come from 80 % of the
        samples.
    rounds : int
        Default number of measured rounds.
    goals : Mapping[str, float]
        {place: largest ratio to the plain loop that we aim for}.
    methods : tuple[str, ...]
        Of "fedavg", "coprefl" and "fedpcl".
    meta_rate : float
        CoPreFL's zeta, small enough that the model stays finite in all measured rounds.
    """

    name: str
    title: str
    model: str
    shape: tuple[int, ...]
    num_classes: int
    samples_per_client: int
    local_steps: int
    batch_size: int
    rounds: int
    clients: int = 100
    participants: int = 20
    learning_rate: float = 1e-3
    goals: Mapping[str, float] = field(default_factory=dict, hash=False)
    methods: tuple[str, ...] = ("fedavg", "coprefl")
    meta_rate: float = META_RATE

    @property
    def heads(self) -> bool:
        """Whether clients train heads on cached features."""
        return self.model == "head"

    def coprefl_work(self) -> float:
        """Return the number of gradients in a round of CoPreFL / that in a round of FedAvg."""
        steps = self.local_steps * self.batch_size
        query = self.samples_per_client - int(SUPPORT * self.samples_per_client)
        return (steps + query) / steps


_HEADS = ("fedavg", "fedpcl")
_ALL = (
    Workload(
        "femnist-cnn",
        "FEMNIST CNN (1x28x28, 62 classes)",
        "femnist-cnn",
        (1, 28, 28),
        62,
        200,
        5,
        32,
        rounds=30,
        goals={"local": 1.03, "ray": 0.95, "flwr": 1.15},
    ),
    Workload(
        "resnet18",
        "ResNet-18 (CIFAR stem, 3x32x32, 10 classes)",
        "resnet18",
        (3, 32, 32),
        10,
        20,
        2,
        8,
        rounds=20,
        goals={"local": 1.03, "ray": 1.05, "flwr": 1.15},
        meta_rate=1e-3,
    ),
    Workload(
        "heads",
        f"Heads with {WIDTH} units on 512 cached features of a ResNet-18 (10 classes)",
        "head",
        (512,),
        10,
        100,
        4,
        25,
        rounds=200,
        clients=20,
        goals={"local": 1.3},
        methods=_HEADS,
    ),
    # For the tests of the benchmark itself.
    Workload(
        "tiny",
        "tiny CNN",
        "femnist-cnn",
        (1, 4, 4),
        3,
        20,
        2,
        8,
        rounds=2,
        clients=6,
        participants=4,
    ),
    Workload(
        "tiny-heads",
        "tiny heads",
        "head",
        (6,),
        3,
        12,
        2,
        6,
        rounds=2,
        clients=4,
        participants=4,
        methods=_HEADS,
    ),
)
WORKLOADS = {workload.name: workload for workload in _ALL}
REAL = tuple(name for name in WORKLOADS if not name.startswith("tiny"))


@functools.cache
def data(workload: Workload) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels (int64) of all clients, the same in every process.

    Images are uint8, with random labels. Features are at least 0, and every client has all
    classes.
    """
    rng = np.random.default_rng(SEED)
    n, classes = workload.clients * workload.samples_per_client, workload.num_classes
    if workload.heads:
        features = rng.standard_normal((n, *workload.shape), np.float32)
        return torch.from_numpy(np.maximum(features, 0)), torch.arange(n) % classes
    images = rng.integers(0, 256, (n, *workload.shape), dtype=np.uint8)
    return torch.from_numpy(images), torch.from_numpy(rng.integers(0, classes, n))
