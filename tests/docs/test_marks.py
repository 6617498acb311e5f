"""The marks of experimental and deprecated names in docstrings and in the texts of options."""

import re

import pytest

import coprefl_flwr
from tests.common.simulation import ROOT

ANY = re.compile(r"\*\*(?:Experimental|Deprecated)[^*]*\*\* \S", re.IGNORECASE)
MARK = re.compile(
    r"\*\*(?:Experimental since \d+\.\d+|Deprecated since \d+\.\d+, removed in (\d+)\.(\d+))"
    r"\.\*\* [A-Z`]"
)


def wrong(mark, version):
    """Return what is wrong with a mark in a version of the package, or ""."""
    if not (found := MARK.fullmatch(mark)):
        return "has another form than CONTRIBUTING says"
    removed = [int(number) for number in found.groups() if number]
    now = [int(number) for number in version.split(".")[:2]]
    return "is due: remove the name" if removed and removed <= now else ""


def test_marks_are_as_contributing_says():
    found = {}
    for path in (ROOT / "coprefl_flwr").rglob("*.py"):
        for mark in ANY.findall(" ".join(path.read_text().split())):
            found[path.name, mark] = wrong(mark, coprefl_flwr.__version__)
    assert {name: problem for name, problem in found.items() if problem} == {}
    assert {name for name, _ in found} >= {"choosing.py", "adapters.py", "variance.py"}


@pytest.mark.parametrize(
    ("mark", "answer"),
    [
        ("**Experimental since 0.3.** A", ""),
        ("**Deprecated since 0.3, removed in 0.5.** U", ""),
        ("**Deprecated since 0.0, removed in 0.2.** U", "is due: remove the name"),
        ("**Experimental** T", "has another form than CONTRIBUTING says"),
    ],
)
def test_wrong_marks_are_found(mark, answer):
    assert wrong(mark, "0.2.0") == answer
