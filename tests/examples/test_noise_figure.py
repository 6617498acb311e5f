"""examples/noise_figure.py draws an image without and with noise."""

import subprocess
import sys

from matplotlib.image import imread

from tests.common.simulation import ROOT


def test_only_the_second_panel_has_noise(tmp_path):
    command = [sys.executable, "examples/noise_figure.py", "glyphs", str(tmp_path / "noise.png")]
    subprocess.run([*command, "gaussian", "0.2", "0.1"], cwd=ROOT, check=True)
    pixels = imread(tmp_path / "noise.png")[..., 0]
    middle = pixels.shape[1] // 2
    assert (pixels[:, :middle] < 0.05).mean() > (pixels[:, middle:] < 0.05).mean() + 0.1
