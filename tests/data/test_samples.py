import numpy as np
import pytest
import torch

from coprefl_flwr.data import Samples, TextDataset, batch_slices, load_dataset
from coprefl_flwr.errors import SettingsError
from tests.common.data import pixels, write_npz

CPU = torch.device("cpu")


@pytest.fixture
def samples(tmp_path, rng):
    data = load_dataset(
        write_npz(tmp_path, images=pixels(rng, 20, 4, 3, 3), labels=np.arange(20) % 5)
    )
    return Samples(data, np.array([3, 19, 0, 7, 8, 12, 2]), np.array([0, 1, 0, 1, 0, 1, 1]))


def test_a_batch_is_normalised_and_carries_the_task_labels(samples):
    images, labels = samples.batch(np.array([1, 2]), CPU)
    data = samples.dataset
    expected = (data.images[[19, 0]] / 255 - data.mean.view(3, 1, 1)) / data.std.view(3, 1, 1)
    assert torch.allclose(images, expected, atol=1e-6)
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.tolist() == [1, 0]
    assert labels.dtype == torch.int64


def test_the_numbers_of_a_batch_are_these_bit_for_bit(samples):
    """The order of the operations decides the last bit, by which runs are compared."""
    images, _ = samples.batch(slice(2, 5), CPU)
    data = samples.dataset
    expected = data.images[[0, 7, 8]].float()
    expected /= 255
    expected -= data.mean[:, None, None]
    expected /= data.std[:, None, None]
    assert torch.equal(images, expected)


def test_a_batch_of_text_carries_the_task_labels():
    data = TextDataset.of("text", "A:\nabcdefgh", length=3)
    samples = Samples(data, np.array([1, 3, 0]), np.array([1, 0, 1]))
    windows, labels = samples.batch(np.array([0, 2]), CPU)
    assert torch.equal(windows, data.inputs(np.array([1, 0]), CPU))
    assert labels.tolist() == [1, 1]


def test_take_counts_from_the_samples_and_copies_no_pixel(samples):
    taken = samples.take(np.array([4, 1]))
    assert len(taken) == 2
    assert taken.dataset is samples.dataset
    assert taken.indices.tolist() == [8, 19]
    assert taken.labels.tolist() == [0, 1]


def test_batches_hold_every_sample_once_in_order(samples):
    found = list(samples.batches(3, CPU))
    assert [len(labels) for _, labels in found] == [3, 4]
    whole, labels = samples.batch(np.arange(7), CPU)
    assert torch.equal(torch.cat([images for images, _ in found]), whole)
    assert torch.equal(torch.cat([y for _, y in found]), labels)


@pytest.mark.parametrize(
    ("n", "size", "lengths"),
    [(7, 3, [3, 4]), (8, 3, [3, 3, 2]), (6, 3, [3, 3]), (1, 3, [1]), (0, 3, []), (3, 1, [1, 2])],
)
def test_a_last_batch_of_one_joins_the_one_before(n, size, lengths):
    cuts = batch_slices(n, size)
    assert [cut.stop - cut.start for cut in cuts] == lengths
    assert [i for cut in cuts for i in range(n)[cut]] == list(range(n))


def test_a_batch_size_below_one_is_refused():
    with pytest.raises(SettingsError, match="batch size 0"):
        batch_slices(5, 0)
