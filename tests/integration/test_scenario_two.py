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
from coprefl_flwr.methods import METHODS
from coprefl_flwr.strategies import CoPreFL, FedAvg, HybridCoPreFL, ServerRefined
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
def test_a_round_is_algorithm_2(federation, gamma):
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
def test_parts_are_a_partition_anew_each_round(federation, participants):
    strategy = HybridCoPreFL(server=server_of(federation))
    first, second = (RoundContext(strategy, Listed([]), number) for number in (1, 2))
    parts = strategy.parts(first, participants)
    sizes = {len(part) for part in parts}
    assert len(parts) == participants
    assert max(sizes) - min(sizes) <= 1
    assert sorted(np.concatenate(parts)) == list(range(31))
    assert list(np.concatenate(parts)) != list(np.concatenate(strategy.parts(second, participants)))


def test_too_little_server_data_is_refused_at_the_start(federation):
    message = r"the server has 10 samples; at least 11 are needed"
    with pytest.raises(SettingsError, match=message):
        HybridCoPreFL(server=server_of(federation, client=0), participants=11, clients=4)
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


def test_refined_fedavg(federation):
    """Each round is FedAvg by hand, then four full-batch steps on the server's 31 samples."""
    strategy = ServerRefined(
        FedAvg(participants=3, seed=2, clients=4),
        server_of(federation),
        steps=4,
        batch_size=31,
        learning_rate=0.05,
    )
    assert strategy.participants == 3
    asked = record_samples(strategy.inner)
    grid = LocalGrid(federation.torch_app())
    result = strategy.start(grid, to_record(federation.arrays()), 2)
    expected = federation.arrays()
    for participants in asked:
        expected = fedavg_by_hand(federation, expected, participants)
        expected = refine_by_hand(federation, expected, 4, 0.05)
    for name, array in from_record(result.arrays).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=name)
    assert "server-loss" in result.train_metrics_clientapp[2]


def test_coprefl_sgd(federation):
    """Two rounds by hand: in each, a round of Scenario I and then the refinement."""
    strategy = ServerRefined(
        CoPreFL(gamma=0.25, meta_learning_rate=0.5, participants=3, clients=4),
        server_of(federation),
        steps=2,
        batch_size=31,
        learning_rate=0.05,
    )
    asked = record_samples(strategy.inner)
    grid = LocalGrid(federation.coprefl_app())
    result = strategy.start(grid, to_record(federation.arrays()), 2)
    expected = federation.arrays()
    for server_round, participants in enumerate(asked, start=1):
        expected, _ = one_round_by_hand(
            federation, expected, participants, server_round, gamma=0.25, zeta=0.5
        )
        expected = refine_by_hand(federation, expected, 2, 0.05)
    for name, array in from_record(result.arrays).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=name)
    assert run_of(strategy).state == {}


def test_the_server_refines_in_its_precision(federation):
    """A round is FedAvg's mean with clients in float32, then the server's steps in bfloat16."""
    server = server_of(federation)
    server.precision = "bf16"
    strategy = ServerRefined(FedAvg(clients=4), server, steps=3, batch_size=8, learning_rate=0.1)
    start = to_record(federation.arrays())
    mean = from_record(FedAvg(clients=4).start(LocalGrid(federation.torch_app()), start, 1).arrays)
    found = from_record(strategy.start(LocalGrid(federation.torch_app()), start, 1).arrays)
    key = (0, "train", 1, "server-refinement")
    of = {
        name: server.refine(
            mean, LocalTraining(local_steps=3, batch_size=8, learning_rate=0.1, precision=name),
            1, *key,
        )[0]
        for name in ("bf16", "float32")
    }  # fmt: skip
    name = "1.weight"
    assert found[name].tobytes() == of["bf16"][name].tobytes()
    assert found[name].tobytes() != of["float32"][name].tobytes()


@pytest.mark.parametrize("name", ["coprefl-hybrid", "coprefl-sgd"])
def test_data_that_two_phases_share_are_of_each_in_its_precision(name, federation):
    """Each phase gets a copy of the study's server data, and the study's data are not changed."""
    method, shared = METHODS[name], server_of(federation)
    options = {key: one.default for key, one in method.options.items()}
    made = [
        method.strategy(options, LocalTraining(precision=one), lambda whose: shared, participants=2)
        for one in ("bf16", "float32")
    ]
    assert [one.server.precision for one in made] == ["bf16", "float32"]
    assert shared.precision == "float32"


def test_no_refinement_steps_is_the_inner_method(federation):
    start = to_record(federation.arrays())
    plain = FedAvg(participants=2, clients=4).start(LocalGrid(federation.torch_app()), start, 2)
    refined = ServerRefined(FedAvg(participants=2, clients=4), server_of(federation), steps=0)
    result = refined.start(LocalGrid(federation.torch_app()), start, 2)
    for name, array in from_record(plain.arrays).items():
        assert array.tobytes() == from_record(result.arrays)[name].tobytes()


@pytest.mark.parametrize("method", ["hybrid", "refined"])
def test_resumed_runs_end_with_identical_bytes(stochastic_federation, tmp_path, method):
    federation = stochastic_federation

    def make():
        if method == "hybrid":
            return HybridCoPreFL(server=server_of(federation), participants=3, clients=4)
        return ServerRefined(
            CoPreFL(participants=3, clients=4), server_of(federation), learning_rate=0.1
        )

    app = federation.torch_app() if method == "hybrid" else federation.coprefl_app()
    start, path = to_record(federation.arrays()), tmp_path / "checkpoint"
    whole = make().start(LocalGrid(app), start, 4)
    make().start(LocalGrid(app), start, 2, checkpoint=path)
    resumed = make().start(LocalGrid(app), start, 4, checkpoint=path, resume=True)
    for name, array in from_record(whole.arrays).items():
        assert array.tobytes() == from_record(resumed.arrays)[name].tobytes(), name


def test_another_refinement_is_another_run(federation, tmp_path):
    start, grid = to_record(federation.arrays()), LocalGrid(federation.torch_app())
    path = tmp_path / "checkpoint"
    ServerRefined(FedAvg(clients=4), server_of(federation), steps=1).start(
        grid, start, 1, checkpoint=path
    )
    with pytest.raises(SettingsError, match="another run: its steps is 1, not 2"):
        ServerRefined(FedAvg(clients=4), server_of(federation), steps=2).start(
            grid, start, 2, checkpoint=path, resume=True
        )
