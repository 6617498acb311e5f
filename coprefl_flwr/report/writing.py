"""A report's folder, and its page: one HTML file that needs no other, no network, no JavaScript."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from coprefl_flwr.files import replace_files
from coprefl_flwr.report.comparing import numbers, overviews, table, units
from coprefl_flwr.report.comparison import Report
from coprefl_flwr.report.forms import latex, markdown
from coprefl_flwr.report.pictures import Picture, draw
from coprefl_flwr.report.results import csv
from coprefl_flwr.report.searching import search_table
from coprefl_flwr.report.table import Column, Number, Table

Section = tuple[Table, Table | None, list[Picture]]
"""A comparison's table, that of its search if there was one, and its figures."""


def write_report(report: Report, folder: Path) -> Path:
    """Write tables and figures, and return the path of the page that holds them all.

    The same report gives the same bytes, and takes the place of the one before. In `folder`:

    | file | what |
    | --- | --- |
    | `index.html` | everything on one page, which needs no other file |
    | `tables/NAME.md`, `tables/NAME.tex` | a comparison's table |
    | `tables/NAME-search.md` | every value that was searched for it, with its score |
    | `provenance.md` | how the results were made, and all settings |
    | `tables/overview.md` | one metric of all comparisons a table, where there are several |
    | `figures/NAME-KIND.png`, `.pdf` | its figures |
    | `results.csv` | a line per comparison, row and metric |
    | `units.csv` | a line per comparison, row and unit |

    Raises a SettingsError, with nothing changed, if `folder` or one of these files is not ours.
    """
    texts, figures = dict[str, str](), dict[str, bytes]()
    tables = [table(comparison) for comparison in report.comparisons]
    across = overviews(report.comparisons, tables)
    if across:
        texts["tables/overview.md"] = markdown(*across)
    sections: list[Section] = [(one, None, []) for one in across]
    for comparison, of in zip(report.comparisons, tables, strict=True):
        texts[f"tables/{comparison.name}.md"] = markdown(of)
        texts[f"tables/{comparison.name}.tex"] = latex(of)
        tried = search_table(comparison.tried, comparison.scored) if comparison.tried else None
        if tried:
            texts[f"tables/{comparison.name}-search.md"] = markdown(tried)
        pictures = draw(comparison, report.figures)
        for picture in pictures:
            figures |= {f"figures/{name}": content for name, content in picture.files.items()}
        alone = len(report.comparisons) == 1 and of.title == report.title
        sections.append((replace(of, title="Results") if alone else of, tried, pictures))
    for name, rows in (("results", numbers), ("units", units)):
        lines = pd.concat([rows(comparison) for comparison in report.comparisons])
        texts[f"{name}.csv"] = csv(lines)
    texts["provenance.md"] = markdown(*_provenance(report))
    texts["index.html"] = _page(report, sections)
    contents = figures | {name: text.encode() for name, text in texts.items()}
    replace_files(folder, contents, "report")
    return folder / "index.html"


def _provenance(report: Report) -> list[Table]:
    """Return how the results were made, and all settings, as tables."""
    parts = {
        "How it was made": report.made,
        "Settings": report.settings,
        "Settings at their defaults": report.defaults,
        "Methods": report.methods,
    }
    return [
        Table(
            ["Row" if title == "Methods" else "What"],
            [[key] for key in of],
            [Column("Value", {"here": [Number(_value(value)) for value in of.values()]})],
            title=title,
        )
        for title, of in parts.items()
        if of
    ]


def _page(report: Report, sections: Sequence[Section]) -> str:
    """Return the page; a figure that was asked for and that nothing had data for is noted."""
    drawn = {picture.kind for *_, pictures in sections for picture in pictures}
    missing = [f"No data for the figure {kind}." for kind in report.figures if kind not in drawn]
    pages = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    notes = [*report.notes, *missing]
    return pages.get_template("page.html").render(
        report=report, notes=notes, sections=sections, provenance=_provenance(report)
    )


def _value(value: Any) -> str:
    """Return a setting as a recipe would have it; lists and not-set ones in words."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    if value is None or value == "":
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)
