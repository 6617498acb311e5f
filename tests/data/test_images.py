import bz2
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets as torchvision_datasets

from coprefl_flwr.data import Samples, batch_slices, load_images
from coprefl_flwr.errors import SettingsError

CPU = torch.device("cpu")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def pixels(rng, *shape):
    return rng.integers(0, 256, shape, dtype=np.uint8)


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.tobytes())


def write_npz(folder, **arrays):
    np.savez(folder / "data.npz", **arrays)
    return str(folder / "data.npz")


def write_png(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def refused(message, name, data_dir=""):
    with pytest.raises(SettingsError, match=message) as caught:
        load_images(str(name), data_dir)
    assert "\n" not in str(caught.value)
    return caught.value


# --- the two dataclasses


def test_moments_are_those_of_a_float_copy(tmp_path, rng):
    images = pixels(rng, 50, 6, 5, 3)
    images[..., 1] //= 7
    data = load_images(write_npz(tmp_path, images=images, labels=np.arange(50) % 4))
    scaled = images / 255
    assert data.mean.numpy() == pytest.approx(scaled.mean(axis=(0, 1, 2)), rel=1e-6)
    assert data.std.numpy() == pytest.approx(scaled.std(axis=(0, 1, 2)), rel=1e-6)
    assert data.mean.dtype == data.std.dtype == torch.float32


def test_a_constant_channel_is_not_divided_by_zero(tmp_path):
    images = np.full((4, 2, 2), 7, dtype=np.uint8)
    data = load_images(write_npz(tmp_path, images=images, labels=np.arange(4)))
    batch, _ = Samples(data, np.arange(4), np.arange(4)).batch(np.arange(4), CPU)
    assert batch.abs().max() < 1e-6


@pytest.fixture
def samples(tmp_path, rng):
    data = load_images(
        write_npz(tmp_path, images=pixels(rng, 20, 4, 3, 3), labels=np.arange(20) % 5)
    )
    return Samples(data, np.array([3, 19, 0, 7, 8, 12, 2]), np.array([0, 1, 0, 1, 0, 1, 1]))


def test_a_batch_is_normalised_and_carries_the_task_labels(samples):
    images, labels = samples.batch(np.array([1, 2]), CPU)
    data = samples.dataset
    expected = (data.images[[19, 0]] / 255 - data.mean.view(3, 1, 1)) / data.std.view(3, 1, 1)
    assert torch.allclose(images, expected, atol=1e-6)
    assert images.dtype == torch.float32
    assert labels.tolist() == [1, 0]
    assert labels.dtype == torch.int64


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


# --- torchvision's datasets, from files


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_idx_files_are_read_and_merged(tmp_path, rng, name):
    train, test = pixels(rng, 7, 28, 28), pixels(rng, 3, 28, 28)
    raw = tmp_path / name / "raw"
    write_idx(raw / "train-images-idx3-ubyte", train)
    write_idx(raw / "train-labels-idx1-ubyte", np.arange(7, dtype=np.uint8))
    write_idx(raw / "t10k-images-idx3-ubyte", test)
    write_idx(raw / "t10k-labels-idx1-ubyte", np.arange(7, 10, dtype=np.uint8))
    data = load_images(name, tmp_path)
    assert np.array_equal(data.images[:, 0], np.concatenate([train, test]))
    assert data.labels.tolist() == list(range(10))
    assert data.labels.dtype == np.int64
    assert data.classes == tuple(getattr(torchvision_datasets, name).classes)
    assert load_images(name, str(tmp_path)) is data


def test_emnist_is_put_upright(tmp_path, rng):
    images = pixels(rng, 2, 28, 28)
    for part in ("train", "test"):
        prefix = tmp_path / "EMNIST" / "raw" / f"emnist-byclass-{part}"
        write_idx(prefix.with_name(f"{prefix.name}-images-idx3-ubyte"), images.swapaxes(1, 2))
        labels = np.array([10, 61], dtype=np.uint8)
        write_idx(prefix.with_name(f"{prefix.name}-labels-idx1-ubyte"), labels)
    data = load_images("EMNIST", tmp_path)
    assert np.array_equal(data.images[:2, 0], images)
    assert data.images.is_contiguous()
    assert [data.classes[label] for label in data.labels] == ["A", "z", "A", "z"]


def test_usps_is_read(tmp_path):
    row = " ".join(f"{i}:{1 if i == 2 else -1}" for i in range(1, 257))
    for name, label in (("usps.bz2", 1), ("usps.t.bz2", 10)):
        (tmp_path / name).write_bytes(bz2.compress(f"{label} {row}\n".encode()))
    data = load_images("USPS", tmp_path)
    assert data.images.shape == (2, 1, 16, 16)
    assert data.images[0, 0, 0].tolist()[:3] == [0, 255, 0]
    assert data.labels.tolist() == [0, 9]
    assert data.classes == tuple("0123456789")


def test_colour_images_come_channels_first(tmp_path, rng, monkeypatch):
    """Both libraries' layouts: CIFAR's (N, H, W, C) with a list of targets, SVHN's (N, C, H, W)."""
    images = pixels(rng, 10, 32, 32, 3)

    def cifar(root, train, download):
        return SimpleNamespace(data=images, targets=list(range(10)), classes=list("abcdefghij"))

    def svhn(root, split, download):
        return SimpleNamespace(data=images.transpose(0, 3, 1, 2), labels=np.arange(10))

    monkeypatch.setattr(torchvision_datasets, "CIFAR10", cifar)
    monkeypatch.setattr(torchvision_datasets, "SVHN", svhn)
    for name in ("CIFAR10", "SVHN"):
        data = load_images(name, tmp_path)
        assert np.array_equal(data.images[:10], images.transpose(0, 3, 1, 2))
        assert data.images.shape == (20, 3, 32, 32)
        assert data.images.is_contiguous()
    assert load_images("CIFAR10", tmp_path).classes == tuple("abcdefghij")


def test_a_failed_download_says_where_to_put_the_files(tmp_path, monkeypatch):
    missing = (tmp_path / "nowhere").as_uri() + "/"
    monkeypatch.setattr(torchvision_datasets.MNIST, "mirrors", [missing])
    error = refused(r"put MNIST/raw/.* there by hand", "MNIST", tmp_path)
    assert str(tmp_path) in str(error)
    assert isinstance(error.__cause__, RuntimeError)


# --- .npz files


def test_npz_of_two_parts(tmp_path, rng):
    train, test = pixels(rng, 4, 5, 6), pixels(rng, 2, 5, 6)
    path = write_npz(
        tmp_path,
        train_images=train,
        train_labels=np.array([[0], [1], [2], [2]]),
        test_images=test,
        test_labels=np.array([[1], [0]]),
        classes=np.array(["ant", "bee", "cat", "dog"]),
    )
    data = load_images(path)
    assert np.array_equal(data.images[:, 0], np.concatenate([train, test]))
    assert data.labels.tolist() == [0, 1, 2, 2, 1, 0]
    assert data.classes == ("ant", "bee", "cat", "dog")


def test_npz_keeps_a_validation_part(tmp_path, rng):
    parts = {f"{part}_images": pixels(rng, 2, 5, 6) for part in ("train", "val", "test")}
    labels = {f"{part}_labels": np.array([0, 1]) for part in ("train", "val", "test")}
    data = load_images(write_npz(tmp_path, **parts, **labels))
    assert np.array_equal(data.images[2:4, 0], parts["val_images"])
    assert data.classes == ("0", "1")


IMAGES, LABELS = np.zeros((3, 4, 4), dtype=np.uint8), np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": IMAGES, "y": LABELS}, "has the keys x, y; needed are images and labels"),
        ({"images": IMAGES / 255, "labels": LABELS}, r"images are float64 \(3, 4, 4\)"),
        ({"images": IMAGES[0], "labels": LABELS}, r"images are uint8 \(4, 4\)"),
        ({"images": np.zeros((3, 3, 9, 9), np.uint8), "labels": LABELS}, "1 to 4 channels"),
        ({"images": IMAGES, "labels": LABELS / 1}, "labels are float64"),
        ({"images": IMAGES, "labels": LABELS[:2]}, "3 integers are needed"),
        ({"images": IMAGES, "labels": LABELS[:, None].repeat(2, 1)}, "labels have shape"),
        ({"images": IMAGES, "labels": LABELS - 1}, "labels run from -1 to 1"),
        ({"images": IMAGES, "labels": LABELS, "classes": ["a", "b"]}, r"must lie in 0\.\.1"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "there are no images"),
        ({"images": IMAGES, "labels": np.array([0, 1, None])}, "not a readable .npz"),
    ],
)
def test_a_bad_npz_is_one_line(tmp_path, arrays, message):
    refused(message, write_npz(tmp_path, **arrays))


