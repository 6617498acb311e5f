"""A source made smaller: what is kept, and that it is resized as torchvision does it."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from coprefl_flwr.data import ImageDataset
from coprefl_flwr.data.reduction import Reduction
from tests.common.data import pixels

LABELS = np.array([2, 0, 0, 1, 0, 2, 0, 0, 2, 2])


def dataset(rng, n=10, shape=(3, 6, 6)):
    return ImageDataset.of(
        "made up",
        torch.from_numpy(pixels(rng, n, *shape)),
        np.resize(LABELS, n),
        ("a", "b", "c"),
        groups=np.arange(n) // 2,
        test=np.arange(n) % 2 == 1,
        domains=np.arange(n) % 3,
        domain_names=("x", "y", "z"),
    )


def test_nothing_set_keeps_the_very_dataset(rng):
    whole = dataset(rng)
    assert Reduction(seed=3).of("made up", whole) is whole
    assert Reduction().rows(LABELS).tolist() == list(range(10))


def test_at_most_so_many_of_each_class():
    rows = Reduction(samples_per_class=2).rows(LABELS)
    assert np.bincount(LABELS[rows]).tolist() == [2, 1, 2]
    assert (np.diff(rows) > 0).all()
    assert rows.dtype == np.int64
    assert Reduction(samples_per_class=5).rows(LABELS).tolist() == list(range(10))


def test_what_is_drawn_follows_the_seed_and_differs_between_classes():
    labels = np.repeat([0, 1], 100)
    drawn = [Reduction(samples_per_class=10, seed=seed).rows(labels) for seed in (0, 0, 1)]
    assert drawn[0].tolist() == drawn[1].tolist() != drawn[2].tolist()
    first, second = drawn[0][:10], drawn[0][10:] - 100
    assert first.tolist() != second.tolist()


def test_other_classes_do_not_change_what_is_drawn_of_one():
    alone, among = np.zeros(50, np.int64), np.repeat([0, 4], 50)
    kept = Reduction(samples_per_class=7)
    assert kept.rows(among)[:7].tolist() == kept.rows(alone).tolist()


def test_all_columns_are_those_of_the_rows(rng):
    whole = dataset(rng)
    kept = Reduction(samples_per_class=2, seed=5)
    rows, small = kept.rows(whole.labels), kept.of("made up", whole)
    assert torch.equal(small.images, whole.images[torch.from_numpy(rows)])
    for name in ("labels", "groups", "test", "domains"):
        assert getattr(small, name).tolist() == getattr(whole, name)[rows].tolist()
    assert (small.classes, small.domain_names) == (whole.classes, whole.domain_names)
    assert small.mean.numpy() == pytest.approx(small.images.numpy().mean((0, 2, 3)) / 255, rel=1e-5)


@pytest.mark.parametrize("shape", [(9, 9), (12, 7), (5, 20), (3, 4)])
def test_images_are_resized_as_torchvision_resizes_one(rng, shape):
    images = torch.from_numpy(pixels(rng, 2, 3, *shape))
    found = Reduction(image_size=6).resized(images)
    assert found.shape == (2, 3, 6, 6)
    assert found.dtype == torch.uint8
    usual = transforms.Compose([transforms.Resize(6), transforms.CenterCrop(6)])
    for one, image in zip(found, images, strict=True):
        expected = np.asarray(usual(Image.fromarray(image.permute(1, 2, 0).numpy())))
        difference = one.permute(1, 2, 0).numpy().astype(int) - expected
        assert abs(difference).max() <= 1


def test_images_of_that_size_are_left_alone(rng):
    images = torch.from_numpy(pixels(rng, 2, 3, 6, 6))
    assert Reduction(image_size=6).resized(images) is images


def test_many_images_are_resized_in_their_order(rng):
    whole = dataset(rng, n=2003, shape=(1, 4, 4))
    small = Reduction(image_size=2).of("made up", whole)
    assert torch.equal(small.images, Reduction(image_size=2).resized(whole.images))
