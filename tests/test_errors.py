"""Error messages in one short line."""

import pytest

from coprefl_flwr.errors import LONGEST, SettingsError, one_line, prefixed, shorten, wrong_type


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n b\t\x00c\x1b[0m", "a b c [0m"),
        ("a" * 300 + "z" * 300, "a" * 145 + " ... " + "z" * 50),
    ],
)
def test_long_text_is_cut_in_the_middle(text, line):
    assert shorten(text) == line
    assert len(line) <= LONGEST


def test_error_is_described_in_one_line():
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(KeyError("w")) == "KeyError: 'w'"
    assert one_line(ValueError()) == "ValueError: "


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (int, "the class int"),
        ([1], "an object of type list"),
        ("x", "'x'"),
        ("y" * 500, f"'{'y' * 56}..."),
    ],
)
def test_error_of_a_wrong_type_names_the_value_and_an_example(value, got):
    line = str(wrong_type("starts", value, "a mapping", "{'a': 1}"))
    assert line == f"starts: got {got}; pass a mapping, as in {{'a': 1}}"


def test_prefix_and_settings_of_an_error():
    failed = pytest.raises(SettingsError, match=r"^loss: KeyError: 0$")
    with failed as raised, prefixed("loss", "loss", of=LookupError):
        _ = {}[0]
    assert raised.value.keys == ("loss",)
    with pytest.raises(SettingsError, match=r"^a: b$") as raised, prefixed("a"):
        raise SettingsError("b", "key")
    assert raised.value.keys == ("key",)
    with pytest.raises(KeyError), prefixed("a"):
        raise KeyError
