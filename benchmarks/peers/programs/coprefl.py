"""FedAvg of this package, on its grid in this process."""

import functools
import logging
from collections.abc import Callable

import torch
from flwr.app import Context
from torch import nn

from benchmarks.peers.workloads import SEED, Task
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import TorchClient, client_app
from coprefl_flwr.data import Samples, TensorDataset
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import load_arrays, model_arrays
from coprefl_flwr.strategies import FedAvg


def run(task: Task, rounds: int, after_round: Callable[[], None]) -> nn.Module:
    """Run the rounds on a grid whose one node runs every client."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    inputs, labels = task.data()
    names = tuple(map(str, range(task.classes)))
    whole = TensorDataset(inputs, labels=labels.numpy(), classes=names)
    training = LocalTraining(
        local_epochs=1, batch_size=task.batch, learning_rate=task.learning_rate
    )
    rows = torch.arange(len(labels)).numpy()
    model = task.model()

    @functools.cache
    def client(client_id: int) -> TorchClient:
        own = rows[client_id * task.samples : (client_id + 1) * task.samples]
        return TorchClient(model, Samples(whole, own, whole.labels[own]), training=training)

    def client_fn(_: Context, client_id: int) -> TorchClient:
        return client(client_id)

    strategy = FedAvg(
        participants=task.participants, clients=task.clients, seed=SEED, evaluate_every=0
    )
    result = strategy.start(
        LocalGrid(client_app(client_fn)),
        to_record(model_arrays(model)),
        num_rounds=rounds,
        hooks=[lambda _: after_round()],
    )
    load_arrays(model, from_record(result.arrays))
    return model