def test_npz_parts_of_different_shapes_are_refused(tmp_path):
    parts = {"train_images": IMAGES, "test_images": IMAGES[:, 1:]}
    path = write_npz(tmp_path, **parts, train_labels=LABELS, test_labels=LABELS)
    refused(r"different shapes, \(4, 4\) and \(3, 4\)", path)


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    (tmp_path / "data.npz").write_text("no zip")
    refused("not a readable .npz", tmp_path / "data.npz")
    (tmp_path / "data.csv").write_text("1,2")
    refused("not an .npz", tmp_path / "data.csv")


# --- folders


def test_folder_of_classes(tmp_path, rng):
    images = pixels(rng, 3, 5, 6)
    for name, image in zip(("cat/1.png", "cat/2.png", "ant/1.png"), images, strict=True):
        write_png(tmp_path / name, image)
    (tmp_path / ".thumbnails").mkdir()
    data = load_images(str(tmp_path))
    assert data.classes == ("ant", "cat")
    assert data.labels.tolist() == [0, 1, 1]
    assert np.array_equal(data.images[:, 0], images[[2, 0, 1]])


@pytest.mark.parametrize("other", ["test", "val"])
def test_folder_of_parts_with_a_class_missing_from_one(tmp_path, rng, other):
    train, test = pixels(rng, 5, 6, 3), pixels(rng, 5, 6, 3)
    write_png(tmp_path / "train" / "ant" / "1.png", train)
    write_png(tmp_path / other / "bee" / "1.png", test)
    data = load_images(str(tmp_path))
    assert data.classes == ("ant", "bee")
    assert data.labels.tolist() == [0, 1]
    assert np.array_equal(data.images, np.stack([train, test]).transpose(0, 3, 1, 2))


