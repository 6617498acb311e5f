"""A report's folder, and its page: one HTML file that needs no other, no network, no JavaScript."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined

from coprefl_flwr.files import write_atomically
from coprefl_flwr.report.comparing import numbers, overviews, table, units
from coprefl_flwr.report.comparison import Report
from coprefl_flwr.report.forms import latex, markdown
from coprefl_flwr.report.pictures import Picture, draw
from coprefl_flwr.report.results import write_csv
from coprefl_flwr.report.table import Table

Section = tuple[Table, list[Picture]]


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
    across = overviews(report.comparisons, tables)
    if across:
        write_atomically(folder / "tables" / "overview.md", markdown(*across).encode())
    sections: list[Section] = [(one, []) for one in across]
    for comparison, of in zip(report.comparisons, tables, strict=True):
        write_atomically(folder / "tables" / f"{comparison.name}.md", markdown(of).encode())
        write_atomically(folder / "tables" / f"{comparison.name}.tex", latex(of).encode())
        sections.append((of, draw(comparison, report.figures, folder / "figures")))
    for name, rows in (("results", numbers), ("units", units)):
        lines = pd.concat([rows(comparison) for comparison in report.comparisons])
        write_csv(folder / f"{name}.csv", lines)
    write_atomically(folder / "index.html", _page(report, sections).encode())
    return folder / "index.html"


def _page(report: Report, sections: Sequence[Section]) -> str:
    """Return the page; a figure that was asked for and that nothing had data for is noted."""
    drawn = {picture.kind for _, pictures in sections for picture in pictures}
    missing = [f"No data for the figure {kind}." for kind in report.figures if kind not in drawn]
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return page.from_string(_PAGE).render(
        report=report,
        notes=[*report.notes, *missing],
        sections=sections,
        style=_STYLE,
        value=_value,
    )


def _value(value: Any) -> str:
    """Return a setting as a recipe would have it; lists and not-set ones in words."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    if value is None or value == "":
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


# A quiet page of the reader's own letters and, light or dark, of the browser's own colours; tables
# scroll by themselves where a screen is narrow.
_STYLE = """
:root {
  color-scheme: light dark;
  --soft: color-mix(in srgb, CanvasText 68%, Canvas);
  --line: color-mix(in srgb, CanvasText 18%, Canvas);
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 84rem;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 {
  font-size: 1.35rem; margin: 3rem 0 .75rem; padding-top: .75rem; border-top: 1px solid var(--line);
}
.note, figcaption { color: var(--soft); font-size: .875rem; max-width: 90ch; }
.note:empty { display: none; }
nav ul { columns: 16rem; padding-left: 1.25rem; }
ul.failed { color: light-dark(#a3261b, #f0998f); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .4rem; text-align: right; white-space: nowrap; vertical-align: baseline; }
thead th { vertical-align: bottom; }
thead { border-bottom: 1.5px solid CanvasText; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
th[colspan] { text-align: center; }
th[scope=row], .text { text-align: left; }
th[scope=row] { font-weight: inherit; }
.group { border-left: 1px solid var(--line); }
td.aside { color: var(--soft); font-size: .94em; }
td.best { font-weight: 700; }
tr.reference th[scope=row] { font-style: italic; }
.settings td { white-space: normal; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; }
figure img { width: 100%; max-width: 52rem; padding: .5rem; background: #fff; }
@media print {
  body { max-width: none; padding: 0; font-size: 9.5pt; }
  .scroll { overflow: visible; }
  table { font-size: 7.5pt; }
  tr, figure { break-inside: avoid; }
  nav { display: none; }
}
"""

_PAGE = """\
{% macro bullets(lines, kind) %}
{% if lines %}
<ul class="{{ kind }}">{% for line in lines %}<li>{{ line }}</li>{% endfor %}</ul>
{% endif %}
{% endmacro %}
{% macro grid(table) %}
{% set split = table.columns | map(attribute="parts") | map("count") | max > 1 %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ table.title }}">
<table>
<thead>
<tr>
{% for name in table.names %}
<th scope="col" class="text" rowspan="{{ 2 if split else 1 }}">{{ name }}</th>
{% endfor %}
{% for one in table.columns %}
<th scope="colgroup" class="group" colspan="{{ one.parts | count }}">{{ one.title }}</th>
{% endfor %}
</tr>
{% if split %}
<tr>
{% for part in table.columns | map(attribute="parts") | map("list") | sum(start=[]) %}
<th scope="col"{% if part == "here" %} class="group"{% endif %}>{{ part }}</th>
{% endfor %}
</tr>
{% endif %}
</thead>
<tbody>
{% for names in table.lines %}
{% set at = loop.index0 %}
<tr{% if at == table.reference %} class="reference"{% endif %}>
<th scope="row">{{ names[0] }}</th>
{% for name in names[1:] %}<td class="text">{{ name }}</td>{% endfor %}
{% for one in table.columns %}
{% for part, numbers in one.parts.items() %}
<td class="{{ "group" if part == "here" else "aside" }}{{ " best" if numbers[at].best }}">
{{- numbers[at].text }}</td>
{% endfor %}
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endmacro %}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ report.title }}</title>
<style>{{ style | safe }}</style>
</head>
<body>
<h1>{{ report.title }}</h1>
<p class="note">{{ report.source }}</p>
<main>
{{ bullets(notes, "notes") }}
{% if report.comparisons | length > 1 %}
<nav aria-label="Tables"><ul>
{% for one in report.comparisons %}
<li><a href="#{{ one.name }}">{{ one.title or one.name }}</a></li>
{% endfor %}
</ul></nav>
{% endif %}
{% if report.comparisons | map(attribute="failed") | select | list %}
<h2>Failed runs</h2>
{{ bullets(report.comparisons | map(attribute="failed") | map("list") | sum(start=[]), "failed") }}
{% endif %}
{% for table, pictures in sections %}
<section{% if table.label %} id="{{ table.label }}"{% endif %}>
<h2>{{ table.title }}</h2>
{{ grid(table) }}
<p class="note">{{ table.note("bold") }}</p>
{% for picture in pictures %}
<figure>
<img src="data:image/png;base64,{{ picture.png }}" alt="{{ picture.alternative }}">
<figcaption>{{ picture.caption }}</figcaption>
</figure>
{% endfor %}
</section>
{% endfor %}
{% if report.settings %}
<h2>Settings</h2>
<table class="settings">
{% for key, setting in report.settings.items() %}
<tr><th scope="row">{{ key }}</th><td class="text">{{ value(setting) }}</td></tr>
{% endfor %}
</table>
{% endif %}
</main>
</body>
</html>
"""
