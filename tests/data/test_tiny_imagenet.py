import numpy as np
import pytest
from PIL import Image

from coprefl_flwr.data import load_dataset
from coprefl_flwr.data.reduction import Reduction
from tests.data.made_up import pixels, refused, write_image

WNIDS = ("n02", "n01", "n03")


@pytest.fixture
def tiny_imagenet(tmp_path, rng):
    """Two training and one validation image of each class, 8x8, as the archive unpacks."""
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


def test_train_and_validation_are_merged(tiny_imagenet):
    data = load_dataset(str(tiny_imagenet))
    assert data.classes == ("goldfish, Carassius auratus", "bee", "n03")
    assert data.labels.tolist() == [0, 0, 1, 1, 2, 2, 2, 0, 1]
    assert data.test.tolist() == [False] * 6 + [True] * 3
    assert data.images.shape == (9, 3, 8, 8)
    train, val = tiny_imagenet / "train" / "n02" / "images", tiny_imagenet / "val" / "images"
    assert np.array_equal(data.images[2], picture(train / "n02_0.JPEG"))
    assert np.array_equal(data.images[6], picture(val / "val_0.JPEG"))


def test_it_is_made_smaller_as_it_is_read(tiny_imagenet):
    whole = load_dataset(str(tiny_imagenet))
    data = load_dataset(str(tiny_imagenet), image_size=4, samples_per_class=2, seed=1)
    rows = Reduction(samples_per_class=2, seed=1).rows(whole.labels)
    assert data.images.shape == (6, 3, 4, 4)
    assert data.labels.tolist() == whole.labels[rows].tolist()
    assert data.test.tolist() == whole.test[rows].tolist()
    assert data.test.any()


def test_without_words_the_classes_are_wordnet_ids(tiny_imagenet):
    (tiny_imagenet / "words.txt").unlink()
    assert load_dataset(str(tiny_imagenet)).classes == ("n01", "n02", "n03")


@pytest.mark.parametrize("line", ["val_0.JPEG\tn09\t0\t0\t7\t7", "val_0.JPEG"])
def test_an_image_of_no_listed_class_is_refused(tiny_imagenet, line):
    (tiny_imagenet / "val" / "val_annotations.txt").write_text(line + "\n")
    refused(r"val_annotations\.txt: 'val_0\.JPEG.*' names no class of wnids\.txt", tiny_imagenet)


def test_a_listed_image_that_is_missing_is_named(tiny_imagenet):
    (tiny_imagenet / "val" / "images" / "val_1.JPEG").unlink()
    refused(r"val_1\.JPEG: not a readable image", tiny_imagenet)


def test_a_folder_without_images_is_refused(tiny_imagenet):
    (tiny_imagenet / "wnids.txt").write_text("n09\n")
    (tiny_imagenet / "val" / "val_annotations.txt").write_text("")
    refused("no images found; the layout is train/WNID/images", tiny_imagenet)
