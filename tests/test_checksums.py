"""Checksums: every flipped bit is found."""

import numpy as np
import pytest

from coprefl_flwr import checksums
from coprefl_flwr.checksums import SUMS, damaged, write_sums
from tests.common.checks import flip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    write_sums(tmp_path, ["a.json"], {"b.json": b"[1]"})
    (tmp_path / "b.json").write_bytes(b"[1]")
    return tmp_path


def test_whole_files(folder):
    assert damaged(folder) == []
    (folder / "c.json").write_text("not in the list")
    assert damaged(folder) == []


@pytest.mark.parametrize("name", ["a.json", "b.json"])
def test_a_flipped_bit_is_found(folder, name):
    for bit in range(8):
        flip(folder / name, 1, bit)
        assert damaged(folder) == [name]
        assert damaged(folder, name) == [name]
        assert damaged(folder, "c.json") == []
        flip(folder / name, 1, bit)
    assert damaged(folder) == []


def test_checksums_that_cannot_be_read_are_what_is_damaged(folder):
    whole = (folder / SUMS).read_bytes()
    for content in (b"", b"\n", b"null", whole[:-1], whole[:-30]):
        (folder / SUMS).write_bytes(content)
        assert damaged(folder) == [SUMS]
    (folder / SUMS).write_bytes(b"\xff" + whole[1:])
    assert damaged(folder) == ["a.json"]


def test_a_folder_in_the_place_of_checksums_is_damage(folder):
    (folder / SUMS).unlink()
    (folder / SUMS).mkdir()
    assert damaged(folder) == [SUMS]


def test_a_folder_in_the_place_of_a_file_is_damage(folder):
    """It was taken for whole, and the file was missing when all else was done."""
    (folder / "a.json").unlink()
    assert damaged(folder) == []  # Left to whoever needs it.
    (folder / "a.json").mkdir()
    assert damaged(folder) == ["a.json"]


def test_without_checksums_only_a_file_that_needs_one_is_damaged(folder):
    """A folder with a model of somebody else's needs none."""
    (folder / SUMS).unlink()
    (folder / "a.json").write_text("")
    assert damaged(folder) == []
    assert damaged(folder, needed="a.json") == [SUMS]


def test_checksums_of_any_order(folder):
    """As another program writes them."""
    lines = (folder / SUMS).read_text().splitlines(keepends=True)
    (folder / SUMS).write_text("".join(reversed(lines)))
    assert damaged(folder, needed="a.json") == []
    assert damaged(folder, needed="c.json") == [SUMS]


def test_arrays_whatever_their_order(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array(7), "c": np.zeros((0, 2))}
    checksums.write_sealed(tmp_path / "a", arrays, "a text")
    checksums.write_sealed(tmp_path / "b", dict(reversed(arrays.items())), "a text")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found, text = checksums.read_sealed(tmp_path / "a")
    assert text == "a text"
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    others = (
        {**arrays, "a": arrays["a"] + np.float64(1e-16) * (arrays["a"] == 0)},
        {**arrays, "b": np.array(7.0)},
        {**arrays, "c": np.zeros((2, 0))},
        {"a": arrays["a"], "b": arrays["b"]},
    )
    known = checksums.of_arrays(arrays, "a text")
    assert not any(checksums.of_arrays(one, "a text") == known for one in others)
    assert checksums.of_arrays(arrays, "text") != checksums.of_arrays(arrays, "another")
