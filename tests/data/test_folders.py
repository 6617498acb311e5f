import numpy as np
import pytest

from coprefl_flwr.data import load_dataset
from tests.data.made_up import pixels, refused, write_png


def test_folder_of_classes(tmp_path, rng):
    images = pixels(rng, 3, 5, 6)
    for name, image in zip(("cat/1.png", "cat/2.png", "ant/1.png"), images, strict=True):
        write_png(tmp_path / name, image)
    (tmp_path / ".thumbnails").mkdir()
    data = load_dataset(str(tmp_path))
    assert data.classes == ("ant", "cat")
    assert data.labels.tolist() == [0, 1, 1]
    assert np.array_equal(data.images[:, 0], images[[2, 0, 1]])
    assert data.groups is data.test is None


@pytest.mark.parametrize("other", ["test", "val"])
def test_folder_of_parts_with_a_class_missing_from_one(tmp_path, rng, other):
    train, test = pixels(rng, 5, 6, 3), pixels(rng, 5, 6, 3)
    write_png(tmp_path / "train" / "ant" / "1.png", train)
    write_png(tmp_path / other / "bee" / "1.png", test)
    data = load_dataset(str(tmp_path))
    assert data.classes == ("ant", "bee")
    assert data.labels.tolist() == [0, 1]
    assert np.array_equal(data.images, np.stack([train, test]).transpose(0, 3, 1, 2))


def test_the_test_part_is_told_from_the_others(tmp_path, rng):
    for part, n in (("train", 3), ("val", 1), ("test", 2)):
        for number in range(n):
            write_png(tmp_path / part / "ant" / f"{number}.png", pixels(rng, 5, 6))
    assert load_dataset(str(tmp_path)).test.tolist() == [False] * 4 + [True] * 2


def test_without_a_test_part_there_is_none(tmp_path, rng):
    for part in ("train", "val"):
        write_png(tmp_path / part / "ant" / "1.png", pixels(rng, 5, 6))
    assert load_dataset(str(tmp_path)).test is None


def test_a_class_called_test_is_a_class(tmp_path, rng):
    root = tmp_path / "test"
    for name in ("exam", "test"):
        write_png(root / name / "1.png", pixels(rng, 5, 6))
    data = load_dataset(str(root))
    assert data.classes == ("exam", "test")
    assert data.test is None


def test_one_colour_image_makes_all_rgb(tmp_path, rng):
    grey = pixels(rng, 5, 6)
    write_png(tmp_path / "a" / "1.png", grey)
    write_png(tmp_path / "b" / "1.png", pixels(rng, 5, 6, 3))
    data = load_dataset(str(tmp_path))
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
