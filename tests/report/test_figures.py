import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from PIL import Image

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.report import figures
from coprefl_flwr.report.results import frame
from coprefl_flwr.seeds import generator

STARTS = ["random", "fedavg", "fedmeta", "q-ffl:q=3", "coprefl:gamma=0.5", "coprefl:gamma=0.25"]


def client_rows(starts: list[str]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for start in starts:
        correct = generator("test", start).integers(25, 51, size=(3, 8))
        rows += [
            {"start": start, "task": t, "client": c, "n": 50, "correct": int(k), "loss": 0.5}
            for (t, c), k in np.ndenumerate(correct)
        ]
    return pd.DataFrame(rows)


def curve(phase: str, start: str, task: int | None, number: int, value: float) -> dict[str, Any]:
    return {
        "phase": phase,
        "start": start,
        "task": task,
        "round": number,
        "loss": value,
        "accuracy": value if phase == "downstream" else None,
    }


def curve_rows(starts: list[str]) -> list[dict[str, Any]]:
    before = [curve("pretraining", s, None, r, 4 / r) for s in starts for r in range(1, 9)]
    return before + [
        curve("downstream", s, t, r, 60 + 3 * r + t)
        for s in starts
        for t in range(3)
        for r in range(1, 9)
    ]


def pixels(path: Path) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(path.read_bytes())).convert("RGB"))


def has_colour(image: npt.NDArray[np.uint8], colour: str) -> bool:
    rgb = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return int((image == rgb).all(axis=-1).sum()) > 200


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_histogram_shows_every_start(tmp_path: Path, count: int) -> None:
    path = tmp_path / "figures" / "accuracies.png"
    figures.save(figures.accuracy_figure(client_rows(STARTS[:count])), path)
    image = pixels(path)
    assert image.shape[1] == 1600
    assert 300 <= image.shape[0] <= 1600
    assert 0.3 < (image == 255).all(axis=-1).mean() < 0.97
    shown = figures.colours(STARTS[:count])
    assert all(has_colour(image, colour) for colour, _ in shown.values())
    assert [file.name for file in path.parent.iterdir()] == ["accuracies.png"]


def test_curves_show_every_start(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    rows = curve_rows(STARTS)
    for row in rows:
        # Equal curves would hide one another.
        row["loss"] += STARTS.index(row["start"])
        if row["accuracy"] is not None:
            row["accuracy"] -= 5 * STARTS.index(row["start"])
    figures.save(figures.learning_figure(frame(rows)), path)
    image = pixels(path)
    assert image.shape == (780 + 40, 1600, 3)  # The legend has two lines.
    for colour, _ in figures.colours(STARTS).values():
        # In both halves: one line in each panel (the legend is cut off).
        assert has_colour(image[:580, :800], colour)
        assert has_colour(image[:580, 800:], colour)


@pytest.mark.parametrize("phase", ["pretraining", "downstream"])
def test_panel_without_data_is_left_out(tmp_path: Path, phase: str) -> None:
    """With one panel a line crosses the middle of the picture, where two would leave a gap."""
    path = tmp_path / "curves.png"
    rows = [row for row in curve_rows(["coprefl"]) if row["phase"] == phase]
    figures.save(figures.learning_figure(frame(rows)), path)
    colour, _ = figures.colours(["coprefl"])["coprefl"]
    assert has_colour(pixels(path)[:580, 720:880], colour)


def test_curve_values() -> None:
    """Round 1 has 60 and 64: mean 62, sample std √8; a loss that is not finite is no point."""
    rows = [
        curve("downstream", "a", 0, 2, 70),
        curve("downstream", "a", 0, 1, 60),
        curve("downstream", "a", 1, 1, 64),
        curve("pretraining", "a", None, 1, float("nan")),
        curve("pretraining", "a", None, 2, 3.0),
    ]
    before, tasks = figures.learning_figure(frame(rows)).axes
    assert tasks.lines[0].get_xydata().tolist() == [[1, 62], [2, 70]]
    (band,) = tasks.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((62 - 8**0.5, 70))
    assert before.lines[0].get_xydata().tolist() == [[2, 3.0]]


def bins(values: list[float]) -> tuple[list[float], float]:
    """Return the edges of the histogram's bins, and how many percent of the clients they hold."""
    clients = [client_rows(["a"]).iloc[0].to_dict() | {"n": 10**6, "client": c, "correct": v * 10**4}
               for c, v in enumerate(values)]  # fmt: skip
    bars = figures.accuracy_figure(pd.DataFrame(clients)).axes[0].patches
    ends = [bars[0].get_x(), *(bar.get_x() + bar.get_width() for bar in bars)]
    return ends, sum(bar.get_height() for bar in bars)


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        ([90, 99], [90, 91, 92, 93, 94, 95, 96, 97, 98, 99]),
        ([100], [96, 97, 98, 99, 100]),
        ([0], [0, 1, 2, 3, 4]),
        ([0, 100], list(range(0, 101, 5))),
    ],
)
def test_bin_edges(values: list[float], edges: list[float]) -> None:
    assert bins(values)[0] == pytest.approx(edges)


