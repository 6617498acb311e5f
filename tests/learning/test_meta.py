"""The meta gradient against finite differences of the meta loss, and the two moments."""

import numpy as np
import pytest

from coprefl_flwr.learning.meta import descend, meta_gradient, meta_loss
from coprefl_flwr.rounds.combine import Accumulator, LossMoments

CENTRES = np.array([[1.0, 0.0, 2.0], [0.5, -1.0, 0.0], [2.0, 1.0, 1.0], [-1.0, 0.0, 0.5]])
SCALES = np.array([1.0, 2.0, 0.5, 3.0])


def losses_at(w):
    """L_j(w) = s_j |w - a_j|^2 + sin(w_0): four clients' losses with different curvature."""
    return SCALES * ((w - CENTRES) ** 2).sum(axis=1) + np.sin(w[0])


def gradients_at(w):
    gradients = 2 * SCALES[:, None] * (w - CENTRES)
    gradients[:, 0] += np.cos(w[0])
    return gradients


def moments(losses, gradients, reference):
    accumulator = Accumulator(LossMoments(reference))
    for client, (loss, gradient) in enumerate(zip(losses, gradients, strict=True)):
        accumulator.add(client, {"w": gradient}, {"loss": loss})
    return accumulator.sums["gradient"], accumulator.sums["loss-gradient"]


@pytest.mark.parametrize("gamma", [0.0, 0.25, 1.0])
def test_meta_gradient_matches_finite_differences(gamma):
    w, step = np.array([0.3, -0.2, 0.9]), 1e-6
    expected = [
        (meta_loss(losses_at(w + e), gamma) - meta_loss(losses_at(w - e), gamma)) / (2 * step)
        for e in step * np.eye(3)
    ]
    losses = losses_at(w)
    g1, g2 = moments(losses, gradients_at(w), reference=0.7)
    found = meta_gradient(g1, g2, losses, gamma, reference=0.7)["w"]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reference", [0.0, 1.7, -3.0])
@pytest.mark.parametrize("gamma", [0.0, 0.25, 0.5, 1.0])
def test_two_moments_equal_the_direct_sum(gamma, reference):
    w = np.array([0.3, -0.2, 0.9])
    losses, gradients = losses_at(w), gradients_at(w)
    c = gamma + (1 - gamma) * 2 / len(losses) * (losses - losses.mean())
    g1, g2 = moments(losses, gradients, reference)
    found = meta_gradient(g1, g2, losses, gamma, reference)["w"]
    np.testing.assert_allclose(found, c @ gradients, rtol=1e-12)


def test_meta_loss_by_hand():
    """Losses 1, 2, 6: sum 9, mean 3, variance (4 + 1 + 9) / 3 = 14/3; gamma 1/4 gives 5.75."""
    assert meta_loss(np.array([1.0, 2.0, 6.0]), 0.25) == pytest.approx(0.25 * 9 + 0.75 * 14 / 3)


def test_descend_keeps_dtypes_and_buffers():
    arrays = {"w": np.float32([1, 2]), "count": np.array(7), "mean": np.float32([3])}
    found = descend(arrays, {"w": np.array([10.0, -10.0])}, 0.1)
    assert list(found) == ["w", "count", "mean"]
    np.testing.assert_array_equal(found["w"], np.float32([0, 3]))
    assert found["w"].dtype == np.float32
    assert found["count"] == 7
    assert found["count"].dtype == np.int64
    assert found["mean"] == 3
