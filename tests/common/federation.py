"""A tiny federation of image clients, with what many tests start from."""

from dataclasses import replace

import numpy as np
import torch

from coprefl_flwr.clients import CoPreFLClient, TorchClient, client_app
from coprefl_flwr.data import ImageDataset, Samples
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.federation.messages import ROSTER
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.models import model_arrays
from tests.common.networks import CLASSES, double_model, tiny_model

SIZES = (10, 14, 23, 31)
CPU = torch.device("cpu")


def pair(context, population):
    """Host two clients on each of two nodes."""
    return [2 * context.node_config["partition-id"] + i for i in (0, 1)]


HOSTINGS = {
    "1": (1, 4),
    "2": (2, 4),
    "4": (4, 4),
    "pairs": (2, pair),
    "own": (4, None),
    "plain": (4, None),
}
"""Number of nodes, and the clients: their number, which any node can run, or what each node says
of its own; "plain" ones do not know the question."""


def hosted(hosting, client_fn, grid_class=LocalGrid, around=lambda app: app):
    """Return a grid of clients hosted as one of `HOSTINGS` says.

    Its `clients` are what the strategy must be given; its nodes run what `around` makes of the app.
    """
    nodes, clients = HOSTINGS[hosting]
    shared = clients if isinstance(clients, int) else None
    app = client_app(client_fn, None if shared else clients)
    grid = grid_class(around(without_roster(app) if hosting == "plain" else app), nodes=nodes)
    grid.clients = shared
    return grid


def renamed(app, ids):
    """Return an app whose nodes have these partition-ids, {node: id}; with None they have none."""

    def answer(message, context):
        if context.node_id in ids:
            context.node_config.pop("partition-id", None)
            if ids[context.node_id] is not None:
                context.node_config["partition-id"] = ids[context.node_id]
        return app(message, context)

    return answer


def without_roster(app):
    """Return an app whose nodes are clients of the nodes' ids, which are 2 more than ours."""

    def answer(message, context):
        if message.metadata.message_type == ROSTER:
            raise ValueError("No query function registered")
        return app(message, context)

    return answer


class Federation:
    """Clients 0..3 with 10, 14, 23 and 31 random 4x4 images of three classes."""

    def __init__(self, training, model=None):
        rng = np.random.default_rng(7)
        n = sum(SIZES)
        images = torch.from_numpy(rng.integers(0, 256, (n, 1, 4, 4), dtype=np.uint8))
        labels = rng.integers(0, CLASSES, n)
        dataset = ImageDataset(
            images,
            mean=torch.tensor([0.5]),
            std=torch.tensor([0.3]),
            labels=labels,
            classes=("a", "b", "c"),
        )
        ends = np.cumsum(SIZES)
        self.samples = [
            Samples(dataset, np.arange(end - size, end), labels[end - size : end])
            for size, end in zip(SIZES, ends, strict=True)
        ]
        self.training = training
        self.model = tiny_model() if model is None else model
        self.start = model_arrays(self.model)
        self.uneven = False

    @classmethod
    def full_batch(cls):
        """Return one that trains by two full-batch steps: nothing random is left."""
        return cls(LocalTraining(local_steps=2, batch_size=1000, learning_rate=0.1))

    @classmethod
    def stochastic(cls):
        """Return one that trains by five steps of eight samples."""
        return cls(LocalTraining(local_steps=5, batch_size=8, learning_rate=0.1))

    @classmethod
    def exact(cls, norm=True):
        """Return one in float64 whose client i takes i + 1 full-batch steps of rate 0.1."""
        federation = cls(
            LocalTraining(batch_size=1000, learning_rate=0.1), model=double_model(norm)
        )
        federation.uneven = True
        return federation

    def whole(self, client_id):
        """Return all of a client's inputs and targets."""
        return self.samples[client_id].batch(slice(None), CPU)

    def training_of(self, client_id):
        """Return how a client trains."""
        if self.uneven:
            return replace(self.training, local_steps=client_id + 1)
        return self.training

    def client(self, client_class, client_id, states=None, **more):
        """Return a client of a class, its states below `states`."""
        samples, training = self.samples[client_id], self.training_of(client_id)
        options = {"test": samples, "training": training, "device": CPU, **more}
        if states is not None:
            options["state"] = ClientState(states)
        return client_class(self.model, samples, **options)

    def app(self, client_class, states=None, **more):
        """Return the app whose clients are of `client_class`, their states below `states`."""
        return client_app(lambda _, client_id: self.client(client_class, client_id, states, **more))

    def grid(self, hosting, client_class, around=lambda app: app, **more):
        """Return a grid of the same four clients, as `hosted` does."""

        def client_fn(_, client_id):
            return self.client(client_class, client_id, **more)

        return hosted(hosting, client_fn, around=around)

    def keep(self, classes_of_clients):
        """Leave every client only samples of its classes."""
        for client, classes in enumerate(classes_of_clients):
            samples = self.samples[client]
            self.samples[client] = samples.take(np.flatnonzero(np.isin(samples.labels, classes)))
        return self

    def arrays(self):
        return {name: array.copy() for name, array in self.start.items()}

    def coprefl_app(self):
        return self.app(CoPreFLClient)

    def torch_app(self):
        return self.app(TorchClient)
