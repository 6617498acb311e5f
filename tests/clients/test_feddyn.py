"""FedDyn's client, with parameters that are a single number or not trained."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from coprefl_flwr.clients import FedDynClient
from coprefl_flwr.models import model_arrays
from tests.common.clients import CONFIG, later, make
from tests.common.networks import CLASSES, scaled

REQUEST = {**CONFIG, "feddyn-alpha": 0.5}


def test_dual_after_two_participations_by_hand(exact_federation, tmp_path):
    """lambda <- lambda - alpha (w_k - w^t), for trained parameters only."""
    client, start = make(FedDynClient, scaled(), exact_federation, tmp_path)
    first, n, _ = client.fit(start, REQUEST)
    assert n == 14
    request = later(REQUEST)
    second, _, _ = client.fit(start, request)
    dual = client.state.read(later(request))
    names = list(model_arrays(client.model))
    assert dual.keys() == set(names) - {"1.features.bias"}
    for name, a, b, w in zip(names, first, second, start, strict=True):
        expected = -0.5 * (a - w) - 0.5 * (b - w)
        if name == "1.features.bias":
            np.testing.assert_array_equal(expected, 0 * w)
        else:
            assert dual[name] == pytest.approx(expected, rel=0, abs=1e-14), name
            assert not np.array_equal(a, b), name


def losses_by_hand(data, dual, alpha, steps=3, rate=0.1):
    """Return the mean over the steps of L_k(w), and of L_k(w) with the regulariser."""
    model, plain, regularised = scaled(), [], []
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    anchor = {name: p.detach().clone() for name, p in trained.items()}
    for _ in range(steps):
        loss = whole = cross_entropy(model(data[0]), data[1])
        for name, p in trained.items():
            whole = whole - (torch.tensor(dual[name]) * p).sum()
            whole = whole + alpha / 2 * ((p - anchor[name]) ** 2).sum()
        plain.append(loss.item())
        regularised.append(whole.item())
        gradients = torch.autograd.grad(whole, list(trained.values()))
        with torch.no_grad():
            for p, gradient in zip(trained.values(), gradients, strict=True):
                p -= rate * gradient
    return np.mean(plain), np.mean(regularised)


def test_reported_loss_excludes_the_regulariser(exact_federation, tmp_path):
    """The second participation is tested, because lambda is not zero there."""
    client, start = make(FedDynClient, scaled(), exact_federation, tmp_path)
    client.fit(start, REQUEST)
    request = later(REQUEST)
    dual = client.state.read(request)
    loss = client.fit(start, request)[2]["loss"]
    plain, regularised = losses_by_hand(exact_federation.whole(1), dual, 0.5)
    assert loss == pytest.approx(plain, rel=0, abs=1e-12)
    assert abs(plain - regularised) > 1e-3


def test_dual_of_a_float16_model_is_float32(exact_federation, tmp_path):
    """lambda is a sum over participations.

    In float16, small changes would be lost.
    """

    class ToHalf(nn.Module):
        def forward(self, images):
            return images.half()

    model = nn.Sequential(ToHalf(), nn.Flatten(), nn.Linear(16, CLASSES)).half()
    for p in model.parameters():
        nn.init.zeros_(p)
    client, start = make(FedDynClient, model, exact_federation, tmp_path)
    request = {**REQUEST, "feddyn-alpha": 1e-4}
    weights, _, _ = client.fit(start, request)
    dual = client.state.read(later(request))
    for name, after in zip(model_arrays(model), weights, strict=True):
        assert after.dtype == np.float16
        assert dual[name].dtype == np.float32
        assert dual[name] == pytest.approx(-1e-4 * after.astype(np.float64), rel=1e-6, abs=0)
    assert any(array.any() for array in dual.values())
