"""The folder of a report, and its page: one HTML file without other files, network or scripts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from coprefl_flwr.files import replace_files
from coprefl_flwr.report import tables
from coprefl_flwr.report.answer import answers, set_up, value_text
from coprefl_flwr.report.comparison import Comparison, Report, numbers, units
from coprefl_flwr.report.figures import Picture, draw
from coprefl_flwr.report.formats import TEXT_WIDTH, html, latex, markdown, text
from coprefl_flwr.report.tables import Table

FOLDER, PAGE = "report", "report.html"
"""Subfolder and page of a report, in the folder of a study, a recipe or a Python result."""


class Section(NamedTuple):
    """A part of the page: a comparison."""

    name: str  # name of the comparison
    answers: list[str]
    tables: list[Table]
    search: Table | None  # the searched values
    pictures: list[Picture]
    files: list[str]  # paths of the tables, relative to the page's folder


def text_tables(comparison: Comparison, width: int = TEXT_WIDTH) -> str:
    """Return the measured tables as text, without the paper's numbers."""
    shown = replace(comparison, paper={}).displayed()
    return "\n\n".join(text(table, width) for table in tables.tables(shown))


def write_report(report: Report, folder: Path) -> Path:
    """Write tables and figures, and return the path of the page that shows all of them.

    The same report gives the same bytes and replaces the earlier report. Files in `folder`:

    | file | content |
    | --- | --- |
    | `report.html` | the page, with all tables and figures in one file |
    | `tables/NAME.md`, `tables/NAME.tex` | a comparison's tables |
    | `tables/NAME-search.md` | every searched value of a comparison, with its score |
    | `provenance.md` | how the results were made, and all settings |
    | `figures/NAME-KIND.png`, `.pdf` | figures of a comparison |
    | `results.csv` | a line per comparison, row and metric |
    | `units.csv` | a line per comparison, row and unit |

    Raises a SettingsError, before any change, if another program wrote `folder` or a file in it.
    """
    texts, figures = dict[str, str](), dict[str, bytes]()
    comparisons = [comparison.displayed() for comparison in report.comparisons]
    sections = []
    for comparison in comparisons:
        name, shown = comparison.name, tables.tables(comparison)
        files = {f"tables/{name}.md": markdown(*shown), f"tables/{name}.tex": latex(*shown)}
        search = None
        if comparison.search_entries:
            search = tables.search_table(comparison)
            files[f"tables/{name}-search.md"] = markdown(search)
        texts |= files
        pictures = draw(comparison, report.figures)
        for picture in pictures:
            figures |= picture.files
        if len(comparisons) == 1 and shown[0].title == report.title:
            of_costs = f"{report.title}: training and costs"
            titles = {report.title: "Results", of_costs: "Training and costs"}
            shown = [replace(table, title=titles.get(table.title, table.title)) for table in shown]
        sections.append(Section(name, answers(comparison), shown, search, pictures, list(files)))
    for file, rows in (("results", numbers), ("units", units)):
        every = pd.concat([rows(part) for part in report.comparisons])
        texts[f"{file}.csv"] = every.to_csv(index=False, lineterminator="\n")
    texts["provenance.md"] = markdown(*_provenance(report))
    texts[PAGE] = _page(report, sections)
    contents = figures | {name: content.encode() for name, content in texts.items()}
    replace_files(folder, contents, FOLDER)
    return folder / PAGE


def _provenance(report: Report) -> list[Table]:
    """Return how the results were made, and all settings, as tables."""
    parts: dict[str, Mapping[str, Any]] = {
        "How it was made": report.provenance,
        "Settings": report.settings,
        "Settings at their defaults": report.defaults,
        "Methods": report.methods,
    }
    return [
        tables.simple(
            title, "Name", {"Value": list(map(value_text, values.values()))}, list(values)
        )
        for title, values in parts.items()
        if values
    ]


def _page(report: Report, sections: list[Section]) -> str:
    """Return the page as HTML; a note names each requested figure without data."""
    drawn = {picture.kind for section in sections for picture in section.pictures}
    missing = [f"No data for the figure {kind}." for kind in report.figures if kind not in drawn]
    pages = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return pages.get_template("page.html.md").render(
        report=report,
        set_up=set_up(report),
        notes=[*report.notes, *missing],
        sections=sections,
        provenance=_provenance(report),
        html=html,
    )
