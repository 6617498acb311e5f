import json

import numpy as np
import pytest

from coprefl_flwr.data import load_dataset, partition
from tests.common.data import pixels, refused


def write_leaf(path, **writers):
    """Write images (n, 28, 28) and labels (n,) of each writer as LEAF does, to four decimals."""
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
    """Three writers, in two files of training samples and one for testing; one lacks the latter."""
    write_leaf(tmp_path / "train" / "a.json", f02=(images[:2], [0, 10]), f01=(images[2:3], [36]))
    write_leaf(tmp_path / "train" / "b.json", f00=(images[3:6], [9, 35, 61]))
    write_leaf(
        tmp_path / "test" / "a.json",
        f02=(images[6:7], [10]),
        f01=(images[:0], []),
        f00=(images[7:], [9, 9]),
    )
    return tmp_path


def test_images_and_labels(folder, images):
    data = load_dataset(str(folder))
    assert data.shape == (1, 28, 28)
    assert np.array_equal(data.images[:, 0], images)
    names = [data.classes[label] for label in data.labels]
    assert names == ["0", "A", "a", "9", "Z", "z", "A", "9", "9"]
    assert len(data.classes) == 62


def test_a_writer_is_one_group_in_both_parts(folder):
    data = load_dataset(str(folder))
    assert data.groups.tolist() == [2, 2, 1, 0, 0, 0, 2, 0, 0]
    assert data.test.tolist() == [False] * 6 + [True] * 3


def test_writers_can_be_clients(folder):
    data = load_dataset(str(folder))
    parts = partition(
        data.labels,
        2,
        "natural",
        alpha=0.5,
        classes_per_client=2,
        seed_key=("test",),
        min_samples=2,
        groups=data.groups,
    )
    assert [part.tolist() for part in parts] == [[3, 4, 5, 7, 8], [0, 1, 6]]


def test_without_test_files_there_is_no_test_part(tmp_path, images):
    write_leaf(tmp_path / "train" / "a.json", f00=(images[:3], [0, 1, 2]))
    data = load_dataset(str(tmp_path))
    assert data.test is None
    assert data.groups.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not readable as JSON"),
        ("[]", "does not hold what LEAF writes"),
        ('{"users": 3, "user_data": {}}', "does not hold what LEAF writes"),
        ('{"users": [], "user_data": {}}', "hold no samples"),
        ('{"users": ["f0"]}', "bad.json: user_data of 'f0' must be x, lists of 784 numbers"),
        ('{"users": ["f0"], "user_data": {}}', "user_data of 'f0'"),
        ('{"users": ["f0"], "user_data": {"f0": {"x": ["the "], "y": ["q"]}}}', "user_data of"),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, message):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "bad.json").write_text(text)
    refused(message, tmp_path)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([[0.0] * 783], [1]),
        ([[0.0] * 784, [0.0] * 783], [1, 2]),
        ([[0.0] * 784], [1, 2]),
        ([[0.0] * 784], [1.5]),
        ([[0.0] * 784], [[1]]),
        ([[0.0] * 784], 1),
        ([[255.0] * 784], [1]),
        ([[-0.1] * 784], [1]),
        ([[float("nan")] * 784], [1]),
        ([], [1]),
    ],
)
def test_samples_of_another_form_are_refused(tmp_path, x, y):
    (tmp_path / "train").mkdir()
    stored = {"users": ["f0"], "user_data": {"f0": {"x": x, "y": y}}}
    (tmp_path / "train" / "bad.json").write_text(json.dumps(stored))
    refused("bad.json: user_data of 'f0' must be x, lists of 784 numbers in 0..1", tmp_path)


def test_a_label_out_of_range_is_refused(tmp_path, images):
    write_leaf(tmp_path / "train" / "a.json", f00=(images[:1], [62]))
    refused("labels run from 62 to 62; with 62 classes", tmp_path)
