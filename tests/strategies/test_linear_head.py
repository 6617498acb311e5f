"""Compare heads that need no training with a direct solution on all clients' features."""

import numpy as np
import pytest
import torch

from coprefl_flwr.clients import FeaturesClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation import HeadLayer
from coprefl_flwr.strategies import NCM, FedCGS, FedCOF, Ridge
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


@pytest.mark.parametrize("hosting", NODES)
def test_fedcgs_compares_densities_of_gaussians(federation, hosting):
    """The layer's outputs are log(N_c / N) + log N(z; m_c, S), except for what classes share.

    S is the covariance of all z.
    """
    z, labels = pooled(federation)
    arrays = after_one_round(federation, FedCGS(head=LAYER, shrinkage=0.1), hosting)
    inverse = np.linalg.inv(np.cov(z.T) + 0.1 * np.eye(z.shape[1]))
    means = ncm_by_hand(z, labels)["5.weight"]
    distances = np.einsum("ncd,de,nce->nc", z[:, None] - means, inverse, z[:, None] - means)
    expected = np.log(np.bincount(labels) / len(z)) - distances / 2
    outputs = z @ arrays["5.weight"].T + arrays["5.bias"]
    shared = (outputs - expected)[:, :1]
    assert np.allclose(outputs, expected + shared, rtol=0, atol=1e-9)
    assert np.allclose(shared[:, 0], np.einsum("nd,de,ne->n", z, inverse, z) / 2, atol=1e-9)


def test_fedcgs_gives_no_weight_to_directions_without_variance(federation):
    """The covariance is singular if a feature is constant, as those of a dead ReLU are."""
    z, labels = pooled(federation)
    sums = np.stack([z[labels == c].sum(axis=0) for c in range(CLASSES)])
    plain = {"sums": sums, "counts": np.bincount(labels), "products": z.T @ z}
    z = np.hstack([z, np.full((len(z), 1), 3.0)])
    sums = np.stack([z[labels == c].sum(axis=0) for c in range(CLASSES)])
    constant = {"sums": sums, "counts": np.bincount(labels), "products": z.T @ z}
    (rows, bias), (more, other) = map(FedCGS(head=LAYER).layer, (plain, constant))
    assert np.allclose(more, np.pad(rows, ((0, 0), (0, 1))), atol=1e-9)
    assert np.allclose(bias, other, atol=1e-9)


def fedcof_by_hand(federation, shrinkage):
    """Return FedCOF's layer from each client's features; the class of row 2 has one client."""
    parts = []
    for client in range(4):
        inputs, labels = federation.whole(client)
        parts += [(federation.model.eval()[:-1](inputs).detach().numpy(), labels.numpy())]
    z, y = map(np.concatenate, zip(*parts, strict=True))
    gram = len(z) * np.outer(z.mean(axis=0), z.mean(axis=0))
    for c in range(CLASSES):
        own = [features[labels == c] for features, labels in parts if (labels == c).any()]
        spread = shrinkage * np.eye(z.shape[1])
        for one in own:
            deviation = one.mean(axis=0) - z[y == c].mean(axis=0)
            spread += len(one) * np.outer(deviation, deviation) / max(len(own) - 1, 1)
        gram += (np.sum(y == c) - 1) * spread
    rows = np.linalg.solve(gram, np.stack([z[y == c].sum(axis=0) for c in range(CLASSES)]).T).T
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return {"5.weight": rows, "5.bias": np.zeros(CLASSES)}


@pytest.mark.parametrize("hosting", NODES)
def test_fedcof_estimates_covariances_from_class_means(federation, hosting):
    for client in (1, 2, 3):  # Only client 0 has samples of class 2.
        samples = federation.samples[client]
        federation.samples[client] = samples.take(np.flatnonzero(samples.labels != 2))
    arrays = after_one_round(federation, FedCOF(head=LAYER, shrinkage=0.3), hosting)
    assert_equal(arrays, federation.arrays() | fedcof_by_hand(federation, 0.3), 1e-9)


@pytest.mark.parametrize("kind", [NCM, Ridge, FedCGS, FedCOF])
def test_class_without_samples_keeps_its_row(federation, kind):
    for client, samples in enumerate(federation.samples):
        federation.samples[client] = samples.take(np.flatnonzero(samples.labels != 1))
    arrays = after_one_round(federation, kind(head=LAYER), "1")
    for name in ("5.weight", "5.bias"):
        assert (arrays[name][1] == federation.arrays()[name][1]).all()
        assert (arrays[name][0] != federation.arrays()[name][0]).any()


@pytest.mark.parametrize("kind", [NCM, Ridge, FedCGS, FedCOF])
def test_logit_scale_multiplies_the_layer(federation, kind):
    plain = after_one_round(federation, kind(head=LAYER), "1")
    double = after_one_round(federation, kind(head=LAYER, logit_scale=2.0), "1")
    for name in ("5.weight", "5.bias"):
        assert np.allclose(double[name], 2 * plain[name], rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [NCM, FedCGS])
def test_class_means_need_a_bias(federation, kind):
    strategy = kind(head=HeadLayer("5", "5.weight"), max_failed_rounds=1)
    with pytest.raises(SettingsError, match="the layer 5 has no bias"):
        after_one_round(federation, strategy, "1")