def test_every_client_is_in_a_bin() -> None:
    draws = generator("bins")
    for _ in range(20):
        low, high = sorted(draws.uniform(0, 100, size=2))
        edges, held = bins(draws.uniform(low, high, size=20).round(4).tolist())
        assert held == pytest.approx(100)
        assert edges[-1] <= 100 + 1e-9
        assert len(edges) <= 22


def test_colours_do_not_depend_on_order() -> None:
    shown = figures.colours(STARTS)
    assert figures.colours(reversed(STARTS)) == shown
    assert len(set(shown.values())) == len(STARTS)
    assert shown["coprefl:gamma=0.5"] == figures.colours(["coprefl:gamma=0.5"])["coprefl:gamma=0.5"]
    assert shown["random"] == figures.colours(["random", "new method"])["random"]


def test_colours_of_many_starts_differ() -> None:
    names = [f"coprefl:gamma={index}" for index in range(20)]
    assert len(set(figures.colours(names).values())) == 20
    assert len({colour for colour, _ in figures.colours(names[:8]).values()}) == 8


@pytest.mark.parametrize("suffix", figures.FORMATS)
def test_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"curves.{suffix}"
    figures.save(figures.learning_figure(frame(curve_rows(["coprefl"]))), path)
    magic = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(magic)


def test_bad_input_is_refused(tmp_path: Path) -> None:
    rows = curve_rows(["coprefl"])
    with pytest.raises(SettingsError, match="bmp.*png, svg, pdf"):
        figures.save(figures.accuracy_figure(client_rows(STARTS)), tmp_path / "a.bmp")
    for wrong, said in [
        ([], "nothing to draw"),
        ([{**rows[0], "phase": "downstraem"}], "'downstream'"),
        ([*rows, rows[0]], "two rows for round 1"),
        ([{**rows[0], "task": 3}], "pretraining row is 3"),
        ([{"phase": "downstream", "start": "a"}], "no 'task'"),
    ]:
        with pytest.raises(SettingsError, match=said):
            figures.learning_figure(frame(wrong))
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
    root = Path(figures.__file__).parents[3]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root)


def lines_with_bands(count: int) -> tuple[int, int]:
    """Return how many bands and bars stand in the panel of tasks of so many starts."""
    (_, tasks) = figures.learning_figure(frame(curve_rows(STARTS[:count]))).axes
    bands = [one for one in tasks.collections if type(one).__name__.startswith("Fill")]
    return len(bands), len(tasks.containers)


def test_spreads_of_many_starts_are_bars_beside_each_other() -> None:
    """Five bands over each other were one grey."""
    assert lines_with_bands(2) == (2, 0)
    assert lines_with_bands(5) == (0, 5)


def test_a_chain_is_not_on_the_axis_of_averaged_losses() -> None:
    rows = curve_rows(["fedavg", "cyclic"])
    for row in rows:
        row["chained"] = row["phase"] == "pretraining" and row["start"] == "cyclic"
    averaged, chain, tasks = figures.learning_figure(frame(rows)).axes
    assert [panel.get_title(loc="left") for panel in (averaged, chain, tasks)] == [
        "Pre-training, averaged", "Pre-training in a chain", "Downstream tasks",
    ]  # fmt: skip
    assert [len(panel.lines) for panel in (averaged, chain, tasks)] == [1, 1, 2]


def test_one_that_diverged_does_not_hide_the_others() -> None:
    rows = curve_rows(["fedavg", "burst"])
    for row in rows:
        row["loss"] *= 1e30 if row["start"] == "burst" else 1
    before, _ = figures.learning_figure(frame(rows)).axes
    assert before.get_yscale() == "log"
    alone, _ = figures.learning_figure(frame(curve_rows(["fedavg"]))).axes
    assert alone.get_yscale() == "linear"


def test_legends_of_long_names_fit(tmp_path: Path) -> None:
    """A line of names that is wider than the figure was cut off at both sides."""
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
