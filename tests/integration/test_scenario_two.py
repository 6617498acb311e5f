"""Scenario II and refinement on the server, compared with independent float64 computations."""

import numpy as np
import pytest
import torch

from coprefl_flwr import seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.clients import CoPreFLClient, TorchClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import RoundContext
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.strategies import CoPreFL, FedAvg, HybridCoPreFL, ServerRefined
from tests.common.by_hand import (
    assert_equal,
    descend,
    loaded,
    loss_of,
    means_by_hand,
    record_samples,
    run_on,
    step_against,
)
from tests.common.federation import Listed
from tests.common.runs import run_of
from tests.strategies.test_coprefl import one_round_by_hand

CPU = torch.device("cpu")


def server_of(federation, client=3):
    """Return server data with the samples of a client, by default client 3.

    Client 3 has 31 samples, which cannot be divided into 3 or 4 equal parts.
    """
    return ServerData(federation.model, federation.samples[client], CPU)


def hybrid_round_by_hand(federation, start, participants, server_round, gamma, zeta):
    """Return a round of Algorithm 2: L_meta over the parts of D^s, with autograd.

    The temporary model is that of FedAvg on D_j.
    """
    model = loaded(means_by_hand(federation, start, participants)).eval()
    inputs, targets = federation.whole(3)
    order = seeds.generator(0, "train", server_round, "server-parts").permutation(31)
    parts = np.array_split(order, len(participants))
    losses = torch.stack([loss_of(model, (inputs[part], targets[part])) for part in parts])
    meta = gamma * losses.sum() + (1 - gamma) * ((losses - losses.mean()) ** 2).mean()
    return step_against(model, meta, zeta)


@pytest.mark.parametrize("gamma", [0.0, 0.25, 1.0])
def test_coprefl_hybrid_round_is_algorithm_2(exact_federation, gamma):
    """Two rounds with three participants; the 31 server samples form parts of 11, 10 and 10."""
    start, server = exact_federation.arrays(), server_of(exact_federation)
    strategy = HybridCoPreFL(server=server, gamma=gamma, meta_learning_rate=0.5, participants=3)
    found, asked = run_on(strategy, exact_federation.grid("2", TorchClient), start)
    for server_round, participants in enumerate(asked, start=1):
        start = hybrid_round_by_hand(
            exact_federation, start, participants, server_round, gamma, zeta=0.5
        )
    assert_equal(found, start)


@pytest.mark.parametrize("participants", [1, 3, 4, 31])
def test_parts_of_the_server_data_are_a_new_partition_each_round(federation, participants):
    strategy = HybridCoPreFL(server=server_of(federation))
    first, second = (RoundContext(strategy, Listed([]), number) for number in (1, 2))
    parts = strategy.parts(first, participants)
    sizes = {len(part) for part in parts}
    assert len(parts) == participants
    assert max(sizes) - min(sizes) <= 1
    assert sorted(np.concatenate(parts)) == list(range(31))
    assert list(np.concatenate(parts)) != list(np.concatenate(strategy.parts(second, participants)))


def test_too_little_server_data_is_refused_before_any_work(federation):
    small = server_of(federation)
    small.samples = small.samples.take(np.arange(3))
    with pytest.raises(SettingsError, match=r"has 3 samples; one for each of 4"):
        HybridCoPreFL(server=small, participants=4)


@pytest.mark.parametrize("name", ["fedavg", "coprefl"])
def test_refined_rounds_by_hand(name, exact_federation):
    """Two rounds by hand: a round of the inner method, then full-batch steps of the server."""
    options, start = {"participants": 3, "seed": 2}, exact_federation.arrays()
    if name == "fedavg":
        inner, client = FedAvg(**options), TorchClient
    else:
        inner, client = CoPreFL(gamma=0.25, meta_learning_rate=0.5, **options), CoPreFLClient
    server = server_of(exact_federation)
    strategy = ServerRefined(inner, server, steps=4, batch_size=31, learning_rate=0.05)
    assert strategy.participants == 3
    asked = record_samples(strategy.inner)
    found, _ = run_on(strategy, exact_federation.grid("1", client), start)
    for number, participants in enumerate(asked, start=1):
        if name == "fedavg":
            start = means_by_hand(exact_federation, start, participants)
        else:
            start, _ = one_round_by_hand(
                exact_federation, start, participants, number, gamma=0.25, zeta=0.5, seed=2
            )
        model = loaded(start)
        data = exact_federation.whole(3)
        descend(model, lambda model=model, data=data: loss_of(model, data), 4, 0.05)
        start = {key: value.numpy() for key, value in model.state_dict().items()}
    assert_equal(found, start)
    assert "server-loss" in run_of(strategy).history.train[2]
    assert run_of(strategy).state == {}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_refinement_has_the_seed_of_its_round_and_the_precision_of_the_server(
    precision, federation
):
    server = server_of(federation)
    server.precision = precision
    options = {"batch_size": 8, "learning_rate": 0.1}
    start, grid = to_record(federation.arrays()), LocalGrid(federation.torch_app())
    mean = from_record(FedAvg(clients=4).start(grid, start, 1).arrays)
    refined = ServerRefined(FedAvg(clients=4), server, steps=3, **options)
    found = from_record(refined.start(grid, start, 1).arrays)
    training = LocalTraining(local_steps=3, precision=precision, **options)
    expected, _ = server.refine(mean, training, 1, 0, "train", 1, "server-refinement")
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }
