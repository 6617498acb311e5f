"""Both ways that `benchmarks.together` measures are measured, for every network."""

import pytest
import torch

from benchmarks import together
from coprefl_flwr.learning.together import AT_ONCE


@pytest.mark.parametrize("name", ["linear 32-10, 10", "CNN with GroupNorm, 32"])
def test_row_has_a_ratio_for_each_size(name, monkeypatch):
    monkeypatch.setattr(together, "SIZES", (2, 3))
    monkeypatch.setattr(together, "STEPS", 1)
    monkeypatch.setattr(together, "TIMES", 1)
    network, step, *ratios, number = together.row(name, torch.device("cpu"))
    assert network == name
    assert step.endswith(" ms")
    assert all(float(ratio) > 0 for ratio in ratios)
    assert number == (str(AT_ONCE) if name.startswith("linear") else "one after another")
