import gc
import weakref

import numpy as np
import pytest

from coprefl_flwr.data import load_dataset
from coprefl_flwr.errors import SettingsError
from tests.common.data import pixels, refused, write_npz


def test_glyphs_are_held_once():
    assert load_dataset("glyphs") is load_dataset("glyphs")


def test_what_is_not_drawn_is_held_once_for_all_seeds():
    assert load_dataset("glyphs", seed=3) is load_dataset("glyphs")
    small = load_dataset("glyphs:domains", image_size=9)
    assert load_dataset("glyphs:domains", image_size=9, seed=3) is small
    one, other = (load_dataset("glyphs", samples_per_class=5, seed=seed) for seed in (0, 1))
    assert len(one.labels) == len(other.labels) == 500
    assert one.images.ne(other.images).any()
    assert load_dataset("glyphs", samples_per_class=5, seed=1) is other


def test_only_the_last_few_are_held(tmp_path, rng):
    """A process that goes through many datasets must not end up with all of them in memory."""
    held = weakref.WeakSet()
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = write_npz(folder, images=pixels(rng, 4, 5, 6), labels=np.arange(4))
        held.add(load_dataset(path).images)
        held.add(load_dataset(path, image_size=3).images)
    gc.collect()
    assert 1 <= len(held) <= 10
    last = load_dataset(path)
    assert load_dataset(path) is last


def test_a_text_is_not_resized(tmp_path):
    (tmp_path / "a.txt").write_text("A:\n" + "word " * 40)
    assert load_dataset(str(tmp_path / "a.txt")).domains is None
    for smaller in ({"image_size": 8}, {"samples_per_class": 2}):
        with pytest.raises(SettingsError, match="image-size and samples-per-class are for images"):
            load_dataset(str(tmp_path / "a.txt"), **smaller)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar100", "unknown dataset 'cifar100': did you mean 'CIFAR100'"),
        ("CIFAR100:coarsest", "did you mean 'CIFAR100:coarse'"),
        ("glyph", "did you mean 'glyphs'"),
        ("glyphs:domain", "did you mean 'glyphs:domains'"),
        ("EMNIST:letters", "did you mean 'EMNIST:byclass'"),
        ("zzz", r"unknown dataset 'zzz': known are glyphs, .* \(or the path of an \.npz"),
        ("", "unknown dataset ''"),
        ("missing/folder", "the path does not exist"),
        ("missing.npz", "the path does not exist"),
        ("missing.npz:coarse", "the path does not exist"),
        ("missing.txt", "the path does not exist"),
    ],
)
def test_a_name_that_is_not_there(name, message):
    refused(message, name)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "data.csv").write_text("1,2")
    refused("neither .npz nor .txt", tmp_path / "data.csv")
