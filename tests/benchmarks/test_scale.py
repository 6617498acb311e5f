"""The benchmark of growth, with made-up points and with very small sizes."""

from statistics import median
from types import SimpleNamespace

import pytest

from benchmarks import scale
from benchmarks.growth import Point, bytes_of, seconds_of, slope
from benchmarks.scale import WAYS, rounds, totals


def grown(power, sizes=(100, 1000, 3162, 10000)):
    """Return points whose time is constant up to size 1000, then grows by a power."""
    return [Point(n, max(n / 1000, 1.0) ** power, 2**22) for n in sizes]


@pytest.mark.parametrize("power", [1, 2])
def test_slope_of_growth_is_that_of_the_last_decade(power):
    assert slope(grown(power), seconds_of) == pytest.approx(power)
    assert slope(grown(power), bytes_of) == pytest.approx(0)


@pytest.mark.parametrize(("name", "size"), [("nodes", 12), ("clients", 12), ("participants", 12)])
def test_every_measurement_of_growth_runs(name, size):
    (point,) = WAYS[name].measure([size])
    assert point.size == size
    assert point.seconds > 0


def test_growing_time_of_a_round_is_measured(monkeypatch):
    """Round n takes n times as long as round 1, by a clock that only the rounds move."""
    clock = SimpleNamespace(now=0.0, process_time=lambda: clock.now)

    class Slower(scale.CoPreFL):
        def round(self, ctx, arrays):
            clock.now += 0.002 * ctx.round
            return (yield from super().round(ctx, arrays))

    monkeypatch.setattr(scale, "time", clock)
    monkeypatch.setattr(scale, "CoPreFL", Slower)
    first, last = rounds([2, 20])
    assert (first.size, last.size) == (2, 20)
    # The checkpoint of a round is written before the next round: 3, and 17 to 21.
    assert first.seconds == pytest.approx(0.002 * 3)
    assert last.seconds == pytest.approx(0.002 * median(range(17, 22)))


def test_time_and_memory_are_measured_without_the_imports():
    """They are counted from the end of the imports, in a process without log output."""

    def run(size):
        assert bytearray(b"1") * (size * 2**20)

    _, point = totals(run)([1, 50])
    assert point.size == 50
    assert point.seconds > 0
    assert 0.9 < point.bytes / 2**20 / 50 < 2
