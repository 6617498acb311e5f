"""Errors as one short line."""

import pytest

from coprefl_flwr.errors import LONGEST, cut, one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n b\t\x00c\x1b[0m", "a b c [0m"),
        ("x" * LONGEST, "x" * LONGEST),
        ("a" * 300 + "z" * 300, "a" * 145 + " ... " + "z" * 50),
        ("", ""),
    ],
)
def test_cut(text, line):
    assert cut(text) == line
    assert len(line) <= LONGEST


def test_one_line():
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(KeyError("w")) == "KeyError: 'w'"
    assert one_line(ValueError()) == "ValueError: "
