"""The benchmark of growth at very small sizes."""

import pytest

from benchmarks.scale import WAYS


@pytest.mark.parametrize(("name", "size"), [("nodes", 12), ("clients", 12), ("participants", 12)])
def test_every_measurement_of_growth_runs(name, size):
    (point,) = WAYS[name].measure([size])
    assert point.size == size
    assert point.seconds > 0
