"""Datasets in outline: as large as they are known to be, and without content."""

import numpy as np
import pytest

from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.load import load_dataset
from coprefl_flwr.data.outline import FILES, PUBLISHED, outline_of
from coprefl_flwr.data.published import PUBLISHED as NAMES


def test_every_published_dataset_is_known():
    assert PUBLISHED.keys() == set(NAMES)


@pytest.mark.parametrize("name", sorted({*PUBLISHED, *FILES} - {"shakespeare.txt:1"}))
def test_it_is_as_large_as_it_is_known_to_be(name):
    known = {**PUBLISHED, **FILES}[name]
    found = outline_of(f"/nowhere/{name}" if name in FILES else name)
    assert isinstance(found, ImageDataset)
    assert len(found.labels) == len(found.images) == known.train + known.test
    assert (len(found.classes), found.shape) == (known.classes, known.shape)
    assert found.images.untyped_storage().nbytes() == np.prod(known.shape)  # One image's.
    assert (found.test is None) == (known.test == 0)
    if found.test is not None:
        assert found.test.sum() == pytest.approx(known.test, rel=0.01)
    if known.groups:
        assert len(np.unique(found.groups[~found.test])) == known.groups
    assert found.measured_on(np.arange(2)) is found


def test_smaller_ones_and_unknown_ones():
    found = outline_of("CIFAR100", image_size=16, samples_per_class=60)
    assert found.shape == (3, 16, 16)
    assert set(np.bincount(found.labels)) == {60}
    assert outline_of("/nowhere/mine.npz") is None


def test_what_is_there_is_loaded(tiny_images):
    whole = load_dataset(str(tiny_images))
    assert load_dataset(str(tiny_images), outlined=True) is whole
