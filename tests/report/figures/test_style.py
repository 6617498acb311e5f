"""Properties of all figures: colours, formats, legends, and refusals of wrong input."""

import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report import figures
from coprefl_flwr.report.figures.style import FORMATS, colours
from coprefl_flwr.report.frames import frame
from tests.common.figures import STARTS, client_rows, curve_rows
from tests.common.simulation import ROOT


def test_colours_do_not_depend_on_order() -> None:
    shown = colours(STARTS)
    assert colours(reversed(STARTS)) == shown
    assert len(set(shown.values())) == len(STARTS)
    assert shown["coprefl:gamma=0.5"] == colours(["coprefl:gamma=0.5"])["coprefl:gamma=0.5"]
    assert shown["random"] == colours(["random", "new method"])["random"]


def test_colours_of_many_starts_differ() -> None:
    names = [f"coprefl:gamma={index}" for index in range(20)]
    assert len(set(colours(names).values())) == 20
    assert len({colour for colour, _ in colours(names[:8]).values()}) == 8


@pytest.mark.parametrize("suffix", FORMATS)
def test_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"curves.{suffix}"
    figures.save(figures.learning_figure(frame(curve_rows(["coprefl"]))), path)
    magic = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(magic)


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"bmp.*png, svg, pdf"):
        figures.save(figures.accuracy_figure(client_rows(STARTS)), tmp_path / "a.bmp")
    with pytest.raises(SettingsError, match="the figure has no data; it needs "):
        figures.learning_figure(frame([]))
    assert not list(tmp_path.iterdir())


def test_settings_of_the_caller_stay(tmp_path: Path) -> None:
    before = dict(mpl.rcParams.copy())
    figures.save(figures.learning_figure(frame(curve_rows(["coprefl"]))), tmp_path / "a.png")
    assert dict(mpl.rcParams.copy()) == before


def test_import_is_light() -> None:
    """Neither importing nor drawing loads pyplot, and importing does not load Matplotlib."""
    program = (
        "import sys, tempfile, pathlib\n"
        "from coprefl_flwr.report import figures\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import pandas as pd\n"
        "row = dict(phase='pretraining', start='a', task=None, round=1, loss=1.0)\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    drawn = figures.learning_figure(pd.DataFrame([row]))\n"
        "    figures.save(drawn, pathlib.Path(folder) / 'a.png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_legends_of_long_names_fit(tmp_path: Path) -> None:
    """Earlier, a line of names wider than the figure was cut off at both sides."""
    searched = ",".join(f"learning-rate-{number}=0.001" for number in range(9))
    names = ["fedavg", f"coprefl:{searched}"]
    figure = figures.learning_figure(frame(curve_rows(names)))
    figures.save(figure, tmp_path / "long.png")
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert "".join(text.get_text() for text in legend.get_texts()).replace("\n", "") == "".join(
        names
    )
