import numpy as np
import pytest
import torch

from coprefl_flwr.data import glyphs, glyphs_in_domains, load_dataset
from coprefl_flwr.data.glyphs import in_style


@pytest.fixture(scope="module")
def dataset():
    return load_dataset("glyphs")


def test_glyphs_have_a_hundred_classes_in_order_with_a_test_part(dataset):
    assert dataset.images.shape == (12_000, 1, 28, 28)
    assert dataset.images.dtype == torch.uint8
    assert np.array_equal(dataset.labels, np.repeat(np.arange(100), 120))
    assert len(set(dataset.classes)) == 100
    assert np.bincount(dataset.labels[dataset.test]).tolist() == [20] * 100
    assert dataset.test[:120].tolist() == [False] * 100 + [True] * 20


def test_second_drawing_has_the_same_pixels(dataset):
    again = glyphs()
    assert again is not dataset
    assert torch.equal(again.images, dataset.images)


def test_drawing_has_the_recorded_brightness(dataset):
    """The comparison is coarse, because the last bit of exp() differs between platforms."""
    images = dataset.images.float().reshape(100, -1)
    assert images.mean().item() == pytest.approx(31.69, abs=0.01)
    assert images.mean(dim=1)[[0, 33, 99]].tolist() == pytest.approx(
        [28.26, 36.37, 38.14], abs=0.05
    )


def test_samples_of_a_class_differ(dataset):
    images = dataset.images.reshape(100, 120, -1).float()
    assert (images[:, 1:] - images[:, :1]).abs().mean(dim=2).min() > 5


def test_classes_differ_more_than_samples(dataset):
    """The mean image of half a class is nearest to the mean image of the other half.

    This holds for more than 95 % of the classes.
    """
    images = dataset.images.reshape(100, 2, 60, -1).float().mean(dim=2)
    distances = torch.cdist(images[:, 0], images[:, 1])
    assert (distances.argmin(dim=1) == torch.arange(100)).float().mean() > 0.95


# --- glyphs in domains


@pytest.fixture(scope="module")
def in_domains():
    return load_dataset("glyphs:domains")


def test_glyphs_in_domains_are_seven_classes_in_four_styles(in_domains):
    assert in_domains.images.shape == (3360, 1, 28, 28)
    assert in_domains.domain_names == ("plain", "inverted", "outlined", "turned")
    assert np.array_equal(in_domains.domains, np.repeat(np.arange(4), 840))
    assert np.array_equal(in_domains.labels, np.tile(np.repeat(np.arange(7), 120), 4))
    assert len(in_domains.classes) == 7
    cells = 7 * in_domains.domains + in_domains.labels
    assert np.bincount(cells[in_domains.test]).tolist() == [20] * 28
    assert torch.equal(glyphs_in_domains().images, in_domains.images)


def mean_images(dataset, style):
    """Return float (7, 28, 28), the mean image of each class in a style."""
    images = dataset.images[torch.from_numpy(dataset.domains == style)].float()
    return images.reshape(7, 120, 28, 28).mean(dim=1)


def test_every_style_shows_the_same_glyphs_in_new_drawings(dataset, in_domains):
    """If a style is undone, the mean images are nearest to the same glyphs in the plain dataset.

    No image of the style `plain` is an image of that dataset.
    """
    expected = dataset.images[:840].reshape(7, 120, 28, 28).float().mean(dim=1)
    undone = {
        0: mean_images(in_domains, 0),
        1: 255 - mean_images(in_domains, 1),
        3: mean_images(in_domains, 3).rot90(-1, dims=(1, 2)),
    }
    for means in undone.values():
        distances = torch.cdist(means.reshape(7, -1), expected.reshape(7, -1))
        assert distances.argmin(dim=1).tolist() == list(range(7))
    drawings = {image.numpy().tobytes() for image in dataset.images[:840]}
    assert not drawings & {image.numpy().tobytes() for image in in_domains.images[:840]}


def test_outlined_style_is_the_rim_around_the_ink():
    image = np.zeros((1, 7, 7), np.uint8)
    image[0, 2:5, 3] = 200
    rim = np.zeros((7, 7), np.uint8)
    rim[1:6, 2:5] = 200
    rim[2:5, 3] = 0
    assert np.array_equal(in_style("outlined", image)[0], rim)
