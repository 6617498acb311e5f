import numpy as np
import pytest
import torch

from coprefl_flwr.data import ImageDataset
from coprefl_flwr.errors import SettingsError
from tests.data.made_up import pixels


def dataset(images, **columns):
    labels = np.arange(len(images)) % 4
    return ImageDataset.of("made up", torch.from_numpy(images), labels, None, **columns)


def test_moments_are_those_of_a_float_copy(rng):
    images = pixels(rng, 50, 3, 6, 5)
    images[:, 1] //= 7
    data = dataset(images)
    scaled = images / 255
    assert data.mean.numpy() == pytest.approx(scaled.mean(axis=(0, 2, 3)), rel=1e-6)
    assert data.std.numpy() == pytest.approx(scaled.std(axis=(0, 2, 3)), rel=1e-6)
    assert data.mean.dtype == data.std.dtype == torch.float32


def test_a_constant_channel_is_not_divided_by_zero():
    data = dataset(np.full((4, 1, 2, 2), 7, dtype=np.uint8))
    assert data.inputs(np.arange(4), torch.device("cpu")).abs().max() < 1e-6


def test_shape_and_what_is_not_given(rng):
    data = dataset(pixels(rng, 8, 3, 6, 5))
    assert data.shape == (3, 6, 5)
    assert data.classes == ("0", "1", "2", "3")
    assert data.groups is data.test is None


def test_groups_and_test_part_are_kept(rng):
    test = np.array([False, True, True])
    data = dataset(pixels(rng, 3, 1, 4, 4), groups=np.array([7, 7, 5], np.uint8), test=test)
    assert data.groups.tolist() == [7, 7, 5]
    assert data.groups.dtype == np.int64
    assert data.test.tolist() == [False, True, True]


@pytest.mark.parametrize("groups", [np.arange(2), np.arange(3.0), np.zeros((3, 1), np.int64)])
def test_bad_groups_are_refused(groups, rng):
    with pytest.raises(SettingsError, match=r"made up: groups are .* 3 integers are needed"):
        dataset(pixels(rng, 3, 1, 4, 4), groups=groups)
