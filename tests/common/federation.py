"""A tiny federation of image clients, which many tests use."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from coprefl_flwr.clients import CoPreFLClient, TorchClient, client_app
from coprefl_flwr.data import ImageDataset, Samples
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.federation.messages import ROSTER
from coprefl_flwr.federation.nodes import NODES
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import model_arrays
from tests.common.networks import CLASSES, double_model, tiny_model

SIZES = (10, 14, 23, 31)
CPU = torch.device("cpu")


def pair(context, population):
    """Host two clients on each of two nodes."""
    return [2 * context.node_config["partition-id"] + i for i in (0, 1)]


@dataclass
class Listed:
    """A fixed list of client ids instead of a transport, to run a round by hand, without a grid."""

    ids: Sequence[int]

    def clients(self, wanted=None):
        return self.ids

    @property
    def most_clients(self):
        return len(self.ids)


HOSTINGS = {
    "1": (1, 4),
    "2": (2, 4),
    "4": (4, 4),
    "pairs": (2, pair),
    "own": (4, None),
    "plain": (4, NODES),
}
"""Number of nodes, and the clients, by kind of hosting.

The clients are a number if any node can run any client. Otherwise each node states the clients that
it hosts, by a function or by its partition-id (None). "plain" nodes are not asked.
"""


def hosted(hosting, client_fn, grid_class=LocalGrid, around=lambda app: app):
    """Return a grid whose clients are hosted as described by an entry of `HOSTINGS`.

    The grid's `clients` must be given to the strategy. The nodes run `around(app)`.
    """
    nodes, clients = HOSTINGS[hosting]
    shared = clients if isinstance(clients, int | str) else None
    grid = grid_class(around(client_app(client_fn, None if shared else clients)), nodes=nodes)
    grid.clients = shared
    return grid


def renamed(app, ids):
    """Return an app whose nodes have the partition-ids {node: id}; an id of None removes it."""

    def answer(message, context):
        if context.node_id in ids:
            context.node_config.pop("partition-id", None)
            if ids[context.node_id] is not None:
                context.node_config["partition-id"] = ids[context.node_id]
        return app(message, context)

    return answer


def without_roster(app):
    """Return an app whose nodes answer no roster query, so that each node is one client.

    The client's id is the id of the node, which is 2 more than the client's usual id.
    """

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
        """Return a federation that trains with two full-batch steps, so nothing is random."""
        return cls(LocalTraining(local_steps=2, batch_size=1000, learning_rate=0.1))

    @classmethod
    def stochastic(cls):
        """Return a federation that trains with five steps of eight samples."""
        return cls(LocalTraining(local_steps=5, batch_size=8, learning_rate=0.1))

    @classmethod
    def exact(cls, norm=True):
        """Return a float64 federation; client i takes i + 1 full-batch steps of rate 0.1."""
        federation = cls(
            LocalTraining(batch_size=1000, learning_rate=0.1), model=double_model(norm)
        )
        federation.uneven = True
        return federation

    def whole(self, client_id):
        """Return all of a client's inputs and targets."""
        return self.samples[client_id].batch(slice(None), CPU)

    def training_of(self, client_id):
        """Return the training settings of a client."""
        if self.uneven:
            return replace(self.training, local_steps=client_id + 1)
        return self.training

    def client(self, client_class, client_id, states=None, **more):
        """Return a client of `client_class`, which keeps its states in the folder `states`."""
        samples, training = self.samples[client_id], self.training_of(client_id)
        options = {"test": samples, "training": training, "device": CPU, **more}
        if states is not None:
            options["state"] = ClientState(states)
        return client_class(self.model, samples, **options)

    def app(self, client_class, states=None, **more):
        """Return an app whose clients are of `client_class` and keep their states in `states`."""
        return client_app(lambda _, client_id: self.client(client_class, client_id, states, **more))

    def grid(self, hosting, client_class, around=lambda app: app, **more):
        """Return a grid of the same four clients, hosted as in `hosted`."""

        def client_fn(_, client_id):
            return self.client(client_class, client_id, **more)

        return hosted(hosting, client_fn, around=around)

    def keep(self, classes_of_clients):
        """Keep only the samples of the given classes at each client."""
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
