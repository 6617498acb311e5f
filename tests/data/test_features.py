"""Features: computed once, in the order of the samples, and stored for other processes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from coprefl_flwr.data import Samples, make_dataset
from coprefl_flwr.data.features import features_of

CPU = torch.device("cpu")


@pytest.fixture
def samples():
    """150 of 200 images in random order, with other labels than in the dataset."""
    rng = np.random.default_rng(3)
    images = torch.from_numpy(rng.integers(0, 256, (200, 3, 2, 2), dtype=np.uint8))
    dataset = make_dataset("test", images, rng.integers(0, 4, 200))
    rows = rng.permutation(200)[:150]
    return Samples(dataset, rows, rng.integers(0, 3, 150))


def flat(batch):
    return batch.flatten(1)


def brightest(batch):
    return batch.flatten(1).amax(dim=1, keepdim=True)


def fail(batch):
    raise AssertionError("the features were there")


def test_features_of_two_encoders_are_concatenated(samples):
    features = features_of(samples, [flat, brightest], CPU)
    images = samples.dataset.images[samples.indices].float().flatten(1) / 255
    expected = torch.cat([images, images.amax(dim=1, keepdim=True)], dim=1)
    inputs, labels = features.batch(np.array([5, 0, 149]), CPU)
    assert torch.equal(inputs, expected[[5, 0, 149]])
    assert labels.tolist() == samples.labels[[5, 0, 149]].tolist()
    assert features.dataset.shape == (13,)


def test_stored_features_are_mapped_instead_of_computed_again(samples, tmp_path):
    file = tmp_path / "deep" / "0.npy"
    first = features_of(samples, [flat], CPU, file)
    again = features_of(samples, [fail], CPU, file)
    assert str(file) in Path("/proc/self/maps").read_text()
    for part in (first, again):
        assert torch.equal(part.dataset.values, features_of(samples, [flat], CPU).dataset.values)
    some = again.take(np.array([9, 2])).batch(slice(None), CPU)
    assert torch.equal(some[0], first.batch(np.array([9, 2]), CPU)[0])


def test_change_is_applied_to_images_from_0_to_1(samples):
    plain = features_of(samples, [flat], CPU).dataset.values
    faded = features_of(samples, [flat], CPU, change=lambda x: 0.5 * x + 1)
    assert faded.dataset.values.numpy() == pytest.approx(0.5 * plain.numpy() + 1, rel=1e-6)
