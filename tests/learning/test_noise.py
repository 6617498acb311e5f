"""Noise: (1 - p) x + e, where e has the distribution and the scale of the settings."""

import numpy as np
import pytest

from coprefl_flwr.learning.noise import Noise


def test_noise_without_a_scale_only_shrinks_the_values():
    noise = Noise(kind="laplace", scale=0.0, share=0.25)
    noised = noise.on(np.array([4.0, -8.0]), np.random.default_rng(0))
    assert noised.tolist() == [3.0, -6.0]
    assert noised.dtype == np.float32


@pytest.mark.parametrize(("kind", "deviation"), [("gaussian", 0.3), ("laplace", 0.3 * 2**0.5)])
def test_noise_scale_is_the_parameter_of_the_distribution(kind, deviation):
    """Laplace noise of scale s has the standard deviation s sqrt(2), and heavier tails."""
    noised = Noise(kind=kind, scale=0.3, share=1.0).on(np.ones(200_000), np.random.default_rng(5))
    assert noised.mean() == pytest.approx(0, abs=0.005)
    assert noised.std() == pytest.approx(deviation, rel=0.01)
    kurtosis = (noised**4).mean() / noised.var() ** 2
    assert kurtosis == pytest.approx({"gaussian": 3, "laplace": 6}[kind], rel=0.1)
