"""Datasets of images that are made smaller, with torchvision's method."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from coprefl_flwr.data import make_dataset
from coprefl_flwr.data.reduction import Reduction
from tests.common.data import pixels

LABELS = np.array([2, 0, 0, 1, 0, 2, 0, 0, 2, 2])


def dataset(rng, n=10, shape=(3, 6, 6)):
    return make_dataset(
        "made up",
        torch.from_numpy(pixels(rng, n, *shape)),
        np.resize(LABELS, n),
        ("a", "b", "c"),
        groups=np.arange(n) // 2,
        test=np.arange(n) % 2 == 1,
        domains=np.arange(n) % 3,
        domain_names=("x", "y", "z"),
    )


def test_samples_per_class_limits_each_class():
    rows = Reduction(samples_per_class=2).rows(LABELS)
    assert np.bincount(LABELS[rows]).tolist() == [2, 1, 2]
    assert (np.diff(rows) > 0).all()
    assert rows.dtype == np.int64
    assert Reduction(samples_per_class=5).rows(LABELS).tolist() == list(range(10))


def test_drawn_samples_follow_the_seed_and_differ_between_classes():
    labels = np.repeat([0, 1], 100)
    drawn = [Reduction(samples_per_class=10, seed=seed).rows(labels) for seed in (0, 0, 1)]
    assert drawn[0].tolist() == drawn[1].tolist() != drawn[2].tolist()
    first, second = drawn[0][:10], drawn[0][10:] - 100
    assert first.tolist() != second.tolist()
    alone = Reduction(samples_per_class=10).rows(labels[:100])
    assert alone.tolist() == first.tolist()


def test_reduction_keeps_all_columns_of_the_drawn_rows(rng):
    whole = dataset(rng)
    reduction = Reduction(samples_per_class=2, seed=5)
    rows, small = reduction.rows(whole.labels), reduction.of("made up", whole)
    assert torch.equal(small.images, whole.images[torch.from_numpy(rows)])
    for name in ("labels", "groups", "test", "domains"):
        assert getattr(small, name).tolist() == getattr(whole, name)[rows].tolist()
    assert (small.classes, small.domain_names) == (whole.classes, whole.domain_names)
    assert small.mean.numpy() == pytest.approx(small.images.numpy().mean((0, 2, 3)) / 255, rel=1e-5)


@pytest.mark.parametrize("shape", [(9, 9), (12, 7), (5, 20), (3, 4)])
def test_images_are_resized_as_torchvision_resizes_one(rng, shape):
    images = torch.from_numpy(pixels(rng, 2, 3, *shape))
    resized = Reduction(image_size=6).resized(images)
    assert resized.shape == (2, 3, 6, 6)
    assert resized.dtype == torch.uint8
    usual = transforms.Compose([transforms.Resize(6), transforms.CenterCrop(6)])
    for small, image in zip(resized, images, strict=True):
        expected = np.asarray(usual(Image.fromarray(image.permute(1, 2, 0).numpy())))
        difference = small.permute(1, 2, 0).numpy().astype(int) - expected
        assert abs(difference).max() <= 1


def test_many_images_are_resized_in_order(rng):
    whole = dataset(rng, n=2003, shape=(1, 4, 4))
    small = Reduction(image_size=2).of("made up", whole)
    assert torch.equal(small.images, Reduction(image_size=2).resized(whole.images))
