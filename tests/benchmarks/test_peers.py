"""The comparison with other packages: a run of the smallest workload."""

import pytest
import torch

from benchmarks.peers import __main__ as peers
from benchmarks.peers import packages
from benchmarks.peers.page import stored
from benchmarks.peers.workloads import TASKS


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
