"""Ratios, the page and the picture, from made-up measurements."""

import numpy as np
import pytest
from PIL import Image

from benchmarks.__main__ import arguments
from benchmarks.measure import RUNNERS, Measurement, portions
from benchmarks.report import draw, page

SECONDS = {
    "bare-threads": [2.0, 2.0, 9.0],
    "bare-processes": [1.5, 1.0, 1.5],
    "local-fedavg": [2.1, 2.1, 2.1],
    "local-coprefl": [3.0, 3.0, 3.0],
    "hosted-fedavg": [1.8, 1.8, 1.8],
    "hosted-coprefl": [3.0, 3.0, 3.0],
    "alone-fedavg": [6.0, 6.0, 6.0],
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
        "load_before": 0.1,
        "date": "2026-01-01",
    }
    peaks = dict.fromkeys(SECONDS, 2**30)
    return Measurement("tiny", 2, 3, machine, dict(SECONDS), peaks)


def test_ratios_are_of_medians_to_the_right_plain_loop(measurement):
    assert measurement.ratio("local-fedavg") == pytest.approx(1.05)
    assert measurement.ratio("hosted-fedavg") == pytest.approx(1.2)
    assert measurement.ratio("alone-fedavg") == pytest.approx(4)
    assert measurement.ratio("bare-threads") == pytest.approx(2 / 1.5)


def test_the_page_has_a_row_per_runner_and_warns_of_a_busy_machine(measurement):
    text = page([measurement])
    assert text.count("\n| ") == len(RUNNERS) + 1
    row = (
        "| FedAvg, local grid, 1 x 2 threads | 3 | 2.100 (2.100 to 2.100) | 1.050 "
        "| plain, 1 process | 1.05 | 1024 MiB |"
    )
    assert row in text
    assert "busy" not in text
    measurement.machine["load_before"] = 2.0
    assert "busy" in page([measurement])


def test_a_measurement_survives_its_file(measurement):
    assert Measurement(**measurement.as_json()) == measurement


def test_the_picture_has_a_bar_as_long_as_the_ratio(measurement, tmp_path):
    draw([measurement], tmp_path / "picture.png")
    pixels = np.asarray(Image.open(tmp_path / "picture.png").convert("RGB"))
    blue = (np.abs(pixels.astype(int) - (0x00, 0x72, 0xB2)) < 8).all(axis=2)
    lengths = [int(n) for n in blue.sum(axis=1)]
    # The longest blue bar is FedAvg with a node per client: 4 to the 1.05 of the shortest.
    assert max(lengths) / min(n for n in lengths if n > 20) == pytest.approx(4 / 1.05, rel=0.1)


def test_rounds_are_cut_into_even_blocks():
    assert portions(20, 3) == [7, 7, 6]
    assert portions(2, 3) == [1, 1]


def test_a_workload_that_is_not_known_is_refused(capsys):
    with pytest.raises(SystemExit):
        arguments(["resnet"])
    assert "allowed are femnist-cnn, resnet18" in capsys.readouterr().err
