"""Arrays in files: .npz files, and the JSON files of LEAF."""

import json

import numpy as np
import pytest

from coprefl_flwr.data import Datasets, DataSettings, load_dataset, partition
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
        ({"images": IMAGES, "labels": LABELS / 1}, "labels are float64"),
        ({"images": IMAGES, "labels": LABELS[:2]}, "3 integers are needed"),
        ({"images": IMAGES, "labels": LABELS - 1}, "labels run from -1 to 1"),
        ({"images": IMAGES, "labels": LABELS, "classes": ["a", "b"]}, r"must be in 0\.\.1"),
        ({"images": IMAGES, "labels": np.array([0, 1, None])}, "not a readable .npz"),
        ({"images": IMAGES, "labels": LABELS, "groups": LABELS[:2]}, "groups are int64 of shape"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, arrays, message):
    refused(message, write_npz(tmp_path, **arrays))


def test_parts_of_two_image_shapes_are_refused(tmp_path):
    parts = {"train_images": IMAGES, "test_images": IMAGES[:, 1:]}
    path = write_npz(tmp_path, **parts, train_labels=LABELS, test_labels=LABELS)
    refused(r"images are uint8 \(3, 4, 4\) and uint8 \(3, 3, 4\); .* of one shape", path)


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


def test_groups_of_only_one_part_are_refused(tmp_path):
    arrays = in_two_parts(groups=[4, 4, 9, 4, 2])
    del arrays["test_groups"]
    refused("has no test_groups, but another part has groups", write_npz(tmp_path, **arrays))


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train_lables": LABELS}, "unknown key 'train_lables': did you mean 'train_labels'"),
        ({"class_names": ["a", "b", "c"]}, "unknown key 'class_names': did you mean 'classes'"),
        ({"train_short": LABELS[:2], "test_short": LABELS[:2]}, "'test_short'.* integer per image"),
    ],
)
def test_misspelt_key_is_refused_with_the_nearest_name(tmp_path, wrong, message):
    arrays = in_two_parts(coarse=[0, 0, 1, 1, 0])
    refused(message, write_npz(tmp_path, **arrays, **wrong))


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
    with pytest.raises(SettingsError, match=r"no sample is of class .* are .* \(12 classes\)"):
        _ = Datasets(DataSettings(dataset=path + part), 0).loaded
    datasets = Datasets(DataSettings(dataset=path + part, relabel=True, downstream_classes="4"), 0)
    assert len(datasets.classes[0]) == 8


def test_relabel_keeps_the_names_of_classes(tmp_path):
    arrays = {"images": IMAGES, "labels": np.array([3, 1, 1]), "classes": list("abcd")}
    data = load_dataset(write_npz(tmp_path, **arrays), relabel=True)
    assert (data.labels.tolist(), data.classes) == ([1, 0, 0], ("b", "d"))


@pytest.mark.parametrize("share", [0, 0.6])
def test_incomplete_file_is_refused(tmp_path, rng, share):
    path = write_npz(tmp_path, images=pixels(rng, 40, 5, 6), labels=np.arange(40))
    content = (tmp_path / "data.npz").read_bytes()
    (tmp_path / "data.npz").write_bytes(content[: int(len(content) * share)])
    refused("not a readable .npz", path)


# ---- LEAF ----------------------------------------------------------------------------------------


def write_leaf(path, **writers):
    """Write images (n, 28, 28) and labels (n,) of each writer as LEAF does, with four decimals."""
    path.parent.mkdir(exist_ok=True)
    user_data = {
        name: {"x": (images.reshape(-1, 784) / 255).round(4).tolist(), "y": list(labels)}
        for name, (images, labels) in writers.items()
    }
    sizes = [len(data["y"]) for data in user_data.values()]
    stored = {"users": list(user_data), "num_samples": sizes, "user_data": user_data}
    path.write_text(json.dumps(stored))


@pytest.fixture
def images(rng):
    return pixels(rng, 9, 28, 28)


@pytest.fixture
def folder(tmp_path, images):
    """Three writers, in two training files and one test file; writer f01 has no test samples."""
    write_leaf(tmp_path / "train" / "a.json", f02=(images[:2], [0, 10]), f01=(images[2:3], [36]))
    write_leaf(tmp_path / "train" / "b.json", f00=(images[3:6], [9, 35, 61]))
    write_leaf(
        tmp_path / "test" / "a.json",
        f02=(images[6:7], [10]),
        f01=(images[:0], []),
        f00=(images[7:], [9, 9]),
    )
    return tmp_path


def test_leaf_files_are_read_with_writers_as_groups(folder, images):
    data = load_dataset(str(folder))
    assert data.shape == (1, 28, 28)
    assert np.array_equal(data.images[:, 0], images)
    names = [data.classes[label] for label in data.labels]
    assert names == ["0", "A", "a", "9", "Z", "z", "A", "9", "9"]
    assert len(data.classes) == 62
    assert data.groups.tolist() == [2, 2, 1, 0, 0, 0, 2, 0, 0]
    assert data.test.tolist() == [False] * 6 + [True] * 3


def test_leaf_writers_are_clients_of_the_natural_partition(folder):
    data = load_dataset(str(folder))
    parts = partition(
        data.labels, 2, "natural", seed_key=("test",), min_samples=2, groups=data.groups
    )
    assert [part.tolist() for part in parts] == [[3, 4, 5, 7, 8], [0, 1, 6]]


def test_leaf_folder_without_test_files_has_no_test_part(tmp_path, images):
    write_leaf(tmp_path / "train" / "a.json", f00=(images[:3], [0, 1, 2]))
    data = load_dataset(str(tmp_path))
    assert data.test is None
    assert data.groups.tolist() == [0, 0, 0]


FORM = "bad.json: user_data of 'f0' must have x, lists of 784 numbers in 0..1"


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (None, "is not in LEAF's format"),
        ({"x": ["the "], "y": ["q"]}, FORM),
        ({"x": [[0.0] * 783], "y": [1]}, FORM),
        ({"x": [[0.0] * 784], "y": [1, 2]}, FORM),
        ({"x": [[255.0] * 784], "y": [1]}, FORM),
    ],
)
def test_file_in_another_format_than_leaf_is_refused(tmp_path, samples, message):
    (tmp_path / "train").mkdir()
    stored = {"users": ["f0"], "user_data": {"f0": samples}} if samples else []
    (tmp_path / "train" / "bad.json").write_text(json.dumps(stored))
    refused(message, tmp_path)


def test_leaf_label_out_of_range_is_refused(tmp_path, images):
    write_leaf(tmp_path / "train" / "a.json", f00=(images[:1], [62]))
    refused("labels run from 62 to 62; with 62 classes", tmp_path)
