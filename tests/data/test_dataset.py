"""Datasets in memory: checked for every source, normalised, and cut into batches."""

import numpy as np
import pytest
import torch
from torch.utils import data

from coprefl_flwr.data import Samples, load_dataset, make_dataset
from coprefl_flwr.data.dataset import batch_slices
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.studies.populations import Clients
from tests.common.checks import refusal
from tests.common.data import pixels, write_npz


def dataset(images, **columns):
    labels = np.arange(len(images)) % 4
    return make_dataset("made up", torch.from_numpy(images), labels, **columns)


def test_moments_are_those_of_a_float_copy(rng):
    images = pixels(rng, 50, 3, 6, 5)
    images[:, 1] //= 7
    data = dataset(images)
    scaled = images / 255
    assert data.mean.numpy() == pytest.approx(scaled.mean(axis=(0, 2, 3)), rel=1e-6)
    assert data.std.numpy() == pytest.approx(scaled.std(axis=(0, 2, 3)), rel=1e-6)
    assert data.mean.dtype == data.std.dtype == torch.float32
    assert (data.shape, data.classes) == ((3, 6, 5), ("0", "1", "2", "3"))
    assert data.groups is data.test is None


def test_constant_channel_is_not_divided_by_zero():
    data = dataset(np.full((4, 1, 2, 2), 7, dtype=np.uint8))
    assert data.inputs(np.arange(4), torch.device("cpu")).abs().max() < 1e-6


def test_groups_test_part_and_domains_are_kept(rng):
    images = pixels(rng, 3, 1, 4, 4)
    columns = {"groups": np.array([7, 7, 5], np.uint8), "test": np.array([False, True, True])}
    names = ["photo", "sketch"]
    data = dataset(images, domains=np.array([1, 0, 1], np.uint8), domain_names=names, **columns)
    assert data.groups.tolist() == [7, 7, 5]
    assert data.groups.dtype == np.int64
    assert data.test.tolist() == [False, True, True]
    assert data.domains.tolist() == [1, 0, 1]
    assert data.domains.dtype == np.int64
    assert data.domain_names == ("photo", "sketch")
    assert dataset(images, domains=np.array([1, 0, 2])).domain_names == ("0", "1", "2")
    assert (dataset(images).domains, dataset(images).domain_names) == (None, ())


def test_wrong_domains_and_groups_are_refused(rng):
    images = pixels(rng, 3, 1, 4, 4)
    with pytest.raises(SettingsError, match=r"made up: domains are .* 3 integers are needed"):
        dataset(images, domains=np.arange(2))
    with pytest.raises(SettingsError, match=r"made up: groups are .* 3 integers are needed"):
        dataset(images, groups=np.arange(3.0))
    with pytest.raises(SettingsError, match=r"domains run from 0 to 2; they must be in 0\.\.1"):
        dataset(images, domains=np.arange(3), domain_names=["photo", "sketch"])


def test_grey_images_in_colour_share_their_memory(rng):
    grey = dataset(pixels(rng, 5, 1, 4, 4))
    colour = grey.in_colour()
    assert colour.shape == (3, 4, 4)
    assert colour.images.data_ptr() == grey.images.data_ptr()
    rows, cpu = np.array([3, 0]), torch.device("cpu")
    assert torch.equal(colour.inputs(rows, cpu), grey.inputs(rows, cpu).expand(-1, 3, -1, -1))
    assert colour.mean.tolist() == 3 * grey.mean.tolist()
    assert colour.std.tolist() == 3 * grey.std.tolist()
    assert colour.in_colour() is colour


def test_images_can_be_normalised_by_a_part_of_them(rng):
    images = pixels(rng, 8, 3, 4, 4)
    images[4:] //= 9
    data = dataset(images)
    part = data.normalised_on(np.array([4, 6]))
    assert part.mean.numpy() == pytest.approx(images[[4, 6]].mean((0, 2, 3)) / 255, rel=1e-6)
    assert part.std.numpy() == pytest.approx(images[[4, 6]].std((0, 2, 3)) / 255, rel=1e-6)
    assert part.images is data.images
    again = data.normalised_as(part)
    assert torch.equal(again.mean, part.mean)
    assert torch.equal(again.std, part.std)


# ---- samples -------------------------------------------------------------------------------------

CPU = torch.device("cpu")


@pytest.fixture
def samples(tmp_path, rng):
    data = load_dataset(
        write_npz(tmp_path, images=pixels(rng, 20, 4, 3, 3), labels=np.arange(20) % 5)
    )
    return Samples(data, np.array([3, 19, 0, 7, 8, 12, 2]), np.array([0, 1, 0, 1, 0, 1, 1]))


def test_batch_is_normalised_in_a_fixed_order_and_has_the_task_labels(samples):
    """The order of the operations decides the last bit, and runs are compared bit by bit."""
    images, labels = samples.batch(np.array([1, 2]), CPU)
    data = samples.dataset
    expected = data.images[[19, 0]].float()
    expected /= 255
    expected -= data.mean[:, None, None]
    expected /= data.std[:, None, None]
    assert torch.equal(images, expected)
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.tolist() == [1, 0]
    assert labels.dtype == torch.int64


def test_take_counts_from_the_samples_without_a_copy(samples):
    subset = samples.take(np.array([4, 1]))
    assert len(subset) == 2
    assert subset.dataset is samples.dataset
    assert subset.indices.tolist() == [8, 19]
    assert subset.labels.tolist() == [0, 1]


def test_batches_have_every_sample_once_in_order(samples):
    batches = list(samples.batches(3, CPU))
    assert [len(labels) for _, labels in batches] == [3, 4]
    whole, labels = samples.batch(np.arange(7), CPU)
    assert torch.equal(torch.cat([images for images, _ in batches]), whole)
    assert torch.equal(torch.cat([y for _, y in batches]), labels)


@pytest.mark.parametrize(
    ("n", "size", "lengths"),
    [(7, 3, [3, 4]), (8, 3, [3, 3, 2]), (6, 3, [3, 3]), (1, 3, [1]), (0, 3, []), (3, 1, [1, 2])],
)
def test_last_batch_of_one_sample_joins_the_previous_batch(n, size, lengths):
    cuts = batch_slices(n, size)
    assert [cut.stop - cut.start for cut in cuts] == lengths
    assert [i for cut in cuts for i in range(n)[cut]] == list(range(n))


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_missing_value_is_named_by_its_item(value):
    """Before, the run ended after three tries, with the advice to train at a smaller rate."""
    inputs = torch.zeros(8, 3, 2)
    make_dataset("made up", inputs, np.arange(8))
    inputs[5, 1, 0] = inputs[7, 0, 1] = value
    line = refusal(make_dataset, "made up", inputs, np.arange(8))
    assert line == "made up: item 5 has a NaN or an infinity"


def test_large_values_are_not_missing():
    """Their sum is infinite in this dtype."""
    for inputs in (torch.full((9,), 6e4).half(), torch.full((9, 2), 3e38)):
        assert make_dataset("made up", inputs, np.arange(9)).values is inputs


def test_value_that_float32_does_not_have_is_named_with_its_client():
    fine, other = (data.TensorDataset(torch.ones(4, 2).double(), torch.arange(4)) for _ in "ab")
    other.tensors[0][2] = 1e300
    line = refusal(Clients.of_datasets, [fine, other])
    assert line.startswith("clients[1]: item 2 has a NaN")
