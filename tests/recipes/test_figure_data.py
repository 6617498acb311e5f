"""The data of figures: losses around a model, and similarities of backbones in features."""

import numpy as np
import pytest

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.recipes.figure_data import direction, filter_normalised, landscape, similarities


def model() -> Arrays:
    return {
        "conv.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2),
        "conv.bias": np.array([1.0, 2.0], dtype=np.float32),
        "bn.weight": np.array([3.0, 4.0], dtype=np.float32),
        "bn.running_mean": np.array([[5.0, 6.0]], dtype=np.float32),
        "bn.num_batches_tracked": np.array([[7]]),
        "head.weight": np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32),
    }


def test_filter_normalisation_by_hand() -> None:
    """Rows (3, 4) and (0, 0) have norms 5 and 0: (1, 0) becomes (5, 0), (8, 6) becomes (0, 0)."""
    normalised = filter_normalised(
        np.array([[1.0, 0.0], [8.0, 6.0]]), np.array([[3.0, 4.0], [0.0, 0.0]])
    )
    np.testing.assert_allclose(normalised, [[5, 0], [0, 0]])


def test_filter_is_one_output_of_a_convolution() -> None:
    weights = model()["conv.weight"]
    normalised = filter_normalised(np.ones(weights.shape), weights)
    for index in range(2):
        assert np.linalg.norm(normalised[index]) == pytest.approx(np.linalg.norm(weights[index]))
        assert np.ptp(normalised[index]) == 0


def test_landscape_leaves_biases_and_buffers() -> None:
    assert set(direction(model(), "first")) == {"conv.weight", "head.weight"}
    seen: list[Arrays] = []

    def keep(arrays: Arrays) -> float:
        seen.append(arrays)
        return 0.0

    landscape(keep, model())
    assert len(seen) == 21**2
    for arrays in seen:
        assert list(arrays) == list(model())
        assert [a.dtype for a in arrays.values()] == [a.dtype for a in model().values()]
        for name in ("conv.bias", "bn.weight", "bn.running_mean", "bn.num_batches_tracked"):
            np.testing.assert_array_equal(arrays[name], model()[name])
    np.testing.assert_array_equal(seen[220]["conv.weight"], model()["conv.weight"])
    assert not np.array_equal(seen[0]["conv.weight"], model()["conv.weight"])


def test_landscape_of_a_quadratic_by_hand() -> None:
    """By hand: L = ||W - W*||² at W* + a δ + b η is a² δδ + 2 a b δη + b² ηη."""
    minimum = {"w": np.random.default_rng(0).normal(size=(4, 5))}
    first, second = (direction(minimum, which)["w"] for which in ("first", "second"))

    def loss(arrays: Arrays) -> float:
        return float(np.sum((arrays["w"] - minimum["w"]) ** 2))

    losses = landscape(loss, minimum)
    np.testing.assert_allclose(losses.index, np.linspace(-1, 1, 21), atol=1e-15)
    a, b = losses.index.to_numpy()[:, None], losses.columns.to_numpy()[None, :]
    cross = np.sum(first * second)
    expected = a**2 * np.sum(first**2) + 2 * a * b * cross + b**2 * np.sum(second**2)
    np.testing.assert_allclose(losses, expected, atol=1e-9)
    assert losses.iloc[10, 10] == 0
    # Each filter has the norm of the model's filter, and the two directions are different.
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), np.linalg.norm(minimum["w"], axis=1))
    assert abs(cross) < 0.9 * np.sum(first**2)


def test_similarities_by_hand():
    """Client 0 is equally near to both backbones; client 10 is nearer to the first backbone.

    The column of client 10 comes after the column of client 2.
    """
    x, y = [1.0, 0.0], [0.0, 1.0]
    fused = {"10": np.array([x, y]), "0": np.array([x, x]), "2": np.array([y, y])}
    first = {"10": np.array([x, y]), "0": np.array([x, y]), "2": np.array([y, x])}
    other = {"10": np.array([y, y]), "0": np.array([y, x]), "2": np.array([y, y])}
    scores = similarities([first, other], fused)
    assert scores == pytest.approx(np.array([[1 / 2, 1 / 3, 2 / 3], [1 / 2, 2 / 3, 1 / 3]]))
