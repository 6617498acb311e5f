"""A tiny federation of image clients, with what many tests start from."""

import numpy as np
import torch
from torch import nn

from coprefl_flwr.clients import CoPreFLClient, TorchClient, client_app
from coprefl_flwr.data import ImageDataset, Samples
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.models import model_arrays

CLASSES = 3
SIZES = (10, 14, 23, 31)


def tiny_model():
    """A network with everything that travels: weights, BatchNorm statistics, an int64 counter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES)
        )


class Federation:
    """Clients 0..3 with 10, 14, 23 and 31 random 4x4 images of three classes."""

    def __init__(self, training, resplit=True):
        rng = np.random.default_rng(7)
        n = sum(SIZES)
        images = torch.from_numpy(rng.integers(0, 256, (n, 1, 4, 4), dtype=np.uint8))
        labels = rng.integers(0, CLASSES, n)
        dataset = ImageDataset(
            images, labels, ("a", "b", "c"), mean=torch.tensor([0.5]), std=torch.tensor([0.3])
        )
        ends = np.cumsum(SIZES)
        self.samples = [
            Samples(dataset, np.arange(end - size, end), labels[end - size : end])
            for size, end in zip(SIZES, ends, strict=True)
        ]
        self.training = training
        self.resplit = resplit
        self.model = tiny_model()

    @classmethod
    def full_batch(cls):
        """Return one that trains by two full-batch steps: nothing random is left."""
        return cls(LocalTraining(local_steps=2, batch_size=1000, learning_rate=0.1))

    @classmethod
    def stochastic(cls):
        """Return one that trains by five steps of eight samples."""
        return cls(LocalTraining(local_steps=5, batch_size=8, learning_rate=0.1))

    def coprefl_client(self, context, client_id):
        return CoPreFLClient(
            self.model,
            self.samples[client_id],
            self.training,
            resplit=self.resplit,
            test=self.samples[client_id],
            device=torch.device("cpu"),
        )

    def torch_client(self, context, client_id):
        samples = self.samples[client_id]
        return TorchClient(self.model, samples, samples, self.training, torch.device("cpu"))

    def arrays(self):
        return model_arrays(tiny_model())

    def coprefl_app(self, clients=4):
        return client_app(self.coprefl_client, clients=clients)

    def torch_app(self, clients=4):
        return client_app(self.torch_client, clients=clients)
