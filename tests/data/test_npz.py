"""Arrays in .npz files."""

import numpy as np
import pytest

from coprefl_flwr.data import Datasets, DataSettings, load_dataset
from coprefl_flwr.errors import SettingsError
from tests.common.data import pixels, refused, write_npz

IMAGES, LABELS = np.zeros((3, 4, 4), dtype=np.uint8), np.array([0, 1, 2])


def test_train_and_test_parts_are_joined_in_this_order(tmp_path, rng):
    train, test = pixels(rng, 4, 5, 6), pixels(rng, 2, 5, 6)
    path = write_npz(
        tmp_path,
        train_images=train,
        train_labels=np.array([[0], [1], [2], [2]]),
        test_images=test,
        test_labels=np.array([[1], [0]]),
        classes=np.array(["ant", "bee", "cat", "dog"]),
    )
    data = load_dataset(path)
    assert np.array_equal(data.images[:, 0], np.concatenate([train, test]))
    assert data.labels.tolist() == [0, 1, 2, 2, 1, 0]
    assert data.classes == ("ant", "bee", "cat", "dog")
    assert data.test.tolist() == [False] * 4 + [True] * 2
    assert data.groups is None


def test_colour_images_are_channels_first(tmp_path, rng):
    images = pixels(rng, 4, 5, 6, 3)
    data = load_dataset(write_npz(tmp_path, images=images, labels=np.arange(4)))
    assert np.array_equal(data.images, images.transpose(0, 3, 1, 2))
    assert data.images.is_contiguous()
    assert data.test is None


def test_validation_part_is_no_test_part(tmp_path, rng):
    parts = {f"{part}_images": pixels(rng, 2, 5, 6) for part in ("train", "val", "test")}
    labels = {f"{part}_labels": np.array([0, 1]) for part in ("train", "val", "test")}
    data = load_dataset(write_npz(tmp_path, **parts, **labels))
    assert np.array_equal(data.images[2:4, 0], parts["val_images"])
    assert data.classes == ("0", "1")
    assert data.test.tolist() == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": IMAGES, "y": LABELS}, "has the keys x, y; needed are images and labels"),
        ({"images": IMAGES / 255, "labels": LABELS}, r"images are float64 \(3, 4, 4\)"),
        ({"images": np.zeros((3, 3, 9, 9), np.uint8), "labels": LABELS}, "1 to 4 channels"),
        ({"images": IMAGES, "labels": np.full(3, np.nan)}, "the target of item 0 has a"),
        (
            {"images": IMAGES, "labels": LABELS[:2] / 1},
            "labels are float64 of shape .2,.; 3 integers",
        ),
        ({"images": IMAGES, "labels": LABELS[:2]}, "3 integers are needed"),
        ({"images": IMAGES, "labels": LABELS - 1}, "labels run from -1 to 1"),
        ({"images": IMAGES, "labels": LABELS, "classes": ["a", "b"]}, r"must be in 0\.\.1"),
        ({"images": IMAGES, "labels": np.array([0, 1, None])}, "not a readable .npz"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, arrays, message):
    refused(message, write_npz(tmp_path, **arrays))


def test_parts_of_two_image_shapes_are_refused(tmp_path):
    parts = {"train_images": IMAGES, "test_images": IMAGES[:, 1:]}
    path = write_npz(tmp_path, **parts, train_labels=LABELS, test_labels=LABELS)
    refused(r"images are uint8 \(3, 4, 4\) and uint8 \(3, 3, 4\), not", path)


# --- groups, and labels of other names


def in_two_parts(**columns):
    """Return arguments of `write_npz` for three train and two test images with these columns."""
    arrays = {"train_images": IMAGES, "test_images": IMAGES[:2]}
    for name, values in {"labels": [0, 1, 2, 0, 1], **columns}.items():
        arrays |= {f"train_{name}": np.array(values[:3]), f"test_{name}": np.array(values[3:])}
    return arrays


def test_groups_and_domains_of_both_parts_are_kept(tmp_path):
    arrays = in_two_parts(groups=[4, 4, 9, 4, 2], domains=[1, 1, 0, 2, 1])
    data = load_dataset(write_npz(tmp_path, **arrays, domain_names=["art", "photo", "sketch"]))
    assert data.groups.tolist() == [4, 4, 9, 4, 2]
    assert data.groups.dtype == np.int64
    assert data.domains.tolist() == [1, 1, 0, 2, 1]
    assert data.domain_names == ("art", "photo", "sketch")


def test_other_labels_have_their_class_names(tmp_path):
    arrays = in_two_parts(coarse=[0, 0, 1, 1, 0], domain=[2, 2, 1, 0, 0])
    arrays |= {"classes": ["ant", "bee", "cat"], "coarse_classes": ["insect", "mammal"]}
    path = write_npz(tmp_path, **arrays)
    coarse, domain = load_dataset(f"{path}:coarse"), load_dataset(f"{path}:domain")
    assert coarse.labels.tolist() == [0, 0, 1, 1, 0]
    assert coarse.classes == ("insect", "mammal")
    assert domain.labels.tolist() == [2, 2, 1, 0, 0]
    assert domain.classes == ("0", "1", "2")
    assert load_dataset(path).labels.tolist() == [0, 1, 2, 0, 1]
    assert load_dataset(f"{path}:coarse") is coarse


def test_unknown_labels_are_refused_with_the_nearest_name(tmp_path):
    arrays = in_two_parts(coarse=[0, 0, 1, 1, 0], groups=[4, 4, 9, 4, 2])
    path = write_npz(tmp_path, **arrays)
    refused("unknown labels 'corse': did you mean 'coarse'", f"{path}:corse")
    refused("unknown labels 'images': known are labels, coarse, groups$", f"{path}:images")


# --- labels with gaps


@pytest.mark.parametrize("part", ["", ":coarse"])
def test_relabel_removes_gaps_between_class_numbers(tmp_path, part):
    """There are twelve classes 0, 5, ..., 55.

    An earlier version made them 56 classes, and tasks drew classes without samples.
    """
    labels = np.tile(np.arange(0, 60, 5), 2)
    arrays = {"images": np.zeros((24, 4, 4), np.uint8), "labels": labels, "coarse": labels + 1}
    path = write_npz(tmp_path, **arrays)
    data = load_dataset(path + part, relabel=True)
    assert data.labels.tolist() == list(range(12)) * 2
    assert data.classes[:3] == (("1", "6", "11") if part else ("0", "5", "10"))
    assert len(load_dataset(path + part).classes) > 50
    with pytest.raises(
        SettingsError, match=r"no sample is of class [01], 2, .* set relabel = true"
    ):
        _ = Datasets(DataSettings(dataset=path + part), 0).loaded
    datasets = Datasets(DataSettings(dataset=path + part, relabel=True, downstream_classes="4"), 0)
    assert len(datasets.classes[0]) == 8


def test_relabel_keeps_the_names_of_classes(tmp_path):
    arrays = {"images": IMAGES, "labels": np.array([3, 1, 1]), "classes": list("abcd")}
    data = load_dataset(write_npz(tmp_path, **arrays), relabel=True)
    assert (data.labels.tolist(), data.classes) == ([1, 0, 0], ("b", "d"))


def test_incomplete_file_is_refused(tmp_path, rng):
    path = write_npz(tmp_path, images=pixels(rng, 40, 5, 6), labels=np.arange(40))
    content = (tmp_path / "data.npz").read_bytes()
    (tmp_path / "data.npz").write_bytes(content[: int(len(content) * 0.6)])
    refused("not a readable .npz", path)
