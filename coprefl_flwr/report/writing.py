"""A report's folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from coprefl_flwr.files import write_atomically
from coprefl_flwr.report.comparing import numbers, overviews, table, units
from coprefl_flwr.report.comparison import Comparison, Report
from coprefl_flwr.report.figures import save
from coprefl_flwr.report.forms import latex, markdown
from coprefl_flwr.report.page import Section, page
from coprefl_flwr.report.pictures import pictures
from coprefl_flwr.report.table import Table


def write_report(report: Report, folder: Path) -> Path:
    """Write tables and figures, and return the path of the page that holds them all.

    The same report gives the same bytes. In `folder`:

    | file | what |
    | --- | --- |
    | `index.html` | everything on one page, which needs no other file |
    | `tables/NAME.md`, `tables/NAME.tex` | a comparison's table |
    | `tables/overview.md` | one metric of all comparisons a table, where there are several |
    | `figures/NAME-KIND.png`, `.pdf` | its figures |
    | `results.csv` | a line per comparison, row and metric |
    | `units.csv` | a line per comparison, row and unit |
    """
    for old in ("tables", "figures"):  # Of combinations that may be gone.
        shutil.rmtree(folder / old, ignore_errors=True)
    tables = [table(comparison) for comparison in report.comparisons]
    sections = [
        _write_comparison(report, comparison, of, folder)
        for comparison, of in zip(report.comparisons, tables, strict=True)
    ]
    across = overviews(report.comparisons, tables)
    if across:
        write_atomically(folder / "tables" / "overview.md", markdown(*across).encode())
    _write_csv(folder / "results.csv", report, numbers)
    _write_csv(folder / "units.csv", report, units)
    index = folder / "index.html"
    text = page(report, [*(Section(one) for one in across), *sections])
    write_atomically(index, text.encode())
    return index


def _write_csv(path: Path, report: Report, of: Callable[[Comparison], pd.DataFrame]) -> None:
    """Write the rows of all comparisons, numbers in full, what is missing left empty."""
    rows = pd.concat([of(comparison) for comparison in report.comparisons])
    write_atomically(path, rows.to_csv(index=False, lineterminator="\n").encode())


def _write_comparison(report: Report, comparison: Comparison, of: Table, folder: Path) -> Section:
    """Write a comparison's files, and return its part of the page."""
    name = comparison.name
    write_atomically(folder / "tables" / f"{name}.md", markdown(of).encode())
    write_atomically(folder / "tables" / f"{name}.tex", latex(of).encode())
    drawn = []
    for picture in pictures(comparison, report.figures):
        path = folder / "figures" / f"{name}-{picture.kind}.png"
        save(picture.figure, path)
        save(picture.figure, path.with_suffix(".pdf"))
        drawn.append((picture, path.read_bytes()))
    return Section(of, drawn)