def test_one_colour_image_makes_all_rgb(tmp_path, rng):
    grey = pixels(rng, 5, 6)
    write_png(tmp_path / "a" / "1.png", grey)
    write_png(tmp_path / "b" / "1.png", pixels(rng, 5, 6, 3))
    data = load_images(str(tmp_path))
    assert data.images.shape == (2, 3, 5, 6)
    assert np.array_equal(data.images[0, 2], grey)


def test_a_folder_with_two_sizes_names_a_file(tmp_path, rng):
    write_png(tmp_path / "a" / "1.png", pixels(rng, 5, 6))
    write_png(tmp_path / "a" / "odd.png", pixels(rng, 5, 7))
    refused(r"odd\.png: is 7x5 but .*1\.png is 6x5", tmp_path)


def test_a_file_that_is_no_image_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").write_text("no image")
    refused(r"broken\.png: not a readable image", tmp_path)


def test_sixteen_bit_images_are_refused(tmp_path):
    write_png(tmp_path / "a" / "deep.png", np.zeros((4, 4), dtype=np.uint16))
    refused(r"deep\.png: has pixels of mode I", tmp_path)


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    refused("no images found", tmp_path)


# --- names


def test_glyphs_are_held_once():
    assert load_images("glyphs") is load_images("glyphs")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar100", "nearest: CIFAR100"),
        ("glyph", "nearest: glyphs"),
        ("zzz", "'zzz' is not known; allowed are glyphs"),
        ("", "'' is not known"),
        ("missing/folder", "the path does not exist"),
        ("missing.npz", "the path does not exist"),
    ],
)
def test_a_name_that_is_not_there(name, message):
    refused(message, name)
