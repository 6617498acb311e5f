"""Compare the diagnostics with direct calculations on a tiny network in float64."""

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from coprefl_flwr.data import ClientData
from coprefl_flwr.learning import diagnostics
from coprefl_flwr.learning.diagnostics import (
    POINTS,
    barrier,
    diagnose,
    gradient_diversity,
    probe,
    top_eigenvalue,
)
from coprefl_flwr.learning.loss import CROSS_ENTROPY
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.learning.training import LocalTraining
from tests.common.federation import CPU, Federation


@pytest.fixture
def federation():
    return Federation.exact()


@pytest.fixture
def clients(federation):
    """Four clients; the test samples of a client are its training samples."""
    return [ClientData(samples, samples) for samples in federation.samples]


def whole(clients):
    pairs = [client.train.batch(slice(None), CPU) for client in clients]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def trained(federation, client, training, key):
    """Return a client's model after its first round."""
    data = ServerData(federation.model, client.train)
    return data.refine(federation.arrays(), training, 1, key)[0]


def loss_at(federation, arrays, inputs, targets):
    model = federation.model.eval()
    state = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    return cross_entropy(functional_call(model, state, (inputs,)), targets)


def test_gradient_diversity_by_hand(federation, clients):
    gradients = []
    for client in clients:
        federation.model.eval().zero_grad()
        inputs, targets = client.train.batch(slice(None), CPU)
        cross_entropy(federation.model(inputs), targets).backward()
        gradients.append(torch.cat([p.grad.reshape(-1) for p in federation.model.parameters()]))
    expected = sum(g.square().sum() for g in gradients) / sum(gradients).square().sum()
    diversity = gradient_diversity(federation.model, federation.arrays(), clients, CROSS_ENTROPY)
    assert diversity == pytest.approx(float(expected), rel=1e-10)


def test_top_eigenvalue_is_that_of_the_whole_hessian(federation, clients):
    model = federation.model.eval()
    inputs, targets = whole(clients)
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]

    def loss(flat):
        parts = flat.split([shape.numel() for shape in shapes])
        state = {n: part.view(s) for n, part, s in zip(names, parts, shapes, strict=True)}
        return cross_entropy(functional_call(model, state, (inputs,)), targets)

    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    hessian = torch.autograd.functional.hessian(loss, flat)
    expected = float(torch.linalg.eigvalsh(hessian)[-1])
    eigenvalue = top_eigenvalue(model, federation.arrays(), clients, (0,), CROSS_ENTROPY)
    assert eigenvalue == pytest.approx(expected, rel=1e-2)


def test_hessian_of_many_samples_uses_a_seeded_part(federation, clients, monkeypatch):
    monkeypatch.setattr(diagnostics, "HESSIAN_SAMPLES", 39)  # Half of the 78 samples.
    drawn = diagnostics._sampled([client.train for client in clients], (0,))
    assert [len(samples) for samples in drawn] == [5, 7, 12, 16]
    again = diagnostics._sampled([client.train for client in clients], (0,))
    assert all((a.indices == b.indices).all() for a, b in zip(drawn, again, strict=True))
    assert top_eigenvalue(federation.model, federation.arrays(), clients, (0,), CROSS_ENTROPY) > 0


def test_barrier_is_the_highest_rise_above_the_line(federation, clients):
    """Two models are the same function; the second has hidden units with the opposite sign.

    Half way between the two models every hidden unit is 0, so the loss is the loss of a guess.
    """
    training = LocalTraining(local_steps=100, batch_size=1000, learning_rate=0.5)
    first = trained(federation, clients[0], training, 0)
    turned = {name: -first[name] for name in ("3.weight", "3.bias", "5.weight")}
    ends = [first, first | turned]
    pair = clients[:1] * 2
    inputs, targets = whole(pair)
    losses = []
    for t in np.linspace(0, 1, POINTS):
        between = {n: a if a.dtype.kind != "f" else (1 - t) * a + t * ends[1][n]
                   for n, a in ends[0].items()}  # fmt: skip
        losses.append(float(loss_at(federation, between, inputs, targets)))
    rises = [
        loss - ((1 - t) * losses[0] + t * losses[-1])
        for t, loss in zip(np.linspace(0, 1, POINTS), losses, strict=True)
    ]
    assert max(rises) > 0.1
    height = barrier(federation.model, ends, pair, CROSS_ENTROPY)
    assert height == pytest.approx(max(rises), rel=1e-9)
    assert np.isnan(barrier(federation.model, ends[:1], clients[:1], CROSS_ENTROPY))


def test_probe_learns_a_linear_function_of_the_features(federation, clients):
    """The labels come from a random linear layer on the features.

    The network's last layer is a different layer.
    """
    model = federation.model.eval()
    rows = torch.from_numpy(np.random.default_rng(5).normal(size=(3, 8)))
    for client in clients:
        inputs, _ = client.train.batch(slice(None), CPU)
        with torch.no_grad():
            client.train.labels[:] = (model[:-1](inputs) @ rows.T).argmax(dim=1).numpy()
    assert probe(model, federation.arrays(), clients) > 95


def test_diagnostics_depend_only_on_the_key(federation, clients):
    training = LocalTraining(local_steps=2, batch_size=4, learning_rate=0.1)
    arguments = (federation.model, federation.arrays(), clients, training)
    first, again = (diagnose(*arguments, (1,)) for _ in range(2))
    assert first == again
    assert list(first) == ["gradient-diversity", "hessian", "barrier", "probe"]
    ends = [trained(federation, clients[3], training, key) for key in (1, 2)]
    assert (ends[0]["5.weight"] != ends[1]["5.weight"]).any()
