"""How many copies of a model a round holds on the local grid."""

import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import CoPreFLClient, TorchClient, client_app
from coprefl_flwr.data import Samples, make_dataset
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import model_arrays
from coprefl_flwr.strategies import CoPreFL, FedAvg

SIDE = 16


def network():
    """Return a network whose weight arrays all have the same size."""
    return nn.Sequential(
        nn.Flatten(), *(nn.Linear(SIDE**2, SIDE**2, bias=False) for _ in range(12))
    )


@pytest.mark.parametrize(
    ("strategy", "client", "most"),
    [(FedAvg, TorchClient, 6.0), (CoPreFL, CoPreFLClient, 9.5)],
)
def test_round_holds_few_copies_of_the_model(strategy, client, most):
    """The limits count only copies in NumPy arrays.

    Torch holds two more copies, the model and its gradients. The caller holds one more copy, which
    was made before the measurement.
    """
    model = network()
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (20, 1, SIDE, SIDE), dtype=np.uint8))
    data = make_dataset("made", images, np.arange(20) % 4)
    training = LocalTraining(local_steps=1, batch_size=2)
    samples = Samples(data, np.arange(10), data.labels[:10])
    app = client_app(
        lambda _, i: client(model, samples, training=training, device=torch.device("cpu"))
    )
    start = to_record(model_arrays(model))
    size = sum(array.nbytes for array in model_arrays(model).values())
    strategy(participants=3, clients=4).start(LocalGrid(app), start, 1)
    tracemalloc.start()
    try:
        strategy(participants=3, clients=4).start(LocalGrid(app), start, 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / size <= most, f"{peak / size:.1f} copies"
