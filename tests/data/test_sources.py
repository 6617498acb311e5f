"""Datasets by name: kept once in memory, or read with torchvision."""

import bz2
import os
from types import SimpleNamespace

import numpy as np
import pytest
from torchvision import datasets as torchvision_datasets

from coprefl_flwr.data import load_dataset
from coprefl_flwr.data.sources import _FACTS
from tests.common.data import pixels, refused, write_idx, write_npz


def test_seeds_share_one_copy_of_a_dataset_without_drawn_samples():
    assert load_dataset("glyphs", seed=3) is load_dataset("glyphs")
    small = load_dataset("glyphs:domains", image_size=9)
    assert load_dataset("glyphs:domains", image_size=9, seed=3) is small
    first, other = (load_dataset("glyphs", samples_per_class=5, seed=seed) for seed in (0, 1))
    assert len(first.labels) == len(other.labels) == 500
    assert first.images.ne(other.images).any()
    assert load_dataset("glyphs", samples_per_class=5, seed=1) is other


def test_changed_file_is_read_again(tmp_path):
    """The files have the same path and size; a result of the old content would be stored as new."""
    for number in (0, 1):
        path = write_npz(tmp_path, images=np.full((4, 5, 6), number, np.uint8), labels=np.arange(4))
        os.utime(path, (number, number))
        assert load_dataset(path).images.eq(number).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar100", "unknown dataset 'cifar100': did you mean 'CIFAR100'"),
        ("CIFAR100:coarsest", "did you mean 'CIFAR100:coarse'"),
        ("zzz", r"unknown dataset 'zzz': known are glyphs, .* \(or the path of an \.npz"),
        ("missing/folder", "the path does not exist"),
        ("missing.npz:coarse", "the path does not exist"),
        (__file__, "only .npz files are read; examples/data/ has programs that convert"),
    ],
)
def test_unknown_dataset_is_refused(name, message):
    refused(message, name)


# ---- torchvision ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_idx_files_are_read_and_joined(tmp_path, rng, name):
    train, test = pixels(rng, 7, 28, 28), pixels(rng, 3, 28, 28)
    raw = tmp_path / name / "raw"
    write_idx(raw / "train-images-idx3-ubyte", train)
    write_idx(raw / "train-labels-idx1-ubyte", np.arange(7, dtype=np.uint8))
    write_idx(raw / "t10k-images-idx3-ubyte", test)
    write_idx(raw / "t10k-labels-idx1-ubyte", np.arange(7, 10, dtype=np.uint8))
    data = load_dataset(name, tmp_path)
    assert np.array_equal(data.images[:, 0], np.concatenate([train, test]))
    assert data.labels.tolist() == list(range(10))
    assert data.labels.dtype == np.int64
    assert data.classes == tuple(getattr(torchvision_datasets, name).classes)
    assert data.test.tolist() == [False] * 7 + [True] * 3
    assert data.groups is None
    assert load_dataset(name, str(tmp_path)) is data


def test_emnist_images_are_upright(tmp_path, rng):
    images = pixels(rng, 2, 28, 28)
    for part in ("train", "test"):
        prefix = tmp_path / "EMNIST" / "raw" / f"emnist-byclass-{part}"
        write_idx(prefix.with_name(f"{prefix.name}-images-idx3-ubyte"), images.swapaxes(1, 2))
        labels = np.array([10, 61], dtype=np.uint8)
        write_idx(prefix.with_name(f"{prefix.name}-labels-idx1-ubyte"), labels)
    data = load_dataset("EMNIST", tmp_path)
    assert np.array_equal(data.images[:2, 0], images)
    assert data.images.is_contiguous()
    assert [data.classes[label] for label in data.labels] == ["A", "z", "A", "z"]
    assert load_dataset("EMNIST:byclass", tmp_path) is data
    assert data.classes[:10] == tuple("0123456789")  # list:0-9 is CoPreFL's downstream part.


