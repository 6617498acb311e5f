"""The benchmark's ratios, page and picture, from made-up measurements."""

import numpy as np
import pytest
import yaml
from PIL import Image

from benchmarks import __main__ as command
from benchmarks.__main__ import arguments
from benchmarks.measure import Measurement, portions, runners
from benchmarks.report import draw, page, stored_results, write_all
from benchmarks.workloads import WORKLOADS
from tests.common.simulation import ROOT

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
    machine = {
        "processor": "a processor",
        "cores": 2,
        "memory_bytes": 2**34,
        "python": "3.11",
        "torch": "2",
        "flwr": "1",
        "ray": "2",
        "gpu": "",
        "load_before": 0.1,
        "date": "2026-01-01",
    }
    # CPU times are twice the wall times (Ray grid: three times), so that a mix-up is noticed.
    factor = {runner: 3 if runner.endswith("ray") else 2 for runner in WALL}
    seconds = {
        runner: {"wall": list(wall), "cpu": [factor[runner] * one for one in wall]}
        for runner, wall in WALL.items()
    }
    peaks = dict.fromkeys(WALL, 2**30)
    return Measurement("femnist-cnn", 2, machine, seconds, peaks, [1.0, 1.5, 1.2])


def test_ratios_are_of_medians_to_the_plain_loop_of_the_same_method(measurement):
    assert measurement.ratio("fedavg local", "wall") == pytest.approx(1.05)
    assert measurement.ratio("coprefl local", "wall") == pytest.approx(1.1)
    assert measurement.ratio("fedavg ray", "wall") == pytest.approx(0.8)
    assert measurement.ratio("fedavg ray", "cpu") == pytest.approx(1.2)
    assert measurement.ratio("coprefl ray", "wall") == pytest.approx(4)
    assert measurement.ratio("coprefl flwr", "wall") == pytest.approx(1.5)
    assert measurement.ratio("coprefl plain-processes", "cpu") == pytest.approx(0.5)
    assert measurement.ratio("coprefl plain", "cpu") == 1


def test_the_page_has_a_row_per_runner_and_tells_the_load(measurement):
    text = page([measurement])
    rows = [line for line in text.splitlines() if line.startswith(("| FedAvg", "| CoPreFL"))]
    assert len(rows) == len(runners(WORKLOADS["femnist-cnn"])) == len(WALL)
    row = (
        "| FedAvg, Ray grid, 2 actors | 3.600 (3.600 to 3.600) | 1.200 "
        "| 1.200 (1.200 to 1.200) | 0.800 | 0.95 | 1024 |"
    )
    assert row in rows
    first = "| FedAvg, plain loop, 1 process | 4.000 (4.000 to 11.000) | 1 "
    assert rows[0] == f"{first}| 2.000 (2.000 to 5.500) | 1 |  | 1024 |"
    assert "load average before 0.1, during 1.0 to 1.5 (the benchmark alone: up to 2)." in text
    assert "3 measured rounds for each row" in text
    assert "CoPreFL takes 1.25 times FedAvg's gradients" in text


@pytest.mark.parametrize(("before", "during"), [(2.0, 1.0), (0.1, 4.0)])
def test_the_page_warns_of_a_machine_that_was_busy_before_or_during(measurement, before, during):
    assert "**The machine was busy" not in page([measurement])
    measurement.machine["load_before"] = before
    measurement.load = [during] * 3
    assert "**The machine was busy" in page([measurement])


def test_the_page_says_what_is_not_worth_building_and_what_nobody_ran(measurement):
    text = page([measurement])
    for told in ("0.75 to 1.9", "1.4 to 6", "0.95 to 2.7", "4.2 (ResNet-18)", "0.4 to 0.6"):
        assert told in text
    assert "measured earlier" in text
    assert "NVIDIA H200" in text


def test_a_measurement_survives_its_file(measurement, tmp_path):
    write_all(tmp_path, {"femnist-cnn": measurement})
    assert stored_results(tmp_path) == {"femnist-cnn": measurement}
    assert stored_results(tmp_path / "none") == {}


def test_the_picture_has_a_bar_as_long_as_the_ratio(measurement, tmp_path):
    draw([measurement], tmp_path / "picture.png")
    pixels = np.asarray(Image.open(tmp_path / "picture.png").convert("RGB"))
    blue = (np.abs(pixels.astype(int) - (0x00, 0x72, 0xB2)) < 8).all(axis=2)
    # The blue pixels of each row, without the bottom of the picture, where the legend is.
    lengths = [int(n) for n in blue[: -blue.shape[0] // 8].sum(axis=1)]
    # The longest bar is CoPreFL on the Ray grid, 4; the shortest is two plain processes, 0.5.
    assert max(lengths) / min(n for n in lengths if n > 20) == pytest.approx(4 / 0.5, rel=0.1)


def test_rounds_are_cut_into_even_blocks():
    assert portions(20, 3) == [7, 7, 6]
    assert portions(2, 3) == [1, 1]


def test_heads_are_measured_in_one_process_alone():
    found = runners(WORKLOADS["heads"])
    assert found == [(m, p) for m in ("fedavg", "fedpcl") for p in ("plain", "local")]


def test_without_flwr_run_all_else_is_measured():
    found = runners(WORKLOADS["femnist-cnn"], simulate=False)
    assert {place for _, place in found} == {"plain", "plain-processes", "local", "ray"}


def test_a_workload_that_is_not_known_is_refused(capsys):
    with pytest.raises(SystemExit):
        arguments(["resnet"])
    assert "allowed are femnist-cnn, resnet18" in capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_refused_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        arguments(["--device", "cuda"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("python -m benchmarks: error: --device cuda: ")
    assert last.endswith("allowed here is cpu")


def test_on_a_gpu_the_time_is_shared_and_a_text_to_paste_is_printed(
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
    text = capsys.readouterr().out
    assert text.count("\n| FedAvg, plain loop, 1 process") == 3
    assert "Measured on 2026-01-01: **a GPU, 80 GiB**; a processor, 2 cores" in text
    assert "| FedAvg, local grid | " in text
    assert list(tmp_path.iterdir()) == []


def test_the_issue_template_asks_for_the_command_that_there_is():
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / "gpu-benchmark.md").read_text()
    _, head, body = text.split("---\n", 2)
    assert set(yaml.safe_load(head)) >= {"name", "about"}
    assert "python -m benchmarks --device cuda" in body
    assert "untested" in body
