"""Tests of the benchmarks do not wait for an idle machine."""

import pytest

from benchmarks import idle


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    """Start to measure at once."""
    monkeypatch.setattr(idle, "PATIENCE", 0.0)
