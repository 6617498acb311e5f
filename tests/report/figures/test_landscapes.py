import math

import numpy as np
import pytest

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report.figures import Landscape, landscape, landscape_figure
from coprefl_flwr.report.figures.landscapes import direction, filter_normalised


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
    """Rows (3, 4) and (0, 0) have the norms 5 and 0; (1, 0) becomes (5, 0), (8, 6) nothing."""
    found = filter_normalised(
        np.array([[1.0, 0.0], [8.0, 6.0]]), np.array([[3.0, 4.0], [0.0, 0.0]])
    )
    np.testing.assert_allclose(found, [[5, 0], [0, 0]])


def test_a_filter_is_one_output_of_a_convolution() -> None:
    weights = model()["conv.weight"]
    found = filter_normalised(np.ones(weights.shape), weights)
    for index in range(2):
        assert np.linalg.norm(found[index]) == pytest.approx(np.linalg.norm(weights[index]))
        assert np.ptp(found[index]) == 0


def test_biases_and_buffers_are_left_alone() -> None:
    assert set(direction(model(), 0, "first")) == {"conv.weight", "head.weight"}
    seen: list[Arrays] = []

    def keep(arrays: Arrays) -> float:
        seen.append(arrays)
        return 0.0

    landscape(keep, model(), points=3)
    assert len(seen) == 9
    for arrays in seen:
        assert list(arrays) == list(model())
        assert [a.dtype for a in arrays.values()] == [a.dtype for a in model().values()]
        for name in ("conv.bias", "bn.weight", "bn.running_mean", "bn.num_batches_tracked"):
            np.testing.assert_array_equal(arrays[name], model()[name])
    np.testing.assert_array_equal(seen[4]["conv.weight"], model()["conv.weight"])
    assert not np.array_equal(seen[0]["conv.weight"], model()["conv.weight"])


def test_a_quadratic() -> None:
    """Oracle. L = ||W - W*||² at W* + a δ + b η is a² δδ + 2 a b δη + b² ηη."""
    minimum = {"w": np.random.default_rng(0).normal(size=(4, 5))}
    first, second = (direction(minimum, 3, which)["w"] for which in ("first", "second"))
    found = landscape(
        lambda arrays: float(np.sum((arrays["w"] - minimum["w"]) ** 2)),
        minimum,
        seed=3,
        span=0.5,
        points=5,
    )
    np.testing.assert_allclose(found.steps, [-0.5, -0.25, 0, 0.25, 0.5])
    a, b = found.steps[:, None], found.steps[None, :]
    cross = np.sum(first * second)
    expected = a**2 * np.sum(first**2) + 2 * a * b * cross + b**2 * np.sum(second**2)
    np.testing.assert_allclose(found.losses, expected, atol=1e-9)
    assert found.losses[2, 2] == 0
    # Filter by filter as long as the model itself, and not one direction twice.
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), np.linalg.norm(minimum["w"], axis=1))
    assert abs(cross) < 0.9 * np.sum(first**2)


def test_directions_depend_on_the_seed_alone() -> None:
    scaled = {name: 2 * array for name, array in model().items()}
    np.testing.assert_allclose(
        2 * direction(model(), 1, "first")["conv.weight"],
        direction(scaled, 1, "first")["conv.weight"],
    )
    assert not np.allclose(
        direction(model(), 1, "first")["conv.weight"],
        direction(model(), 2, "first")["conv.weight"],
    )


@pytest.mark.parametrize(("name", "value"), [("points", 4), ("points", 1), ("span", 0.0)])
def test_bad_grids_are_refused(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=f"{name} = {value}; allowed"):
        landscape(lambda _: 0.0, model(), **{name: value})  # type: ignore[arg-type]


def test_one_colour_scale_for_all() -> None:
    steps = np.array([-1.0, 0.0, 1.0])
    flat = Landscape(steps, np.full((3, 3), 2.0))
    steep = Landscape(steps, np.array([[9.0, 5.0, math.inf], [4.0, 1.0, 4.0], [9.0, 5.0, 9.0]]))
    *panels, bar = landscape_figure({"flat": flat, "steep": steep}).axes
    contours = [panel.collections[0] for panel in panels]
    assert [contour.get_clim() for contour in contours] == [(1, 9), (1, 9)]
    assert [panel.get_title(loc="left") for panel in panels] == ["flat", "steep"]
    assert panels[1].texts[0].get_text() == "loss 1 at the cross"
    assert bar.get_ylabel() == "Loss"


def test_the_first_direction_runs_to_the_right() -> None:
    """The loss grows with the first step only: filled below it, on the left, at every height."""
    steps = np.array([-1.0, 0.0, 1.0])
    rising = Landscape(steps, np.repeat(np.array([[1.0], [2.0], [3.0]]), 3, axis=1))
    panel, _ = landscape_figure({"a": rising}).axes
    lowest = panel.collections[0].get_paths()[0].get_extents()
    assert lowest.x0 == -1
    assert lowest.x1 < -0.8
    assert (lowest.y0, lowest.y1) == (-1, 1)


def test_steep_landscapes_have_steps_of_equal_ratio() -> None:
    losses = np.array([[1.0, 10.0, 100.0]] * 3)
    panel, _ = landscape_figure({"a": Landscape(np.array([-1.0, 0, 1]), losses)}).axes
    levels = panel.collections[0].levels
    np.testing.assert_allclose(levels[1:] / levels[:-1], levels[1] / levels[0])


def test_nothing_finite_is_refused() -> None:
    with pytest.raises(SettingsError, match="finite losses"):
        landscape_figure({"a": Landscape(np.zeros(3), np.full((3, 3), math.nan))})
