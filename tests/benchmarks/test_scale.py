"""How growth is measured, from made-up points and from the smallest sizes there are."""

import json
from pathlib import Path

import pytest

from benchmarks.scale import (
    WAYS,
    Growth,
    Point,
    Way,
    bytes_of,
    growth_in,
    main,
    measured,
    seconds_of,
    section,
    slope,
)

DOCS = Path(__file__).parents[2] / "docs"
MACHINE = {
    "processor": "a processor",
    "python": "3.11",
    "torch": "2",
    "flwr": "1",
    "load_before": 0.1,
    "date": "2026-01-01",
}


def grown(power, sizes=(100, 1000, 3162, 10000)):
    """Return points whose time grows by a power after a first decade without any growth."""
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
    nodes, tasks = WAYS["nodes"].about, WAYS["tasks"].about
    assert f"| nodes | {nodes} | 10,000 | 10.0 | 1.00 | 4 | 0.00 |" in text
    assert f"| tasks | {tasks} | 10,000 | 100.0 | 2.00 | 4 | 0.00 |" in text
    assert text.startswith("## Growth\n")
    assert "busy" not in text
    assert "busy" in section(Growth(MACHINE | {"load_before": 2.0}, {"nodes": grown(1)}))


def test_the_sizes_are_those_promised():
    largest = {name: way.sizes[-1] for name, way in WAYS.items()}
    assert largest == {"nodes": 10_000, "clients": 100_000, "participants": 100_000, "tasks": 2_000}
    for way in WAYS.values():
        assert way.sizes[3] == pytest.approx(way.sizes[-1] / 10)


@pytest.mark.parametrize("name", [name for name in WAYS if name != "tasks"])
def test_every_way_runs(name):
    WAYS[name].run(12)


def test_time_and_memory_are_those_of_the_size():
    """Counted from where the imports end, in a process whose log goes nowhere."""

    def run(size):
        assert bytearray(b"1") * (size * 2**20)

    point = measured(Way("a", "b", run, (1,)), 50)
    assert point.size == 50
    assert point.seconds > 0
    assert 0.9 < point.bytes / 2**20 / 50 < 2


def test_a_size_that_fails_is_named():
    with pytest.raises(RuntimeError, match="a 7: the process failed"):
        measured(Way("a", "b", lambda size: 1 / (size - 7), (1,)), 7)


def test_the_page_keeps_its_other_part(tmp_path, monkeypatch):
    """Whichever of the two commands writes it."""
    kept = {"machine": MACHINE, "points": {"nodes": [vars(one) for one in grown(1)]}}
    (tmp_path / "scale.json").write_text(json.dumps(kept))
    assert growth_in(tmp_path) == section(Growth.of(kept))
    assert growth_in(tmp_path / "none") == ""
    monkeypatch.setitem(WAYS, "nodes", Way("nodes", "none", lambda size: None, (20, 200)))
    (tmp_path / "performance.json").write_text((DOCS / "performance.json").read_text())
    main(["nodes", "--output", str(tmp_path)])
    text = (tmp_path / "performance.md").read_text()
    assert "## FEMNIST CNN" in text
    assert "| nodes | none | 200 |" in text
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
