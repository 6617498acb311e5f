"""Freed memory is kept in processes that train, unless the user says otherwise."""

import ctypes

import pytest

from coprefl_flwr.federation import machine


class Library:
    """A C library that takes sizes up to `most`."""

    def __init__(self, most):
        self.most, self.set = most, []

    def mallopt(self, option, size):
        taken = size <= self.most
        self.set += [(option, size)] if taken else []
        return int(taken)


@pytest.fixture
def library(monkeypatch):
    """Return what makes a library the process's."""
    for name in machine.SET_BY_USER:
        monkeypatch.delenv(name, raising=False)

    def use(made):
        monkeypatch.setattr(ctypes, "CDLL", lambda name: made)
        return made

    return use


done = machine.keep_freed_memory.__wrapped__


@pytest.mark.parametrize("most", [1 << 30, 1 << 25])
def test_both_thresholds_are_raised_as_far_as_the_library_lets_them(library, most):
    one = library(Library(most))
    assert done()
    assert one.set == [(-1, most), (-3, most)]


@pytest.mark.parametrize("name", machine.SET_BY_USER)
def test_what_the_user_sets_stays(library, monkeypatch, name):
    one = library(Library(1 << 30))
    monkeypatch.setenv(name, "")
    assert not done()
    assert one.set == []


def test_another_library_is_left_alone(library, monkeypatch):
    library(object())
    assert not done()

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not done()
