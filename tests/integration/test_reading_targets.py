"""Targets that are no classes: numbers, several labels of a sample, and images of classes."""

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data

from coprefl_flwr.data import as_dataset, as_samples, load_dataset, partition, pooled
from coprefl_flwr.data.reduction import Reduction
from tests.common.checks import refusal
from tests.common.data import pixels, write_npz

CPU = torch.device("cpu")
INPUTS = torch.arange(24.0).reshape(12, 2)
NUMBERS = np.arange(12) * 0.1  # float64, which cannot be stored as float32 without rounding
PAIRS = np.stack([NUMBERS, -NUMBERS], axis=1)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


class Items(data.Dataset):
    """A map-style dataset of given items."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, position):
        return self.items[position]


def hugging_face(targets):
    columns = {"x": INPUTS.tolist(), "target": targets.tolist()}
    return datasets.Dataset.from_dict(columns)


def kinds_of_data(targets):
    """Return the same samples as every kind of data that is read."""
    pairs = data.TensorDataset(INPUTS, torch.from_numpy(targets))
    plain = list(zip(INPUTS, targets.tolist(), strict=True))
    return {
        "torch": pairs,
        "loader": data.DataLoader(pairs, batch_size=5, shuffle=True),
        "pairs": Items(plain),
        "dicts": Items([{"x": x, "target": y} for x, y in plain]),
        "arrays": Items([{"x": x, "y": np.array(y)} for x, y in plain]),
        "hugging face": hugging_face(targets),
        "with_format": hugging_face(targets).with_format("torch"),
        "parts": {"train": data.Subset(pairs, range(8)), "test": data.Subset(pairs, range(8, 12))},
    }


@pytest.mark.parametrize("kind", kinds_of_data(NUMBERS))
@pytest.mark.parametrize("targets", [NUMBERS, PAIRS, NUMBERS[:, None]], ids=["one", "two", "(1,)"])
def test_floats_are_read_from_every_kind_of_data(kind, targets):
    dataset = as_dataset("data", kinds_of_data(targets)[kind])
    assert not dataset.has_classes
    assert dataset.targets.dtype == torch.float32
    assert torch.equal(dataset.targets, torch.from_numpy(targets).float())
    assert dataset.labels.tolist() == [0] * 12
    assert dataset.classes == ("",) * (2 if targets is PAIRS else 1)
    assert (dataset.test is None) == (kind != "parts")


def test_a_batch_function_chooses_the_targets():
    items = Items([{"a": x, "b": x, "c": y} for x, y in zip(INPUTS, PAIRS, strict=True)])
    dataset = as_dataset("data", items, batch=lambda item: (item["b"], item["c"][:1]))
    assert torch.equal(dataset.targets, torch.from_numpy(PAIRS[:, :1]).float())


@pytest.mark.parametrize(
    ("targets", "outputs"),
    [
        (torch.rand(12), 1),
        (torch.rand(12, 1), 1),
        (torch.rand(12, 4), 4),
        (torch.rand(12, 5, 6), 1),
        (torch.rand(12, 3, 5, 6), 3),
        (torch.arange(360).reshape(12, 5, 6) % 7, 7),
        (torch.arange(48).reshape(12, 4) % 2, 4),
    ],
)
def test_a_dataset_has_a_class_without_a_name_for_each_output(targets, outputs):
    dataset = as_dataset("data", data.TensorDataset(INPUTS, targets))
    assert dataset.classes == ("",) * outputs
    assert torch.equal(dataset.targets, targets)


def test_integers_and_whole_floats():
    """An integer is a class, a float is a number, and several bools are zeros and ones."""
    labels = torch.arange(12) % 3
    assert as_dataset("data", data.TensorDataset(INPUTS, labels)).has_classes
    assert as_dataset("data", data.TensorDataset(INPUTS, labels[:, None])).has_classes
    assert not as_dataset("data", data.TensorDataset(INPUTS, labels.float())).has_classes
    mixed = Items([(INPUTS[0], 1), (INPUTS[1], 2.5)])
    assert as_dataset("data", mixed).targets.tolist() == [1, 2.5]
    several = as_dataset("data", data.TensorDataset(INPUTS, torch.stack([labels > 0] * 2, 1)))
    assert torch.equal(several.targets, (labels > 0).float()[:, None].repeat(1, 2))


def test_masks_that_are_images_are_integers():
    masks = [np.full((4, 5), number, np.uint8) for number in range(3)]
    images = [np.zeros((4, 5, 3), np.uint8)] * 3
    items = Items(list(zip(map(Image.fromarray, images), map(Image.fromarray, masks), strict=True)))
    dataset = as_dataset("data", items)
    assert dataset.targets.dtype == torch.int64
    assert np.array_equal(dataset.targets.numpy(), np.stack(masks))
    assert len(dataset.classes) == 3


def test_batches_hold_the_targets_of_their_samples():
    """Also after `take`, and if the samples of several datasets become one."""
    dataset = as_dataset("data", data.TensorDataset(INPUTS, torch.from_numpy(PAIRS)))
    samples = as_samples("client", dataset).take(np.array([7, 2, 9, 4])).take(np.array([3, 0, 1]))
    inputs, targets = samples.batch(slice(None), CPU)
    assert torch.equal(inputs, INPUTS[[4, 7, 2]])
    assert torch.equal(targets, dataset.targets[[4, 7, 2]])
    other = as_samples("client", data.TensorDataset(INPUTS + 1, torch.from_numpy(PAIRS + 1)))
    together = pooled([samples, other.take(np.array([5]))])
    assert torch.equal(together.batch(slice(None), CPU)[1][:3], targets)
    assert together.batch(slice(3, 4), CPU)[1].tolist() == [pytest.approx([1.5, 0.5])]
    assert as_dataset("data", dataset, relabel=True) is dataset
    twice = pooled([samples, samples.take(np.array([1]))])
    assert torch.equal(twice.batch(slice(None), CPU)[1], dataset.targets[[4, 7, 2, 7]])
    assert repr(samples) == "<3 samples of targets float32 (2,)>"


def test_floats_and_masks_of_an_npz_file(tmp_path, rng):
    """The targets of the parts are joined; a column of one number stays one."""
    images, numbers = pixels(rng, 6, 4, 4), rng.standard_normal((6, 3))
    dataset = load_dataset(write_npz(tmp_path, images=images, labels=numbers))
    assert torch.equal(dataset.targets, torch.from_numpy(numbers).float())
    assert load_dataset(
        write_npz(tmp_path, images=images, labels=numbers[:, :1])
    ).targets.shape == (6, 1)
    file = write_npz(tmp_path, images=images, labels=np.arange(6) % 2, ages=numbers[:, 0])
    assert load_dataset(file).has_classes
    assert torch.equal(
        load_dataset(f"{file}:ages").targets, torch.from_numpy(numbers[:, 0]).float()
    )
    masks = (images > 99).astype(np.uint8) * 2
    parts = {"train_images": images[:4], "train_labels": masks[:4]}
    parts |= {"test_images": images[4:], "test_labels": masks[4:]}
    dataset = load_dataset(write_npz(tmp_path, **parts))
    assert np.array_equal(dataset.targets.numpy(), masks)
    assert len(dataset.classes) == 3


def test_fewer_samples_keep_their_targets(tmp_path, rng):
    """Without classes, `samples-per-class` is the number of all samples."""
    images = pixels(rng, 20, 4, 4)
    file = write_npz(tmp_path, images=images, labels=images.mean(axis=(1, 2)))
    dataset = load_dataset(file, samples_per_class=5)
    assert len(dataset.labels) == len(dataset.targets) == 5
    assert np.allclose(dataset.images.numpy().mean(axis=(1, 2, 3)), dataset.targets, rtol=1e-6)
    assert Reduction(samples_per_class=2).rows(np.arange(6) / 2).tolist() == list(range(6))


def test_hugging_face_folder_of_numbers(tmp_path, rng):
    """A column of numbers and a column of lists of numbers, by the name of the data."""
    images = list(pixels(rng, 8, 4, 5, 3))
    columns = {"img": images, "age": list(NUMBERS[:8]), "pair": PAIRS[:8].tolist()}
    features = {"img": datasets.Image(), "age": datasets.Value("float64")}
    features["pair"] = datasets.Sequence(datasets.Value("float64"))
    stored = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    stored.save_to_disk(tmp_path / "saved")
    for column, targets in (("age", NUMBERS), ("pair", PAIRS)):
        dataset = load_dataset(f"hf:{tmp_path / 'saved'}:label={column},image=img")
        assert torch.equal(dataset.targets, torch.from_numpy(targets[:8]).float())
    reduced = load_dataset(f"hf:{tmp_path / 'saved'}:label=age,image=img", samples_per_class=3)
    assert {*reduced.targets.tolist()} < {*torch.from_numpy(NUMBERS).float().tolist()}
    assert len(reduced.targets) == 3


# ---- partitions ----------------------------------------------------------------------------------

VALUES = np.random.default_rng(0).permutation(np.arange(200)) / 7
TENTHS = np.array([int(7 * value + 0.5) // 20 for value in VALUES])
"""The tenth of each value, by hand: 20 of the values are in each."""


def share(targets, clients, scheme, **options):
    return partition(targets, clients, scheme, seed_key=(0, "test"), min_samples=2, **options)


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "pathological"])
def test_tenths_of_the_targets_take_the_place_of_classes(scheme):
    by_class = share(TENTHS, 5, scheme)
    for targets in (VALUES, VALUES[:, None], np.stack([VALUES - 1, VALUES + 1], axis=1)):
        assert list(map(list, share(targets, 5, scheme))) == list(map(list, by_class))


def test_equal_targets_are_in_one_bin():
    counts = np.repeat([0.0, 1.0, 2.0], [150, 30, 20])
    parts = share(counts, 3, "pathological", classes_per_client=1)
    assert sorted(map(len, parts)) == [20, 30, 150]


def test_a_function_and_a_partitioner_get_the_targets():
    def slices(targets, clients, rng):
        assert targets.shape == (200, 1)
        return np.array_split(np.argsort(targets[:, 0]), clients)

    column = VALUES[:, None]
    expected = [sorted(part) for part in np.split(np.argsort(VALUES), 4)]
    assert list(map(list, share(column, 4, slices))) == expected
    by_library = "ContinuousPartitioner:partition_by=target,strictness=1"
    assert list(map(list, share(column, 4, by_library))) == expected
    assert "unknown column 'target'" in refusal(share, TENTHS, 4, by_library)
