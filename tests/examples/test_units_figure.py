"""The example that draws columns of units.csv."""

import subprocess
import sys

import pandas as pd
import pytest

from coprefl_flwr.report.comparison import units
from tests.common.comparisons import comparison, result_row
from tests.common.simulation import ROOT


@pytest.mark.parametrize(
    ("x", "columns"), [("gamma", ["accuracy", "variance"]), ("accuracy", ["variance"])]
)
def test_columns_are_drawn_against_an_option_or_a_column(tmp_path, x, columns):
    rows = [
        result_row("coprefl", [70.0, 71.0, 72.0, 73.0], [9.0, 8.0, 7.0, 6.0], f"gamma={gamma}")
        for gamma in (0.0, 0.5)
    ]
    pd.DataFrame(units(comparison(rows=rows))).to_csv(tmp_path / "units.csv", index=False)
    command = [sys.executable, "examples/units_figure.py", str(tmp_path), x, *columns]
    subprocess.run(command, check=True, cwd=ROOT)
    assert (tmp_path / f"{x}.png").stat().st_size > 10_000
