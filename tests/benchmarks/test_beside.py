"""The benchmark of a run next to busy processes, with made-up times and replaced runs."""

import pytest

from benchmarks.beside import Beside, section

MACHINE = {"processor": "a processor", "cores": 2, "load_before": 0.1, "date": "2026-01-01"}


def test_ratio_next_to_busy_processes_is_of_medians():
    found = Beside(MACHINE, 2, {"default": [30.0, 20.0, 90.0], "one thread": [40.0, 40.0, 10.0]})
    assert found.ratio() == pytest.approx(0.75)
    text = section(found)
    assert "| one thread | 40, 40, 10 | 40.0 | 1.00 |" in text
    assert "| default | 30, 20, 90 | 30.0 | 0.75 |" in text
