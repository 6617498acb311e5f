"""Compare heads that need no training with a direct solution on all clients' features."""

import numpy as np
import pytest
import torch

from coprefl_flwr.clients import FeaturesClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import HeadLayer
from coprefl_flwr.strategies import NCM, Ridge
from tests.common.by_hand import assert_equal, run_on
from tests.common.federation import HOSTINGS, Federation
from tests.common.networks import CLASSES

LAYER = HeadLayer("5", "5.weight", "5.bias")  # The head of the double model with BatchNorm.
NODES = {name: nodes for name, (nodes, _) in HOSTINGS.items() if name != "plain"}


@pytest.fixture
def federation():
    return Federation.exact()


def pooled(federation):
    """Return z (n, d) and labels (n,) of all clients' samples.

    z has the inputs of the last layer.
    """
    whole = [federation.whole(client) for client in range(4)]
    features = federation.model.eval()[:-1](torch.cat([inputs for inputs, _ in whole]))
    return features.detach().numpy(), torch.cat([targets for _, targets in whole]).numpy()


def after_one_round(federation, strategy, hosting):
    strategy.min_available_nodes = NODES[hosting]
    return run_on(strategy, federation.grid(hosting, FeaturesClient), federation.arrays(), 1)[0]


@pytest.mark.parametrize("hosting", NODES)
def test_ncm_is_the_nearest_class_mean(federation, hosting):
    z, labels = pooled(federation)
    arrays = after_one_round(federation, NCM(head=LAYER, evaluate_every=1), hosting)
    expected = ncm_by_hand(z, labels)
    assert_equal(arrays, federation.arrays() | expected)
    nearest = ((z[:, None] - expected["5.weight"]) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == (z @ arrays["5.weight"].T + arrays["5.bias"]).argmax(axis=1)).all()


def ridge_by_hand(z, labels, penalty):
    """Solve a least-squares problem on the samples, with sqrt(lambda) I below them.

    This does not use the normal equations.
    """
    below = np.sqrt(penalty) * np.eye(z.shape[1])
    targets = np.vstack([np.eye(CLASSES)[labels], np.zeros((z.shape[1], CLASSES))])
    rows = np.linalg.lstsq(np.vstack([z, below]), targets, rcond=None)[0].T
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return {"5.weight": rows, "5.bias": np.zeros(CLASSES)}


@pytest.mark.parametrize("hosting", NODES)
def test_ridge_is_the_least_squares_solution(federation, hosting):
    z, labels = pooled(federation)
    arrays = after_one_round(federation, Ridge(head=LAYER, penalty=0.3), hosting)
    assert_equal(arrays, federation.arrays() | ridge_by_hand(z, labels, 0.3), 1e-9)


def ncm_by_hand(z, labels):
    means = np.stack([z[labels == c].mean(axis=0) for c in range(CLASSES)])
    return {"5.weight": means, "5.bias": -0.5 * (means**2).sum(axis=1)}


@pytest.mark.parametrize("kind", [NCM, Ridge])
def test_class_without_samples_keeps_its_row(federation, kind):
    for client, samples in enumerate(federation.samples):
        federation.samples[client] = samples.take(np.flatnonzero(samples.labels != 1))
    arrays = after_one_round(federation, kind(head=LAYER), "1")
    for name in ("5.weight", "5.bias"):
        assert (arrays[name][1] == federation.arrays()[name][1]).all()
        assert (arrays[name][0] != federation.arrays()[name][0]).any()


@pytest.mark.parametrize("kind", [NCM, Ridge])
def test_logit_scale_multiplies_the_layer(federation, kind):
    plain = after_one_round(federation, kind(head=LAYER), "1")
    double = after_one_round(federation, kind(head=LAYER, logit_scale=2.0), "1")
    for name in ("5.weight", "5.bias"):
        assert np.allclose(double[name], 2 * plain[name], rtol=1e-12, atol=0)


def test_ncm_needs_a_bias(federation):
    strategy = NCM(head=HeadLayer("5", "5.weight"), max_failed_rounds=1)
    with pytest.raises(SettingsError, match="the layer 5 has no bias"):
        after_one_round(federation, strategy, "1")
