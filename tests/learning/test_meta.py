"""Compare the meta gradient, and the two moments, with finite differences and direct sums."""

from fractions import Fraction

import numpy as np
import pytest

from coprefl_flwr.federation.aggregation import Accumulator, LossMoments
from coprefl_flwr.learning.meta import (
    descend,
    mean_and_deviation,
    mean_and_variance,
    meta_gradient,
    sum_and_variance,
)

CENTRES = np.array([[1.0, 0.0, 2.0], [0.5, -1.0, 0.0], [2.0, 1.0, 1.0], [-1.0, 0.0, 0.5]])
SCALES = np.array([1.0, 2.0, 0.5, 3.0])


def losses_at(w):
    """L_j(w) = s_j |w - a_j|^2 + sin(w_0): four clients' losses with different curvature."""
    return SCALES * ((w - CENTRES) ** 2).sum(axis=1) + np.sin(w[0])


def gradients_at(w):
    gradients = 2 * SCALES[:, None] * (w - CENTRES)
    gradients[:, 0] += np.cos(w[0])
    return gradients


def moments(losses, gradients):
    accumulator = Accumulator(LossMoments())
    for client, (loss, gradient) in enumerate(zip(losses, gradients, strict=True)):
        accumulator.add(client, {"w": gradient}, {"loss": loss})
    return accumulator.sums


W = np.array([0.3, -0.2, 0.9])


def slopes(value):
    """Return the derivatives of value(w) at W by central differences."""
    step = 1e-6
    return np.array([(value(W + e) - value(W - e)) / (2 * step) for e in step * np.eye(3)])


@pytest.mark.parametrize("objective", [sum_and_variance, mean_and_variance, mean_and_deviation])
@pytest.mark.parametrize("gamma", [0.0, 0.25, 1.0])
def test_meta_gradient_matches_finite_differences(gamma, objective):

    def meta_loss(w):
        terms = objective(losses_at(w))
        return gamma * terms.first + (1 - gamma) * terms.second

    expected = slopes(meta_loss)
    losses = losses_at(W)
    sums = moments(losses, gradients_at(W))
    gradient = meta_gradient(sums, losses, gamma, objective)[0]["w"]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6)


def test_meta_gradient_of_close_losses_is_accurate():
    """If losses differ by 1e-3 of their mean, the gradient has a relative error of at most 1e-12.

    This is far below the error of float32, 6e-8. The bracket G2 - mean L G1 is a difference of
    numbers that are a thousand times as large.
    """
    rng = np.random.default_rng(0)
    losses = 2.0 + 2e-3 * rng.standard_normal(20)
    gradients = rng.standard_normal((20, 1000)).astype(np.float32)
    gradient = meta_gradient(moments(losses, gradients), losses, gamma=0.0)[0]["w"]
    centred = [Fraction(loss) - sum(map(Fraction, losses)) / 20 for loss in losses]
    columns = gradients.astype(np.float64).T.tolist()
    exact = [float(sum(c * Fraction(g) for c, g in zip(centred, column, strict=True)) / 10)
             for column in columns]  # fmt: skip
    assert np.linalg.norm(gradient - exact) <= 1e-12 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("objective", "terms"),
    [
        (sum_and_variance, {"sum": np.sum, "variance": np.var}),
        (mean_and_variance, {"mean": np.mean, "variance": np.var}),
        (mean_and_deviation, {"mean": np.mean, "deviation": np.std}),
    ],
)
def test_round_reports_both_terms_and_the_norms_of_their_gradients(objective, terms):
    """The expected gradients are finite differences.

    The model moves against both gradients, weighted by gamma.
    """
    losses, names = losses_at(W), list(terms)
    sums = moments(losses, gradients_at(W))
    gradient, metrics = meta_gradient(sums, losses, 0.25, objective)
    moved = descend({"w": W, "n": np.array(3)}, gradient, 0.1)
    gradients = [slopes(lambda w, of=of: of(losses_at(w))) for of in terms.values()]
    for name, gradient in zip(names, gradients, strict=True):
        assert metrics[f"meta-{name}"] == pytest.approx(terms[name](losses))
        length = np.linalg.norm(gradient)
        assert metrics[f"meta-{name}-gradient"] == pytest.approx(length, rel=1e-6)
    expected = W - 0.1 * (0.25 * gradients[0] + 0.75 * gradients[1])
    np.testing.assert_allclose(moved["w"], expected, rtol=1e-6)
    assert metrics["query-loss"] == pytest.approx(losses.mean())
    assert metrics["query-loss-variance"] == pytest.approx(losses.var())
    assert len(metrics) == 7


@pytest.mark.parametrize("losses", [[0.1] * 3, [2.0], [2.0, 2.0 + 1e-7], [0.0, 0.0]])
def test_equal_losses_have_no_gradient_of_the_deviation(losses):
    """The mean of three losses of 0.1 is not exactly 0.1.

    The rounding error in the deviation must not be divided by itself.
    """
    losses = np.array(losses)
    sums = moments(losses, np.ones((len(losses), 1)))
    terms = mean_and_deviation(losses)
    assert terms.width == np.inf
    gradient = meta_gradient(sums, losses, 0.25, mean_and_deviation)[0]["w"]
    np.testing.assert_allclose(gradient, [0.25])


def test_descend_keeps_dtypes_and_buffers():
    arrays = {"w": np.float32([1, 2]), "count": np.array(7), "mean": np.float32([3])}
    moved = descend(arrays, {"w": np.array([10.0, -10.0])}, 0.1)
    assert list(moved) == ["w", "count", "mean"]
    np.testing.assert_array_equal(moved["w"], np.float32([0, 3]))
    assert moved["w"].dtype == np.float32
    assert moved["count"] == 7
    assert moved["count"].dtype == np.int64
    assert moved["mean"] == 3
