"""Names in other scripts: a font is found for them, or the codes of their characters are drawn."""

import io
import logging
import warnings
from pathlib import Path

import pandas as pd
import pytest
from matplotlib import cbook
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text

from coprefl_flwr.report import figures
from coprefl_flwr.report.figures import fonts
from coprefl_flwr.report.figures.maps import similarity
from coprefl_flwr.report.frames import frame
from tests.common.comparisons import comparison, result_row
from tests.common.figures import client_rows, curve_rows

SCRIPT = "\U0001d49c\U0001d49e"
"""Letters that matplotlib's own STIX fonts have, and DejaVu Sans lacks."""
NOBODYS = "\U0010fffd"
"""A character that no font has."""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch):
    """The paths of the installed fonts; a missing glyph is an error."""
    paths = [f"{cbook._get_data_path('fonts/ttf', 'LastResortHE-Regular.ttf')}"]
    paths += [str(tmp_path / "damaged Sans.ttf")]
    Path(paths[1]).touch()
    monkeypatch.setattr(fonts, "findSystemFonts", lambda: paths)
    fonts.fonts_for.cache_clear()
    fonts._warn_of.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield paths


def texts_of(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text)]


def test_another_font_is_used_where_the_usual_one_lacks_a_letter(caplog, installed) -> None:
    assert not get_font(findfont(FontProperties())).get_char_index(ord(SCRIPT[0]))
    installed.append(str(cbook._get_data_path("fonts/ttf", "STIXGeneral.ttf")))
    figure = figures.accuracy_figure(client_rows([SCRIPT, "fedavg"]))
    figure.savefig(io.BytesIO(), format="png")
    (title,) = (text for text in figure.findobj(Text) if text.get_text() == SCRIPT)
    assert title.get_fontfamily()[-1] == "STIXGeneral"
    assert caplog.text == ""


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_code_is_drawn_instead_of_a_character_without_a_font(caplog, tmp_path: Path, suffix):
    with caplog.at_level(logging.WARNING, "flwr.coprefl"):
        for name in ("a", "b"):
            figure = figures.learning_figure(frame(curve_rows([f"x{NOBODYS}"])))
            figures.save(figure, tmp_path / f"{name}.{suffix}")
    assert "xU+10FFFD" in texts_of(figure)
    (line,) = caplog.messages
    assert line.startswith("figures have the codes of ")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_labels_of_ticks_have_codes_too(caplog) -> None:
    scores = pd.DataFrame({f"{NOBODYS}a": [0.5, 0.5], "b": [0.5, 0.5]}, index=["c", NOBODYS])
    rows = [result_row("fedpcl", [1.0], [1.0], similarity=scores)]
    figure, _ = similarity(comparison(rows=rows))
    for _ in range(2):
        figure.savefig(io.BytesIO(), format="png")
    assert {"U+10FFFD a", "U+10FFFD", "b"} <= {*texts_of(figure)}
