"""Scenario II and refinement on the server, compared with independent float64 computations."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from coprefl_flwr import seeds
from coprefl_flwr.arrays import from_record, to_record
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import Listed, RoundContext
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.strategies import CoPreFL, FedAvg, HybridCoPreFL, ServerRefined
from coprefl_flwr.studies.known_methods import METHODS
from tests.common.by_hand import full_batch_sgd, record_samples
from tests.common.federation import SIZES
from tests.common.networks import tiny_model
from tests.common.runs import run_of
from tests.strategies.test_coprefl import one_round_by_hand

CPU = torch.device("cpu")


def server_of(federation, client=3):
    """Return server data with the samples of a client, by default client 3.

    Client 3 has 31 samples, which cannot be divided into 3 or 4 equal parts.
    """
    return ServerData(tiny_model(), federation.samples[client], CPU)


def load(arrays):
    model = tiny_model().double()
    model.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in arrays.items()})
    return model


def fedavg_by_hand(federation, start, participants):
    """Return Algorithm 2's temporary model: two full-batch steps on D_j, mean weighted by |D_j|."""
    states = []
    for j in participants:
        model = load(start)
        inputs, targets = federation.samples[j].batch(slice(None), CPU)
        full_batch_sgd(model, inputs.double(), targets, 2, 0.1)
        states.append(model.state_dict())
    weights = [SIZES[j] for j in participants]
    mean = {}
    for name in states[0]:
        value = np.average([state[name] for state in states], axis=0, weights=weights)
        mean[name] = np.rint(value).astype(int) if "num_batches" in name else value
    return mean


def hybrid_round_by_hand(federation, start, participants, server_round, gamma, zeta):
    """Return a round of Algorithm 2 in float64: L_meta over the parts of D^s, with autograd."""
    model = load(fedavg_by_hand(federation, start, participants))
    model.eval()
    inputs, targets = federation.samples[3].batch(slice(None), CPU)
    order = seeds.generator(0, "train", server_round, "server-parts").permutation(31)
    parts = np.array_split(order, len(participants))
    losses = torch.stack(
        [functional.cross_entropy(model(inputs.double()[p]), targets[p]) for p in parts]
    )
    meta = gamma * losses.sum() + (1 - gamma) * ((losses - losses.mean()) ** 2).mean()
    gradients = torch.autograd.grad(meta, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= zeta * gradient
    return {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("gamma", [0.0, 0.25, 1.0])
def test_coprefl_hybrid_round_is_algorithm_2(federation, gamma):
    """Two rounds with three participants; the 31 server samples form parts of 11, 10 and 10."""
    strategy = HybridCoPreFL(
        server=server_of(federation), gamma=gamma, meta_learning_rate=0.5, participants=3, clients=4
    )
    asked = record_samples(strategy)
    grid = LocalGrid(federation.torch_app(), nodes=2)
    found = from_record(strategy.start(grid, to_record(federation.arrays()), 2).arrays)
    expected = federation.arrays()
    for server_round, participants in enumerate(asked, start=1):
        expected = hybrid_round_by_hand(
            federation, expected, participants, server_round, gamma, zeta=0.5
        )
    for name, array in federation.arrays().items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5, err_msg=name)


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
    everyone = HybridCoPreFL(server=small, clients=4)
    grid = LocalGrid(federation.torch_app())
    with pytest.raises(SettingsError, match=r"has 3 samples; at least 4 are needed"):
        everyone.start(grid, to_record(federation.arrays()), 1)


def refine_by_hand(federation, arrays, steps, learning_rate):
    model = load(arrays)
    inputs, targets = federation.samples[3].batch(slice(None), CPU)
    full_batch_sgd(model, inputs.double(), targets, steps, learning_rate)
    return {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", ["fedavg", "coprefl"])
def test_refined_rounds_by_hand(name, federation):
    """Two rounds by hand: a round of the inner method, then full-batch steps of the server."""
    options = {"participants": 3, "seed": 2, "clients": 4}
    if name == "fedavg":
        inner, app = FedAvg(**options), federation.torch_app()
    else:
        inner = CoPreFL(gamma=0.25, meta_learning_rate=0.5, **options)
        app = federation.coprefl_app()
    server = server_of(federation)
    strategy = ServerRefined(inner, server, steps=4, batch_size=31, learning_rate=0.05)
    assert strategy.participants == 3
    asked = record_samples(strategy.inner)
    result = strategy.start(LocalGrid(app), to_record(federation.arrays()), 2)
    expected = federation.arrays()
    for number, participants in enumerate(asked, start=1):
        if name == "fedavg":
            expected = fedavg_by_hand(federation, expected, participants)
        else:
            expected, _ = one_round_by_hand(
                federation, expected, participants, number, gamma=0.25, zeta=0.5, seed=2
            )
        expected = refine_by_hand(federation, expected, 4, 0.05)
    for key, array in from_record(result.arrays).items():
        np.testing.assert_allclose(array, expected[key], rtol=0, atol=1e-5, err_msg=key)
    assert "server-loss" in result.train_metrics_clientapp[2]
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


@pytest.mark.parametrize("name", ["coprefl-hybrid", "coprefl-sgd"])
def test_phases_that_share_server_data_keep_their_precision(name, federation):
    """Each phase gets a copy of the study's server data, and the study's data are not changed."""
    method, shared = METHODS[name], server_of(federation)
    made = [
        method.strategy(lambda whose: shared, LocalTraining(precision=one), participants=2)
        for one in ("bf16", "float32")
    ]
    assert [one.server.precision for one in made] == ["bf16", "float32"]
    assert shared.precision == "float32"


def test_run_with_other_refinement_steps_cannot_be_resumed(federation, tmp_path):
    start, grid = to_record(federation.arrays()), LocalGrid(federation.torch_app())
    path = tmp_path / "checkpoint"
    ServerRefined(FedAvg(clients=4), server_of(federation), steps=1).start(
        grid, start, 1, checkpoint=path
    )
    with pytest.raises(SettingsError, match="another run: its steps is 1, not 2"):
        ServerRefined(FedAvg(clients=4), server_of(federation), steps=2).start(
            grid, start, 2, checkpoint=path, resume=True
        )
