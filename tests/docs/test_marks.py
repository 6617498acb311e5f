"""The marks of experimental and deprecated names in docstrings and in the texts of options."""

import re

import pytest

import coprefl_flwr
from tests.common.simulation import ROOT

ANY = re.compile(r"\*\*(?:Experimental|Deprecated)[^*]*\*\* \S", re.IGNORECASE)
MARK = re.compile(
    r"\*\*(?:Experimental since (\d+\.\d+)\.|"
    r"Deprecated since (\d+\.\d+), removed in (\d+\.\d+)\.)\*\* [A-Z`]"
)
NOW = coprefl_flwr.__version__


def minor(version):
    """Return (major, minor) of a version."""
    return tuple(map(int, version.split(".")[:2]))


def wrong(mark, now=NOW):
    """Return what is wrong with a mark in the version `now`, or ""."""
    if not (parts := MARK.fullmatch(mark)):
        return "has another form than CONTRIBUTING says"
    experimental, since, removed = parts.groups()
    major, last = minor(now)
    if minor(experimental or since) > (major, last + 1):
        return "begins after the next minor version"
    if removed and minor(removed) <= (major, last):
        return "is due: remove the name"
    if removed and minor(removed) < (minor(since)[0], minor(since)[1] + 2):
        return "is removed too early"
    return ""


def test_marks_are_as_contributing_says():
    found = []
    for path in (ROOT / "coprefl_flwr").rglob("*.py"):
        text = " ".join(path.read_text().split())
        found += [(mark, path.name) for mark in ANY.findall(text)]
    assert [(mark, name) for mark, name in found if wrong(mark)] == []
    assert {name for _, name in found} >= {"choosing.py", "adapters.py", "variance.py"}


@pytest.mark.parametrize(
    ("mark", "answer"),
    [
        ("**Experimental since 0.3.** A", ""),
        ("**Deprecated since 0.3, removed in 0.5.** U", ""),
        ("**Deprecated since 0.9, removed in 1.1.** U", "begins after"),
        ("**Deprecated since 0.2, removed in 0.3.** U", "too early"),
        ("**Deprecated since 0.0, removed in 0.2.** U", "is due"),
        ("**Experimental** T", "another form"),
    ],
)
def test_wrong_marks_are_found(mark, answer):
    assert answer in wrong(mark, "0.2.0")
    assert bool(wrong(mark, "0.2.0")) == bool(answer)
