"""The benchmark's ratios, page and picture, from made-up measurements."""

import pytest

from benchmarks import __main__ as command
from benchmarks.__main__ import arguments
from benchmarks.measure import Measurement
from benchmarks.report import page, stored_results, write_all

WALL = {
    "fedavg plain": [2.0, 2.0, 9.0],
    "fedavg plain-processes": [1.5, 1.0, 1.5],
    "fedavg local": [2.1, 2.1, 2.1],
    "fedavg ray": [1.2, 1.2, 1.2],
    "fedavg flwr": [1.8, 1.8, 1.8],
    "coprefl plain": [4.0, 4.0, 4.0],
    "coprefl plain-processes": [2.0, 2.0, 2.0],
    "coprefl local": [4.4, 4.4, 4.4],
    "coprefl ray": [8.0, 8.0, 8.0],
    "coprefl flwr": [3.0, 3.0, 3.0],
}


@pytest.fixture
def measurement():
    machine = {"processor": "a processor", "cores": 2, "memory_bytes": 2**34, "gpu": ""}
    machine |= {"python": "3.11", "torch": "2", "flwr": "1", "ray": "2"}
    machine |= {"load_before": 0.1, "date": "2026-01-01"}
    # CPU times are twice the wall times (Ray grid: three times), so that a mix-up is noticed.
    factor = {runner: 3 if runner.endswith("ray") else 2 for runner in WALL}
    seconds = {
        runner: {"wall": list(wall), "cpu": [factor[runner] * one for one in wall]}
        for runner, wall in WALL.items()
    }
    peaks = dict.fromkeys(WALL, 2**30)
    return Measurement("femnist-cnn", 2, machine, seconds, peaks, [1.0, 1.5, 1.2])


def test_ratios_compare_medians_with_the_plain_loop_of_the_method(measurement):
    assert measurement.ratio("fedavg local", "wall") == pytest.approx(1.05)
    assert measurement.ratio("coprefl local", "wall") == pytest.approx(1.1)
    assert measurement.ratio("fedavg ray", "cpu") == pytest.approx(1.2)
    assert measurement.ratio("coprefl ray", "wall") == pytest.approx(4)
    assert measurement.ratio("coprefl plain-processes", "cpu") == pytest.approx(0.5)
    assert measurement.ratio("coprefl plain", "cpu") == 1


def test_page_has_a_row_per_runner_and_the_load(measurement):
    text = page([measurement])
    rows = [line for line in text.splitlines() if line.startswith(("| FedAvg", "| CoPreFL"))]
    assert len(rows) == len(WALL)
    row = (
        "| FedAvg, Ray grid, 2 actors | 3.600 (3.600 to 3.600) | 1.200 "
        "| 1.200 (1.200 to 1.200) | 0.800 | 0.95 | 1024 |"
    )
    assert row in rows
    assert "load average before 0.1, during 1.0 to 1.5" in text


def test_measurement_is_read_as_it_was_written(measurement, tmp_path):
    write_all(tmp_path, {"femnist-cnn": measurement})
    assert stored_results(tmp_path) == {"femnist-cnn": measurement}
    assert stored_results(tmp_path / "none") == {}


def test_gpu_benchmark_prints_its_text_and_writes_no_file(
    measurement, monkeypatch, capsys, tmp_path
):
    """The test needs no GPU: the measurement is replaced."""
    asked = []

    def measure(name, *_args, limit, device, simulate, **_more):
        asked.append((name, limit, device, simulate))
        measurement.machine["gpu"] = "a GPU, 80 GiB"
        return measurement

    monkeypatch.setattr(command, "_no_gpu", lambda: "")
    monkeypatch.setattr("benchmarks.measure.measure", measure)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command.main(["--device", "cuda", "--output", str(tmp_path)])
    assert asked == [(n, 100.0, "cuda", False) for n in ("femnist-cnn", "resnet18", "heads")]
    assert "Measured on 2026-01-01: **a GPU, 80 GiB**" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_missing_gpu_is_refused_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        arguments(["--device", "cuda"])
    assert capsys.readouterr().err.splitlines()[-1].endswith("allowed here is cpu")
