"""Arrays in files: .npz files, and the JSON files of LEAF."""

import io
import json
import zipfile

import numpy as np
import pytest

from coprefl_flwr.data import Datasets, DataSettings, load_dataset, partition
from coprefl_flwr.data.readers import most_bytes
from coprefl_flwr.errors import SettingsError
from tests.common.data import pixels, refused, write_npz

IMAGES, LABELS = np.zeros((3, 4, 4), dtype=np.uint8), np.array([0, 1, 2])


def test_two_parts(tmp_path, rng):
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


def test_colour_images_come_channels_first(tmp_path, rng):
    images = pixels(rng, 4, 5, 6, 3)
    data = load_dataset(write_npz(tmp_path, images=images, labels=np.arange(4)))
    assert np.array_equal(data.images, images.transpose(0, 3, 1, 2))
    assert data.images.is_contiguous()
    assert data.test is None


def test_a_validation_part_is_kept_and_not_tested_on(tmp_path, rng):
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
        ({"images": IMAGES[0], "labels": LABELS}, r"images are uint8 \(4, 4\)"),
        ({"images": np.zeros((3, 3, 9, 9), np.uint8), "labels": LABELS}, "1 to 4 channels"),
        ({"images": IMAGES, "labels": LABELS / 1}, "labels are float64"),
        ({"images": IMAGES, "labels": LABELS[:2]}, "3 integers are needed"),
        ({"images": IMAGES, "labels": LABELS[:, None].repeat(2, 1)}, "labels are int64 of shape"),
        ({"images": IMAGES, "labels": LABELS - 1}, "labels run from -1 to 1"),
        ({"images": IMAGES, "labels": LABELS, "classes": ["a", "b"]}, r"must be in 0\.\.1"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "there are no images"),
        ({"images": IMAGES, "labels": np.array([0, 1, None])}, "not a readable .npz"),
        ({"images": IMAGES, "labels": LABELS, "groups": LABELS[:2]}, "groups are int64 of shape"),
        ({"images": IMAGES, "labels": LABELS, "domains": LABELS / 1}, "domains are float64"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, arrays, message):
    refused(message, write_npz(tmp_path, **arrays))


def test_parts_of_different_shapes_are_refused(tmp_path):
    parts = {"train_images": IMAGES, "test_images": IMAGES[:, 1:]}
    path = write_npz(tmp_path, **parts, train_labels=LABELS, test_labels=LABELS)
    refused(r"images are uint8 \(3, 4, 4\) and uint8 \(3, 3, 4\); .* of one shape", path)


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    (tmp_path / "data.npz").write_text("no zip")
    refused("not a readable .npz", tmp_path / "data.npz")


# --- groups, and labels of other names


def in_two_parts(**columns):
    """Return arguments of `write_npz` for three train and two test images with these columns."""
    arrays = {"train_images": IMAGES, "test_images": IMAGES[:2]}
    for name, values in {"labels": [0, 1, 2, 0, 1], **columns}.items():
        arrays |= {f"train_{name}": np.array(values[:3]), f"test_{name}": np.array(values[3:])}
    return arrays


def test_groups_of_a_whole(tmp_path):
    groups = np.array([[4], [4], [9]])
    data = load_dataset(write_npz(tmp_path, images=IMAGES, labels=LABELS, groups=groups))
    assert data.groups.tolist() == [4, 4, 9]


def test_groups_of_parts(tmp_path):
    data = load_dataset(write_npz(tmp_path, **in_two_parts(groups=[4, 4, 9, 4, 2])))
    assert data.groups.tolist() == [4, 4, 9, 4, 2]
    assert data.groups.dtype == np.int64


def test_domains_of_parts(tmp_path):
    arrays = in_two_parts(domains=[1, 1, 0, 2, 1])
    data = load_dataset(write_npz(tmp_path, **arrays, domain_names=["art", "photo", "sketch"]))
    assert data.domains.tolist() == [1, 1, 0, 2, 1]
    assert data.domain_names == ("art", "photo", "sketch")
    assert data.groups is None


def test_groups_of_one_part_only_are_refused(tmp_path):
    arrays = in_two_parts(groups=[4, 4, 9, 4, 2])
    del arrays["test_groups"]
    refused("has no test_groups, but another part has groups", write_npz(tmp_path, **arrays))


def test_other_labels_come_with_their_classes(tmp_path):
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


def test_other_labels_of_a_whole(tmp_path):
    path = write_npz(tmp_path, images=IMAGES, labels=LABELS, coarse=np.array([1, 0, 1]))
    assert load_dataset(f"{path}:coarse").labels.tolist() == [1, 0, 1]


def test_labels_that_are_not_there_are_named_with_those_that_are(tmp_path):
    arrays = in_two_parts(coarse=[0, 0, 1, 1, 0], groups=[4, 4, 9, 4, 2])
    path = write_npz(tmp_path, **arrays)
    refused("unknown labels 'corse': did you mean 'coarse'", f"{path}:corse")
    for name in ("", "images"):
        refused(rf"unknown labels '{name}': known are labels, coarse, groups$", f"{path}:{name}")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train_lables": LABELS}, "unknown key 'train_lables': did you mean 'train_labels'"),
        ({"class": ["a", "b", "c"]}, "unknown key 'class': did you mean 'classes'"),
        ({"class_names": ["a", "b", "c"]}, "unknown key 'class_names': did you mean 'classes'"),
        ({"train_weight": LABELS / 2, "test_weight": LABELS[:2] / 2}, "unknown key 'test_weight'"),
        ({"train_short": LABELS[:2], "test_short": LABELS[:2]}, "'test_short'.* integer per image"),
        ({"corse_classes": ["a", "b"]}, "did you mean 'coarse_classes'"),
        ({"val_images": IMAGES}, "unknown key 'val_images'"),
    ],
)
def test_a_misspelt_key_is_told_also_where_the_rest_suffices(tmp_path, wrong, message):
    arrays = in_two_parts(coarse=[0, 0, 1, 1, 0])
    refused(message, write_npz(tmp_path, **arrays, **wrong))


