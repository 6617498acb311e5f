import pytest

from coprefl_flwr.data import load_dataset
from tests.data.made_up import refused


def test_glyphs_are_held_once():
    assert load_dataset("glyphs") is load_dataset("glyphs")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar100", "nearest: CIFAR100"),
        ("CIFAR100:coarsest", "nearest: CIFAR100:coarse"),
        ("glyph", "nearest: glyphs"),
        ("zzz", "'zzz' is not known; allowed are glyphs"),
        ("", "'' is not known"),
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
