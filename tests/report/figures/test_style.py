"""Properties of all figures: colours, formats, legends, and refusals of wrong input."""

import subprocess
import sys
from pathlib import Path

import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report import figures
from coprefl_flwr.report.figures.style import colours
from coprefl_flwr.report.frames import frame
from tests.common.figures import STARTS, client_rows, curve_rows
from tests.common.simulation import ROOT


def test_colours_do_not_depend_on_order() -> None:
    shown = colours(STARTS)
    assert colours(reversed(STARTS)) == shown
    assert len(set(shown.values())) == len(STARTS)
    assert shown["coprefl:gamma=0.5"] == colours(["coprefl:gamma=0.5"])["coprefl:gamma=0.5"]
    assert shown["random"] == colours(["random", "new method"])["random"]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figure_is_saved_in_the_format_of_its_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"curves.{suffix}"
    figures.save(figures.learning_figure(frame(curve_rows(["coprefl"]))), path)
    magic = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(magic)


def test_unknown_format_and_missing_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"bmp.*pdf.*png.*svg"):
        figures.save(figures.accuracy_figure(client_rows(STARTS)), tmp_path / "a.bmp")
    with pytest.raises(SettingsError, match="the figure has no data: it needs "):
        figures.learning_figure(frame([]))
    assert not list(tmp_path.iterdir())


def test_figures_do_not_belong_to_pyplot() -> None:
    """Importing does not load Matplotlib, and drawing opens no window and chooses no backend."""
    program = (
        "import sys, tempfile, pathlib\n"
        "from coprefl_flwr.report import figures\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import pandas as pd\n"
        "row = dict(phase='pretraining', start='a', task=None, round=1, loss=1.0)\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    drawn = figures.learning_figure(pd.DataFrame([row]))\n"
        "    figures.save(drawn, pathlib.Path(folder) / 'a.png')\n"
        "import matplotlib, matplotlib.pyplot\n"
        "assert matplotlib.pyplot.get_fignums() == []\n"
        "assert matplotlib.rcParams._get_backend_or_none() is None\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
