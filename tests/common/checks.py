"""Helpers that several tests share: comparisons, error messages, and damage to files."""

import json
import logging

import numpy as np
import pytest
from safetensors.numpy import load_file

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import SUMS


class Killed(BaseException):
    """Simulates a signal that kills the process: no `except Exception` may catch it."""


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def refusal(function, *arguments, **more):
    """Return the error message with which a call is refused; it must have one line."""
    with pytest.raises(SettingsError) as caught:
        function(*arguments, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def flip(file, position, bit=0):
    """Flip one bit of a file."""
    content = bytearray(file.read_bytes())
    content[position] ^= 1 << bit
    file.write_bytes(bytes(content))


def files(folder):
    """Return {path: bytes} of every file in a folder, except files with its path or with times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("models.txt", "seconds.json")
    }


def assert_close(found, expected):
    """Compare parsed JSON values; floats may differ by rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, one in expected.items():
            assert_close(found[key], one)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    else:
        assert found == (pytest.approx(expected, 1e-5) if isinstance(expected, float) else expected)


def assert_same_results(found, expected):
    """Compare two folders of models; the number of nodes changes numbers by rounding."""
    assert files(found).keys() == files(expected).keys()
    for name in files(expected):
        one, other = found / name, expected / name
        if one.suffix == ".json":
            assert_close(json.loads(one.read_text()), json.loads(other.read_text()))
        elif one.suffix == ".safetensors":
            arrays, others = load_file(one), load_file(other)
            assert arrays.keys() == others.keys()
            for key, array in others.items():
                np.testing.assert_allclose(arrays[key], array, rtol=1e-4, atol=1e-6)
        elif one.name != SUMS:
            assert one.read_bytes() == other.read_bytes()
