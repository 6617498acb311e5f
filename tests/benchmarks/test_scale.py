"""The benchmark of growth, with made-up points and with very small sizes."""

import json
from statistics import median
from types import SimpleNamespace

import pytest

from benchmarks import scale
from benchmarks.growth import (
    WHAT,
    Growth,
    Point,
    bytes_of,
    draw,
    growth_in,
    seconds_of,
    section,
    slope,
)
from benchmarks.measure import Measurement
from benchmarks.scale import WAYS, Way, main, rounds, totals

MACHINE = {
    "processor": "a processor",
    "python": "3.11",
    "torch": "2",
    "flwr": "1",
    "load_before": 0.1,
    "date": "2026-01-01",
}


def grown(power, sizes=(100, 1000, 3162, 10000)):
    """Return points whose time is constant up to size 1000, then grows by a power."""
    return [Point(n, max(n / 1000, 1.0) ** power, 2**22) for n in sizes]


@pytest.mark.parametrize("power", [1, 2])
def test_the_slope_is_that_of_the_last_decade(power):
    assert slope(grown(power), seconds_of) == pytest.approx(power)
    assert slope(grown(power), bytes_of) == pytest.approx(0)


def test_noise_below_a_mebibyte_has_no_slope():
    points = [Point(n, 1.0, n) for n in (10, 100)]
    assert slope(points, bytes_of) == pytest.approx(0)


def test_the_section_has_a_row_a_way():
    text = section(Growth(MACHINE, {"nodes": grown(1), "tasks": grown(2)}))
    nodes, tasks = WHAT["nodes"][1], WHAT["tasks"][1]
    assert f"| nodes | {nodes} | 100 | 10,000 | 10.0 | 1.00 | 4 | 0.00 |" in text
    assert f"| tasks | {tasks} | 100 | 10,000 | 100.0 | 2.00 | 4 | 0.00 |" in text
    assert text.startswith("## Growth\n")
    assert "busy" not in text
    assert "busy" in section(Growth(MACHINE | {"load_before": 2.0}, {"nodes": grown(1)}))


def test_a_model_is_told_in_copies_and_a_late_round_in_early_ones():
    points = {
        "model": [Point(1, 0.1, 2**21), Point(100, 5.0, 750_000_000)],
        "model-coprefl": [Point(1, 0.1, 2**21), Point(10, 5.0, 90_000_000)],
        "rounds": [Point(10, 0.005, 2**20), Point(1000, 0.015, 2**21)],
    }
    text = section(Growth(MACHINE, points))
    assert "FedAvg has at most 7.5 copies of a model of 100 MB in memory at the same time" in text
    assert "CoPreFL has at most 9.0 copies of a model of 10 MB in memory at the same time" in text
    assert "Round 1,000 takes 3.00 times the CPU time of round 10 (goal: at most 1.2)." in text
    assert f"| rounds | {WHAT['rounds'][1]} | 10 | 1,000 | 0.015 |" in text


def test_one_picture_has_every_way(tmp_path):
    draw(Growth(MACHINE, dict.fromkeys(WHAT, grown(1))), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_sizes_are_those_promised():
    ends = {name: (way.sizes[0], way.sizes[-1]) for name, way in WAYS.items()}
    assert ends == {
        "nodes": (100, 10_000),
        "clients": (100, 100_000),
        "participants": (1_000, 100_000),
        "model": (1, 100),
        "model-coprefl": (1, 100),
        "rounds": (10, 1_000),
        "tasks": (20, 2_000),
    }
    assert set(ends) == set(WHAT)
    for way in WAYS.values():
        assert way.sizes[-4] == pytest.approx(way.sizes[-1] / 10)


@pytest.mark.parametrize(("name", "size"), [("nodes", 12), ("clients", 12), ("participants", 12)])
def test_every_way_runs(name, size):
    (point,) = WAYS[name].measure([size])
    assert point.size == size
    assert point.seconds > 0


def test_a_model_that_is_trained_takes_some_copies_of_itself():
    (point,) = WAYS["model-coprefl"].measure([4])
    assert 2 < point.bytes / 4e6 < 40


def test_a_round_that_grows_is_seen_to_grow(monkeypatch):
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


def test_time_and_memory_are_those_of_the_size():
    """They are counted from the end of the imports, in a process without log output."""

    def run(size):
        assert bytearray(b"1") * (size * 2**20)

    _, point = totals(run)([1, 50])
    assert point.size == 50
    assert point.seconds > 0
    assert 0.9 < point.bytes / 2**20 / 50 < 2


def test_a_size_that_fails_is_named():
    with pytest.raises(RuntimeError, match="size 7: the process failed"):
        list(totals(lambda size: 1 / (size - 7))([1, 7]))


def test_the_page_keeps_its_other_part(tmp_path, monkeypatch):
    """Each of the two commands that write the page keeps the other command's part."""
    kept = {"machine": MACHINE, "points": {"nodes": [vars(one) for one in grown(1)]}}
    (tmp_path / "scale.json").write_text(json.dumps(kept))
    assert growth_in(tmp_path) == section(Growth.of(kept))
    assert growth_in(tmp_path / "none") == ""
    monkeypatch.setitem(WAYS, "nodes", Way(totals(lambda size: None), (20, 200)))
    machine = MACHINE | {"cores": 2, "memory_bytes": 2**34, "ray": "2", "gpu": ""}
    once = {"wall": [1.0], "cpu": [1.0]}
    seconds, peaks = {"fedavg plain": once}, {"fedavg plain": 2**30}
    other = Measurement("femnist-cnn", 2, machine, seconds, peaks)
    (tmp_path / "performance.json").write_text(json.dumps({"femnist-cnn": other.as_json()}))
    main(["nodes", "--output", str(tmp_path)])
    text = (tmp_path / "performance.md").read_text()
    assert "## FEMNIST CNN" in text
    assert f"| nodes | {WHAT['nodes'][1]} | 20 | 200 |" in text
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
