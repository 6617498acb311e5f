"""Folders of images, and datasets that are made smaller with torchvision's method."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from coprefl_flwr.data import load_dataset, make_dataset
from coprefl_flwr.data.image_folders import Reduction
from tests.common.data import pixels, refused, write_image


def test_folder_per_class_is_read_in_sorted_order(tmp_path, rng):
    images = pixels(rng, 3, 5, 6)
    for name, image in zip(("cat/1.png", "cat/2.png", "ant/1.png"), images, strict=True):
        write_image(tmp_path / name, image)
    (tmp_path / ".thumbnails").mkdir()
    data = load_dataset(str(tmp_path))
    assert data.classes == ("ant", "cat")
    assert data.labels.tolist() == [0, 1, 1]
    assert np.array_equal(data.images[:, 0], images[[2, 0, 1]])
    assert data.groups is data.test is None


@pytest.mark.parametrize("other", ["test", "val"])
def test_class_missing_from_one_part_shifts_no_label(tmp_path, rng, other):
    train, test = pixels(rng, 5, 6, 3), pixels(rng, 5, 6, 3)
    write_image(tmp_path / "train" / "ant" / "1.png", train)
    write_image(tmp_path / other / "bee" / "1.png", test)
    data = load_dataset(str(tmp_path))
    assert data.classes == ("ant", "bee")
    assert data.labels.tolist() == [0, 1]
    assert np.array_equal(data.images, np.stack([train, test]).transpose(0, 3, 1, 2))


def test_only_images_of_the_test_folder_are_test_samples(tmp_path, rng):
    for part, n in (("train", 3), ("val", 1), ("test", 2)):
        for number in range(n):
            write_image(tmp_path / part / "ant" / f"{number}.png", pixels(rng, 5, 6))
    assert load_dataset(str(tmp_path)).test.tolist() == [False] * 4 + [True] * 2
    shutil.rmtree(tmp_path / "test")
    assert load_dataset(f"{tmp_path}/").test is None


def test_class_named_test_is_a_class(tmp_path, rng):
    root = tmp_path / "test"
    for name in ("exam", "test"):
        write_image(root / name / "1.png", pixels(rng, 5, 6))
    data = load_dataset(str(root))
    assert data.classes == ("exam", "test")
    assert data.test is None


def test_images_of_two_sizes_are_refused_without_image_size(tmp_path, rng):
    write_image(tmp_path / "a" / "1.png", pixels(rng, 5, 6))
    write_image(tmp_path / "a" / "odd.png", pixels(rng, 5, 7))
    message = r"odd\.png: is 7x5 but .*1\.png is 6x5; all images must have one size: set image-size"
    refused(message, tmp_path)


def test_images_of_several_sizes_and_colours_are_resized(tmp_path, rng):
    """As in ImageNet, the .JPEG files have different sizes, and some of them are grey."""
    write_image(tmp_path / "train" / "n01" / "a.JPEG", pixels(rng, 9, 12, 3))
    write_image(tmp_path / "train" / "n02" / "b.JPEG", pixels(rng, 20, 8))
    write_image(tmp_path / "val" / "n01" / "c.JPEG", np.full((8, 8, 3), 77, np.uint8))
    data = load_dataset(str(tmp_path), image_size=4)
    assert data.images.shape == (3, 3, 4, 4)
    assert data.labels.tolist() == [0, 1, 0]
    assert (data.images[2] == 77).all()
    assert torch.equal(data.images[1, 0], data.images[1, 2])
    assert load_dataset(str(tmp_path), image_size=4) is data


def test_only_drawn_images_are_decoded(tmp_path, rng):
    """Of the twelve images, only the three drawn images can be read."""
    for number in range(12):
        write_image(tmp_path / "a" / f"{number:02d}.png", pixels(rng, 5, 6))
    rows = Reduction(samples_per_class=3).rows(np.zeros(12))
    for number in set(range(12)) - set(rows.tolist()):
        (tmp_path / "a" / f"{number:02d}.png").write_text("no image")
    data = load_dataset(str(tmp_path), samples_per_class=3)
    assert len(data.images) == len(data.labels) == 3


# --- domains


def write_domains(root, rng, cells):
    for number, cell in enumerate(cells):
        write_image(root / cell / f"{number}.png", pixels(rng, 5, 6, 3))


PACS = ("photo/dog", "photo/horse", "art/dog", "art/dog", "art/horse", "sketch/dog", "sketch/horse")


def test_folder_per_domain_is_read(tmp_path, rng):
    write_domains(tmp_path, rng, PACS)
    (tmp_path / "README.txt").write_text("a file beside the domains")
    data = load_dataset(str(tmp_path))
    assert data.classes == ("dog", "horse")
    assert data.domain_names == ("art", "photo", "sketch")
    assert data.labels.tolist() == [0, 0, 1, 0, 1, 0, 1]
    assert data.domains.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert data.test is None
    small = load_dataset(str(tmp_path), samples_per_class=2)
    assert len(small.domains) == len(small.labels) == 4


def test_class_missing_from_one_domain_shifts_no_label(tmp_path, rng):
    write_domains(tmp_path, rng, [*PACS, "art/cow"])
    data = load_dataset(str(tmp_path))
    assert data.classes == ("cow", "dog", "horse")
    assert data.labels.tolist() == [0, 1, 1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize(
    "cells",
    [
        ("ant/images", "bee/images", "cat/images"),
        ("train/ant", "train/bee", "test/ant", "test/bee"),
    ],
    ids=["one name", "parts"],
)
def test_class_folders_with_subfolders_are_no_domains(tmp_path, rng, cells):
    write_domains(tmp_path, rng, cells)
    data = load_dataset(str(tmp_path))
    assert (data.domains, data.domain_names) == (None, ())
    assert set(data.classes) <= {"ant", "bee", "cat"}


def test_empty_class_folder_is_left_out_by_relabel(tmp_path, rng):
    write_domains(tmp_path, rng, ["1", "1", "3"])
    (tmp_path / "2").mkdir()
    assert load_dataset(str(tmp_path)).classes == ("1", "2", "3")
    data = load_dataset(str(tmp_path), relabel=True)
    assert (data.classes, data.labels.tolist()) == (("1", "3"), [0, 0, 1])


def test_folder_without_readable_images_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    refused("no images found", tmp_path)
    (tmp_path / "a" / "broken.png").write_text("no image")
    refused(r"broken\.png: not a readable image", tmp_path)


WNIDS = ("n02", "n01", "n03")


@pytest.fixture
def tiny_imagenet(tmp_path, rng):
    """Two training images and one validation image per class, 8x8, as in the unpacked archive."""
    for wnid in WNIDS:
        for number in range(2):
            image = tmp_path / "train" / wnid / "images" / f"{wnid}_{number}.JPEG"
            write_image(image, pixels(rng, 8, 8, 3))
        (tmp_path / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t7\t7\n")
    for number in range(3):
        for part in ("val", "test"):
            image = tmp_path / part / "images" / f"{part}_{number}.JPEG"
            write_image(image, pixels(rng, 8, 8, 3))
    (tmp_path / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (tmp_path / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\tbee\n")
    (tmp_path / "val" / "val_annotations.txt").write_text(
        "".join(f"val_{n}.JPEG\t{w}\t0\t0\t7\t7\n" for n, w in enumerate(("n03", "n01", "n02")))
    )
    return tmp_path


def picture(path):
    return np.asarray(Image.open(path)).transpose(2, 0, 1)


def test_tiny_imagenet_validation_images_are_the_test_samples(tiny_imagenet):
    data = load_dataset(str(tiny_imagenet))
    assert data.classes == ("goldfish, Carassius auratus", "bee", "n03")
    assert data.labels.tolist() == [0, 0, 1, 1, 2, 2, 2, 0, 1]
    assert data.test.tolist() == [False] * 6 + [True] * 3
    assert data.images.shape == (9, 3, 8, 8)
    train, val = tiny_imagenet / "train" / "n02" / "images", tiny_imagenet / "val" / "images"
    assert np.array_equal(data.images[2], picture(train / "n02_0.JPEG"))
    assert np.array_equal(data.images[6], picture(val / "val_0.JPEG"))
    (tiny_imagenet / "words.txt").unlink()
    assert load_dataset(f"{tiny_imagenet}/").classes == ("n01", "n02", "n03")


def test_tiny_imagenet_is_reduced_while_it_is_read(tiny_imagenet):
    whole = load_dataset(str(tiny_imagenet))
    data = load_dataset(str(tiny_imagenet), image_size=4, samples_per_class=2, seed=1)
    rows = Reduction(samples_per_class=2, seed=1).rows(whole.labels)
    assert data.images.shape == (6, 3, 4, 4)
    assert data.labels.tolist() == whole.labels[rows].tolist()
    assert data.test.tolist() == whole.test[rows].tolist()
    assert data.test.any()


def test_annotation_of_an_unlisted_class_is_refused(tiny_imagenet):
    (tiny_imagenet / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn09\t0\t0\t7\t7\n")
    refused(r"val_annotations\.txt: 'val_0\.JPEG.*' names no class folder of train/", tiny_imagenet)


# ---- reduction -----------------------------------------------------------------------------------

LABELS = np.array([2, 0, 0, 1, 0, 2, 0, 0, 2, 2])


def dataset(rng, n=10, shape=(3, 6, 6)):
    return make_dataset(
        "made up",
        torch.from_numpy(pixels(rng, n, *shape)),
        np.resize(LABELS, n),
        ("a", "b", "c"),
        groups=np.arange(n) // 2,
        test=np.arange(n) % 2 == 1,
        domains=np.arange(n) % 3,
        domain_names=("x", "y", "z"),
    )


def test_samples_per_class_limits_each_class():
    rows = Reduction(samples_per_class=2).rows(LABELS)
    assert np.bincount(LABELS[rows]).tolist() == [2, 1, 2]
    assert (np.diff(rows) > 0).all()
    assert rows.dtype == np.int64
    assert Reduction(samples_per_class=5).rows(LABELS).tolist() == list(range(10))


def test_drawn_samples_follow_the_seed_and_differ_between_classes():
    labels = np.repeat([0, 1], 100)
    drawn = [Reduction(samples_per_class=10, seed=seed).rows(labels) for seed in (0, 0, 1)]
    assert drawn[0].tolist() == drawn[1].tolist() != drawn[2].tolist()
    first, second = drawn[0][:10], drawn[0][10:] - 100
    assert first.tolist() != second.tolist()
    alone = Reduction(samples_per_class=10).rows(labels[:100])
    assert alone.tolist() == first.tolist()


def test_reduction_keeps_all_columns_of_the_drawn_rows(rng):
    whole = dataset(rng)
    reduction = Reduction(samples_per_class=2, seed=5)
    rows, small = reduction.rows(whole.labels), reduction.of("made up", whole)
    assert torch.equal(small.images, whole.images[torch.from_numpy(rows)])
    for name in ("labels", "groups", "test", "domains"):
        assert getattr(small, name).tolist() == getattr(whole, name)[rows].tolist()
    assert (small.classes, small.domain_names) == (whole.classes, whole.domain_names)
    assert small.mean.numpy() == pytest.approx(small.images.numpy().mean((0, 2, 3)) / 255, rel=1e-5)


@pytest.mark.parametrize("shape", [(9, 9), (12, 7), (5, 20), (3, 4)])
def test_images_are_resized_as_torchvision_resizes_one(rng, shape):
    images = torch.from_numpy(pixels(rng, 2, 3, *shape))
    resized = Reduction(image_size=6).resized(images)
    assert resized.shape == (2, 3, 6, 6)
    assert resized.dtype == torch.uint8
    usual = transforms.Compose([transforms.Resize(6), transforms.CenterCrop(6)])
    for small, image in zip(resized, images, strict=True):
        expected = np.asarray(usual(Image.fromarray(image.permute(1, 2, 0).numpy())))
        difference = small.permute(1, 2, 0).numpy().astype(int) - expected
        assert abs(difference).max() <= 1


def test_many_images_are_resized_in_order(rng):
    whole = dataset(rng, n=2003, shape=(1, 4, 4))
    small = Reduction(image_size=2).of("made up", whole)
    assert torch.equal(small.images, Reduction(image_size=2).resized(whole.images))
