"""The page: one HTML file that needs no other, no network and no JavaScript."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, StrictUndefined

from coprefl_flwr.report.comparison import Report
from coprefl_flwr.report.pictures import Picture
from coprefl_flwr.report.table import Table, number


@dataclass(frozen=True)
class Section:
    """A part of the page: a table, and figures with their PNG."""

    table: Table
    pictures: Sequence[tuple[Picture, bytes]] = ()


def page(report: Report, sections: Sequence[Section]) -> str:
    """Return the page; a figure that was asked for and that nothing had data for is noted."""
    drawn = {picture.kind for section in sections for picture, _ in section.pictures}
    missing = [f"No data for the figure {kind}." for kind in report.figures if kind not in drawn]
    return _ENVIRONMENT.from_string(_PAGE).render(
        report=report,
        notes=[*report.notes, *missing],
        failed=[line for one in report.comparisons for line in one.failed],
        sections=sections,
        linked=[section.table for section in sections if section.table.label],
        settings={key: _value(value) for key, value in report.settings.items()},
        number=number,
        style=_STYLE,
    )


def _value(value: Any) -> str:
    """Return a setting as a recipe would have it; lists and not-set ones in words."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == "":
        return "not set"
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return str(value)


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


_ENVIRONMENT = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_ENVIRONMENT.filters["data_uri"] = _data_uri

# A quiet page of the reader's own letters and, light or dark, of the browser's own colours; tables
# scroll by themselves where a screen is narrow.
_STYLE = """
:root {
  color-scheme: light dark;
  --soft: color-mix(in srgb, CanvasText 68%, Canvas);
  --line: color-mix(in srgb, CanvasText 18%, Canvas);
  --band: color-mix(in srgb, CanvasText 4%, Canvas);
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 84rem;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 .75rem; padding-top: .75rem;
     border-top: 1px solid var(--line); }
.source, .note, figcaption { color: var(--soft); }
.note, figcaption { font-size: .875rem; max-width: 90ch; }
nav ul { columns: 16rem; padding-left: 1.25rem; }
ul.failed { color: light-dark(#a3261b, #f0998f); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .4rem; text-align: right; white-space: nowrap; vertical-align: baseline; }
thead th { vertical-align: bottom; }
thead { border-bottom: 1.5px solid CanvasText; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
tbody tr:nth-child(even) > * { background: var(--band); }
th[colspan] { text-align: center; }
th[scope=row], td.text, th.text { text-align: left; }
th[scope=row] { font-weight: inherit; }
.group { border-left: 1px solid var(--line); }
td.aside { color: var(--soft); font-size: .94em; }
td.best { font-weight: 700; }
tr.reference th[scope=row] { font-style: italic; }
.settings td { white-space: normal; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; }
figure img { display: block; width: 100%; max-width: 52rem; padding: .5rem; background: #fff;
             border: 1px solid var(--line); border-radius: .4rem; }
@media print {
  body { max-width: none; padding: 0; font-size: 9.5pt; }
  .scroll { overflow: visible; }
  table { font-size: 7.5pt; }
  tr, figure { break-inside: avoid; }
  nav { display: none; }
}
"""

_PAGE = """\
{% macro bullets(lines, kind="") %}
{% if lines %}
<ul{% if kind %} class="{{ kind }}"{% endif %}>
{% for line in lines %}
<li>{{ line }}</li>
{% endfor %}
</ul>
{% endif %}
{% endmacro %}
{% macro grid(table) %}
{% set parts = table.parts %}
{% set split = parts | map("length") | max > 1 %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ table.title }}">
<table>
<thead>
<tr>
{% for name in table.names %}
<th scope="col" class="text" rowspan="{{ 2 if split else 1 }}">{{ name }}</th>
{% endfor %}
{% for title in table.titles %}
<th scope="colgroup" class="group" colspan="{{ parts[loop.index0] | length }}">{{ title }}</th>
{% endfor %}
</tr>
{% if split %}
<tr>
{% for of_title in parts %}
{% for part in of_title %}
<th scope="col"{% if loop.first %} class="group"{% endif %}>{{ part }}</th>
{% endfor %}
{% endfor %}
</tr>
{% endif %}
</thead>
<tbody>
{% for line in table.lines %}
<tr{% if line.reference %} class="reference"{% endif %}>
<th scope="row">{{ line.names[0] }}</th>
{% for name in line.names[1:] %}
<td class="text">{{ name }}</td>
{% endfor %}
{% for of_title in parts %}
{% set at = loop.index0 %}
{% for part in of_title %}
{% set cell = number(line, at, part) %}
<td class="{{ "group" if loop.first else "aside" }}{{ " best" if cell.best }}">{{ cell.text }}</td>
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
{% if report.source %}
<p class="source">{{ report.source }}</p>
{% endif %}
<main>
{{ bullets(notes) }}
{% if failed %}
<h2>Failed runs</h2>
{{ bullets(failed, "failed") }}
{% endif %}
{% if linked | length > 1 %}
<nav aria-label="Tables">
<ul>
{% for table in linked %}
<li><a href="#{{ table.label }}">{{ table.title }}</a></li>
{% endfor %}
</ul>
</nav>
{% endif %}
{% for section in sections %}
{% set table = section.table %}
<section{% if table.label %} id="{{ table.label }}"{% endif %}>
<h2>{{ table.title }}</h2>
{{ grid(table) }}
{% if table.notes %}
<p class="note">{{ table.note("bold") }}</p>
{% endif %}
{% for picture, png in section.pictures %}
<figure>
<img src="{{ png | data_uri }}" alt="{{ picture.alternative }}">
<figcaption>{{ picture.caption }}</figcaption>
</figure>
{% endfor %}
</section>
{% endfor %}
{% if settings %}
<h2>Settings</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Settings">
<table class="settings">
<tbody>
{% for key, value in settings.items() %}
<tr><th scope="row">{{ key }}</th><td class="text">{{ value }}</td></tr>
{% endfor %}
</tbody>
</table>
</div>
{% endif %}
</main>
</body>
</html>
"""
