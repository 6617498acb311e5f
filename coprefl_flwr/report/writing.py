"""A report's folder."""

import shutil
from pathlib import Path

from coprefl_flwr.files import write_atomically
from coprefl_flwr.report.comparison import Report
from coprefl_flwr.report.figures import save
from coprefl_flwr.report.latex import latex
from coprefl_flwr.report.markdown import markdown, markdown_overview
from coprefl_flwr.report.overview import overviews
from coprefl_flwr.report.page import Section, page
from coprefl_flwr.report.pictures import pictures
from coprefl_flwr.report.rows import Table, table
from coprefl_flwr.report.values import results_csv, units_csv


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
    sections = [_write_comparison(report, one, folder) for one in tables]
    across = overviews(tables)
    if across:
        text = "\n".join(map(markdown_overview, across))
        write_atomically(folder / "tables" / "overview.md", text.encode())
    write_atomically(folder / "results.csv", results_csv(tables))
    write_atomically(folder / "units.csv", units_csv(tables))
    index = folder / "index.html"
    write_atomically(index, page(report, sections, across).encode())
    return index


def _write_comparison(report: Report, one: Table, folder: Path) -> Section:
    """Write a comparison's files, and return its part of the page."""
    name = one.comparison.name
    write_atomically(folder / "tables" / f"{name}.md", markdown(one).encode())
    write_atomically(folder / "tables" / f"{name}.tex", latex(one).encode())
    drawn = pictures(one.comparison, report.figures)
    images = []
    for picture in drawn:
        path = folder / "figures" / f"{name}-{picture.kind}.png"
        save(picture.figure, path)
        save(picture.figure, path.with_suffix(".pdf"))
        images.append(path.read_bytes())
    return Section(one, list(zip(drawn, images, strict=True)))