def test_qmnist_writers_are_groups(tmp_path, rng):
    raw = tmp_path / "QMNIST" / "raw"
    images = pixels(rng, 5, 28, 28)
    # Digit, NIST series, writer, number of the digit, ASCII code, global number, two unused.
    targets = np.array(
        [[label, 0, writer, 9, 48 + label, 1, 0, 0]
         for label, writer in zip((3, 0, 9, 3, 1), (700, 12, 700, 2301, 2301), strict=True)]
    )  # fmt: skip
    for part, rows in (("train", slice(3)), ("test", slice(3, 5))):
        write_idx(raw / f"qmnist-{part}-images-idx3-ubyte", images[rows])
        write_idx(raw / f"qmnist-{part}-labels-idx2-int", targets[rows].astype(">i4"), kind=12)
    data = load_dataset("QMNIST", tmp_path)
    assert np.array_equal(data.images[:, 0], images)
    assert data.labels.tolist() == [3, 0, 9, 3, 1]
    assert data.groups.tolist() == [700, 12, 700, 2301, 2301]
    assert data.test.tolist() == [False] * 3 + [True] * 2
    assert len(data.classes) == 10


def test_usps_labels_start_at_zero(tmp_path):
    row = " ".join(f"{i}:{1 if i == 2 else -1}" for i in range(1, 257))
    for name, label in (("usps.bz2", 1), ("usps.t.bz2", 10)):
        (tmp_path / name).write_bytes(bz2.compress(f"{label} {row}\n".encode()))
    data = load_dataset("USPS", tmp_path)
    assert data.images.shape == (2, 1, 16, 16)
    assert data.images[0, 0, 0].tolist()[:3] == [0, 255, 0]
    assert data.labels.tolist() == [0, 9]
    assert data.classes == tuple("0123456789")


def test_colour_images_are_channels_first(tmp_path, rng, monkeypatch):
    """torchvision's datasets have two layouts.

    CIFAR has (N, H, W, C) and a list of targets, and SVHN has (N, C, H, W).
    """
    images = pixels(rng, 10, 32, 32, 3)

    def cifar(root, train, download):
        return SimpleNamespace(data=images, targets=list(range(10)), classes=list("abcdefghij"))

    def svhn(root, split, download):
        return SimpleNamespace(data=images.transpose(0, 3, 1, 2), labels=np.arange(10))

    monkeypatch.setattr(torchvision_datasets, "CIFAR10", cifar)
    monkeypatch.setattr(torchvision_datasets, "SVHN", svhn)
    for name in ("CIFAR10", "SVHN"):
        data = load_dataset(name, tmp_path)
        assert np.array_equal(data.images[:10], images.transpose(0, 3, 1, 2))
        assert data.images.shape == (20, 3, 32, 32)
        assert data.images.is_contiguous()
    assert load_dataset("CIFAR10", tmp_path).classes == tuple("abcdefghij")


# --- CIFAR-100's superclasses

SUPERCLASSES = _FACTS["superclasses"]


@pytest.fixture
def cifar100(tmp_path, rng, monkeypatch):
    """CIFAR-100 with one image per class in each part; classes are in alphabetical order."""
    classes = sorted(name for names in SUPERCLASSES.values() for name in names)
    images = pixels(rng, 100, 32, 32, 3)

    def part(root, train, download):
        return SimpleNamespace(data=images, targets=list(range(100)), classes=classes)

    monkeypatch.setattr(torchvision_datasets, "CIFAR100", part)
    return tmp_path


def test_coarse_labels_are_the_superclasses_of_the_same_images(cifar100):
    fine, coarse = load_dataset("CIFAR100", cifar100), load_dataset("CIFAR100:coarse", cifar100)
    assert coarse.classes == tuple(SUPERCLASSES)
    for name, label in zip(fine.classes, coarse.labels[:100], strict=True):
        assert name in SUPERCLASSES[coarse.classes[label]]
    assert coarse.classes[coarse.labels[fine.classes.index("tractor")]] == "vehicles_2"
    assert np.array_equal(coarse.labels[100:], coarse.labels[:100])
    assert coarse.images is fine.images
    assert coarse.test.tolist() == [False] * 100 + [True] * 100
    assert fine.labels[:100].tolist() == list(range(100))


def test_failed_download_names_the_folder_for_the_files(tmp_path, monkeypatch):
    missing = (tmp_path / "nowhere").as_uri() + "/"
    monkeypatch.setattr(torchvision_datasets.MNIST, "mirrors", [missing])
    error = refused(r"copy MNIST/raw/.* to ", "MNIST", tmp_path)
    assert str(tmp_path) in str(error)
    assert isinstance(error.__cause__, RuntimeError)