@pytest.mark.parametrize(
    ("arrays", "hint"),
    [
        ({"imagse": IMAGES, "labels": LABELS}, "'imagse': did you mean 'images'"),
        ({"images": IMAGES, "label": LABELS}, "'label': did you mean 'labels'"),
    ],
)
def test_a_misspelt_key_of_those_that_are_needed_is_told(tmp_path, arrays, hint):
    refused(f"needed are images and labels, .*{hint}", write_npz(tmp_path, **arrays))


# --- labels with gaps


@pytest.mark.parametrize("part", ["", ":coarse"])
def test_gaps_are_left_out_if_asked(tmp_path, part):
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


def test_names_stay_with_their_classes(tmp_path):
    arrays = {"images": IMAGES, "labels": np.array([3, 1, 1]), "classes": list("abcd")}
    data = load_dataset(write_npz(tmp_path, **arrays), relabel=True)
    assert (data.labels.tolist(), data.classes) == ([1, 0, 0], ("b", "d"))


def test_ids_are_no_labels(tmp_path):
    path = write_npz(tmp_path, images=IMAGES, labels=np.array([7, 10**9, 2 * 10**9]))
    refused("no sample is of class 0, 1, .*labels .* are 7, 1000000000, ", path)
    assert load_dataset(path, relabel=True).labels.tolist() == [0, 1, 2]


def test_a_file_without_other_labels_says_so(tmp_path):
    path = write_npz(tmp_path, images=IMAGES, labels=LABELS, classes=np.array(["a", "b", "c"]))
    refused("unknown labels 'names': known are labels$", f"{path}:names")
    refused("unknown labels 'classes'", f"{path}:classes")


def spoilt(path, shape, content=b"\0" * 48):
    """Write an .npz whose images have the given shape in the header."""
    header = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", header.getvalue() + content)
    return str(path)


def test_sizes_are_checked_before_anything_is_loaded(tmp_path, monkeypatch):
    """A header can have any shape, and a small file can be unpacked to a large array."""
    path = spoilt(tmp_path / "said.npz", (10**6, 10**6))
    refused(r"not a readable \.npz of plain arrays", path)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("was loaded"))
    path = spoilt(tmp_path / "bomb.npz", (2**20, 4, 4), b"\0" * 2**24)
    assert (tmp_path / "bomb.npz").stat().st_size < 2**15
    monkeypatch.setattr("coprefl_flwr.data.readers.most_bytes", lambda: 2**23)
    refused("unpacks to 0.0 GiB; allowed is half of the memory, 0.0 GiB", path)
    monkeypatch.undo()
    assert most_bytes() > 2**26


@pytest.mark.parametrize("cut", [0.3, 0.6])
def test_a_damaged_archive_is_one_line(tmp_path, rng, cut):
    path = write_npz(tmp_path, images=pixels(rng, 40, 5, 6), labels=np.arange(40))
    file = tmp_path / path.rpartition("/")[2]
    content = bytearray(file.read_bytes())
    content[int(len(content) * cut)] ^= 255
    file.write_bytes(bytes(content))
    with pytest.raises(SettingsError) as caught:
        load_dataset(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("classes", r"classes has shape \(\); allowed is \(names,\)"),
        ("domain_names", r"domain_names has shape \(\); allowed is \(names,\)"),
        ("images", r"images are uint8 \(\); allowed are uint8 \(N, H, W\)"),
    ],
)
def test_one_number_where_a_list_is_needed(tmp_path, rng, name, line):
    """An earlier version ended with a TypeError."""
    arrays = {"images": pixels(rng, 4, 5, 6), "labels": np.arange(4)}
    arrays["domains"] = np.zeros(4, int)
    refused(line, write_npz(tmp_path, **{**arrays, name: np.uint8(3)}))


def test_a_compression_that_python_does_not_have(tmp_path):
    """An earlier version ended with a NotImplementedError."""
    path = tmp_path / "a.npz"
    spoilt(path, (2, 4, 4), bytes(32))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\x08\x00", b"\x63\x00"))
    refused(r"not a readable \.npz of plain arrays \(NotImplementedError: ", str(path))


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
        ("[]", "is not in LEAF's format"),
        ('{"users": 3, "user_data": {}}', "is not in LEAF's format"),
        ('{"users": [], "user_data": {}}', "have no samples"),
        ('{"users": ["f0"]}', "bad.json: user_data of 'f0' must have x, lists of 784 numbers"),
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
    refused("bad.json: user_data of 'f0' must have x, lists of 784 numbers in 0..1", tmp_path)


def test_a_label_out_of_range_is_refused(tmp_path, images):
    write_leaf(tmp_path / "train" / "a.json", f00=(images[:1], [62]))
    refused("labels run from 62 to 62; with 62 classes", tmp_path)
