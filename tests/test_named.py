"""Names of methods and starts as names of files."""

import pytest

from coprefl_flwr.named import as_file_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cyclic:rounds=3+fedavg", "cyclic-rounds-3-fedavg"),
        ("модель", "модель"),
        ("मॉडल", "मॉडल"),  # Two of its five characters are marks of a vowel.
        ("_a_-b\0c", "-a-b-c"),
    ],
)
def test_letters_of_every_script_are_kept(text, name):
    assert as_file_name(text, "") == name
    assert as_file_name("v1.5_a", "._") == "v1.5_a"
