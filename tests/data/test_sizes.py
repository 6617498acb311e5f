"""Stand-ins of datasets: as large as these are published to be, and without content."""

import numpy as np
import pytest

from coprefl_flwr.data.load import load_dataset
from coprefl_flwr.data.published import PUBLISHED
from coprefl_flwr.data.sizes import PUBLISHED_SIZES, SIZES, stand_in


@pytest.mark.parametrize("name", sorted(PUBLISHED_SIZES))
def test_it_is_as_large_as_it_is_published_to_be(name):
    known, path = PUBLISHED_SIZES[name], name if name in PUBLISHED else f"/nowhere/{name}"
    found = load_dataset(path, f"{SIZES}/nowhere")
    assert (len(found.labels), len(found.classes)) == (known.train + known.test, known.classes)
    assert found.shape == known.shape
    if known.test:
        assert found.test.sum() == pytest.approx(known.test, rel=0.01)
    if known.groups:
        assert len(np.unique(found.groups[~found.test])) == known.groups
    assert (
        dict(zip(*np.unique(found.domains, return_counts=True), strict=True))
        == {number: count for number, (_, count) in enumerate(known.domains)}
        or not known.domains
    )


def test_every_published_dataset_has_a_size():
    assert set(PUBLISHED) <= PUBLISHED_SIZES.keys()


def test_smaller_ones_and_unknown_ones():
    found = stand_in("CIFAR100", image_size=16, samples_per_class=60)
    assert found.shape == (3, 16, 16)
    assert set(np.bincount(found.labels)) == {60}
    assert stand_in("/nowhere/mine.npz") is None


def test_what_is_at_its_path_is_loaded(tiny_images):
    assert load_dataset(str(tiny_images), SIZES) is load_dataset(str(tiny_images))
