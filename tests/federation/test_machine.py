"""Processes that train keep freed memory, unless the user's environment variables set this."""

import ctypes
import os

import pytest

from coprefl_flwr.federation import machine


class Library:
    """A C library that accepts sizes up to `most`."""

    def __init__(self, most):
        self.most, self.set = most, []

    def mallopt(self, option, size):
        accepted = size <= self.most
        self.set += [(option, size)] if accepted else []
        return int(accepted)


@pytest.fixture
def library(monkeypatch):
    """Return a function that replaces the C library of this process."""
    for name in [one for one in os.environ if one.startswith(("GLIBC_TUNABLES", "MALLOC_"))]:
        monkeypatch.delenv(name)

    def use(replacement):
        monkeypatch.setattr(ctypes, "CDLL", lambda name: replacement)
        return replacement

    return use


done = machine.keep_freed_memory.__wrapped__


@pytest.mark.parametrize("most", [1 << 30, 1 << 25])
def test_both_thresholds_are_raised_as_far_as_the_library_allows(library, most):
    replacement = library(Library(most))
    done()
    assert replacement.set == [(-1, most), (-3, most)]


def test_users_variables_and_other_libraries_are_not_changed(library, monkeypatch):
    replacement = library(Library(1 << 30))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    done()
    assert replacement.set == []
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_")
    library(object())
    done()
