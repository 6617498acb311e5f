"""The embedded fractals: their shape, their equations, and that their drawing repeats."""

import numpy as np
import pytest
import torch

from coprefl_flwr import seeds
from coprefl_flwr.data import fractals, load_dataset
from coprefl_flwr.data.fractals import invented


@pytest.fixture(scope="module")
def dataset():
    return load_dataset("fractals")


def test_fractals_have_a_thousand_classes_in_order_with_a_test_part(dataset):
    assert dataset.images.shape == (20_000, 1, 32, 32)
    assert dataset.images.dtype == torch.uint8
    assert np.array_equal(dataset.labels, np.repeat(np.arange(1000), 20))
    assert len(set(dataset.classes)) == 1000
    assert dataset.test[:20].tolist() == [False] * 16 + [True] * 4


@pytest.mark.slow
def test_second_drawing_has_the_same_pixels(dataset):
    assert torch.equal(fractals().images, dataset.images)


def test_drawing_has_the_recorded_brightness(dataset):
    """The comparison is coarse, because the last bit of cos() differs between platforms."""
    images = dataset.images.float().reshape(1000, -1)
    assert images.mean().item() == pytest.approx(30.37, abs=0.05)
    assert images.mean(dim=1)[[0, 333, 999]].tolist() == pytest.approx(
        [25.80, 19.62, 34.41], abs=0.1
    )


def test_every_image_shows_a_fractal(dataset):
    filled = (dataset.images > 0).float().mean(dim=(1, 2, 3))
    assert 0.02 < filled.min() < filled.max() < 0.8


def test_systems_have_the_singular_values_of_the_paper():
    for number in range(200):
        maps, weights = invented(seeds.generator("test", number))
        n = len(maps)
        values = np.linalg.svd(maps[:, :, :2], compute_uv=False)
        assert 2 <= n <= 7
        assert values.max() < 1
        assert (5 + n) / 2 <= (values @ [1, 2]).sum() <= (6 + n) / 2
        assert np.abs(maps[:, :, 2]).max() <= 1
        large = np.abs(np.linalg.det(maps[:, :, :2])) > 0.02
        areas = values.prod(axis=1)[large]
        assert np.allclose(weights[large] / weights[large].sum(), areas / areas.sum())


def test_nearest_mean_recognises_a_fractal_better_than_chance(dataset):
    """The mean of 16 images is nearest to a test image in more than 2 % of cases.

    By chance, it is nearest in 0.1 % of cases.
    """
    images = dataset.images.float().flatten(1).reshape(1000, 20, -1)
    distances = torch.cdist(images[:, 16:].reshape(4000, -1), images[:, :16].mean(dim=1))
    right = distances.argmin(dim=1) == torch.arange(1000).repeat_interleave(4)
    assert right.float().mean() > 0.02
