"""The comparison with other packages: a run of the smallest workload, and made-up times."""

import pytest
import torch

from benchmarks.peers import __main__ as peers
from benchmarks.peers import packages
from benchmarks.peers.one import Outcome
from benchmarks.peers.page import Comparison, section, stored
from benchmarks.peers.workloads import TASKS

MACHINE = {"date": "2026-01-01", "processor": "a processor", "cores": 2}
MACHINE |= {"python": "3.11", "torch": "2"}


def outcome(cpu, wall=0.5, memory=2**20, loss=0.25, version="1.0"):
    return Outcome(cpu, wall, memory, loss, version)


@pytest.mark.slow
def test_smallest_workload_trains_in_both_packages(monkeypatch, tmp_path, capsys):
    """Both packages train the same network on the same data, and both losses decrease."""
    monkeypatch.setattr(packages, "FOLDER", tmp_path / "none")
    given = ["smoke", "--turns", "1", "--packages", "coprefl", "fluke", "pfl", "fedlab"]
    peers.main([*given, "--output", str(tmp_path)])
    assert "not installed, so not measured" in capsys.readouterr().err
    found = stored(tmp_path)["smoke"]
    assert found.shown() == ["plain", "coprefl"]
    assert all(found.median(name, "cpu") > 0 for name in found.shown())
    first = torch.nn.functional.cross_entropy
    inputs, labels = TASKS["smoke"].data()
    before = first(TASKS["smoke"].model()(inputs), labels).item()
    for name in found.shown():
        assert found.median(name, "loss") < 0.9 * before


def test_ratio_to_the_plain_loop_is_of_medians():
    found = Comparison("lr-mnist", 100, MACHINE, load=[0.5])
    for cpu in (0.001, 0.003, 0.002):
        found.add("plain", outcome(cpu))
        found.add("coprefl", outcome(2 * cpu, version="0.2"))
    assert found.ratio("coprefl", "cpu") == pytest.approx(2)
    text = section(found)
    assert "| coprefl-flwr | 0.2 | 4 (2 to 6) | 2.00 | 500 | 1 | 0.250 |" in text
