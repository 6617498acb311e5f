"""Writes the tables of README.md and pyproject.toml that follow from the declarations in the code.

`python -m docs.tables` (or `make tables`) writes both files; a test tells when that was forgotten.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from coprefl_flwr.methods import (
    HEAD,
    METHODS,
    PERSONALISED,
    PRETRAINING,
    TASK,
    Method,
    short_forms,
)
from coprefl_flwr.options import Option, Value, declared
from coprefl_flwr.rounds.robust import AGGREGATION
from coprefl_flwr.studies.settings import GROUPS, Settings

ROOT = Path(__file__).parent.parent


def methods_table() -> str:
    """Return the methods of starting models and tasks, without refined forms called so."""
    heads = ("`method`", "its own settings", "scenario", "in tasks", "only sums")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for name, method in METHODS.items():
        if not {PRETRAINING, TASK} & set(method.roles) or name.endswith("-refined"):
            continue
        scenario = "II" if method.uses_server_data else "I"
        tasks = "yes" if TASK in method.roles else ""
        own, sums = _own(method, PRETRAINING), _sums(method)
        lines.append(f"| `{name}` | {own} | {scenario} | {tasks} | {sums} |")
    return "\n".join(lines) + "\n"


def personal_table() -> str:
    """Return the methods of personalised studies."""
    heads = ("`method`", "its own settings", "what travels", "evaluated with", "only sums")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for name, method in METHODS.items():
        if PERSONALISED in method.roles:
            about = method.strategy_class
            own = _own(method, PERSONALISED)
            shown = (f"`{name}`", own, about.travels, about.tested_with, _sums(method))
            lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _sums(method: Method) -> str:
    """Return "yes" for a method whose server needs only sums of clients' arrays."""
    return "yes" if method.strategy_class.needs_only_sums else ""


def _own(method: Method, role: str) -> str:
    """Return a method's own settings with their defaults, but for those of `aggregation`."""
    defaults = method.defaults(role)
    shown = []
    for key, default in defaults.items():
        if key in method.options and method.options[key].name in AGGREGATION:
            continue
        choices = method.options[key].choices if key in method.options else ()
        allowed = f" ({', '.join(choices)})" if choices else ""
        shown.append(f"`{key}` {_text(default)}{allowed}")
    return ", ".join(shown) or "none"


def settings_table() -> str:
    """Return the settings of a study, in their order."""
    lines = ["| key | default | limits | meaning |", "| --- | --- | --- | --- |"]
    for group in GROUPS:
        for key, one in declared(group).items():
            unit = f" ({one.unit})" if one.unit else ""
            default = f"`{_text(one.default)}`" if one.default not in (None, "") else "not set"
            meaning = one.meaning.replace("|", "\\|")
            lines.append(f"| `{key}` | {default}{unit} | {one.limits} | {meaning} |")
    return "\n".join(lines) + "\n"


def options_table() -> str:
    """Return the methods' own options, one line for each meaning that a key has."""
    lines = ["| key | of | limits | meaning |", "| --- | --- | --- | --- |"]
    methods = [one for one in METHODS.values() if HEAD not in one.roles]
    # With those that have no short form, as it is a setting of another meaning.
    for key in dict.fromkeys(key for method in methods for key in method.options):
        found: dict[tuple[str, str], list[str]] = {}
        for name, method in METHODS.items():
            if key in method.options and not method.refined:
                one = method.options[key]
                found.setdefault((one.limits, one.meaning), []).append(name)
        refined = next((m.options[key] for m in METHODS.values() if key in m.options), None)
        if not found and refined:
            found[(refined.limits, refined.meaning)] = ["the refined methods"]
        for (limits, meaning), names in found.items():
            lines.append(f"| `{key}` | {', '.join(names)} | {limits} | {meaning} |")
    return "\n".join(lines) + "\n"


def run_config() -> str:
    """Return the lines of [tool.flwr.app.config]: every setting with its default."""
    found = {**declared(Settings), **dict.fromkeys(short_forms())}
    return "".join(f"{key} = {_toml(one)}\n" for key, one in found.items())


def _toml(one: Option | None) -> str:
    """Return a default in TOML; "" is "not set"."""
    default: Value = "" if one is None or one.default is None else one.default
    return f'"{default}"' if isinstance(default, str) else _text(default)


def _text(value: Value | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


TABLES: Mapping[str, Callable[[], str]] = {
    "methods": methods_table,
    "personalised methods": personal_table,
    "settings": settings_table,
    "options": options_table,
}


def readme(text: str) -> str:
    """Return README.md with its tables made anew, each between two comments that name it."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}, by `make tables` -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"README.md has no place for the table of {name}")
        text = f"{before}{begin}\n{table()}\n{end}{after}"
    return text


def pyproject(text: str) -> str:
    """Return pyproject.toml with the run-config's section made anew."""
    section = r"(?<=\[tool\.flwr\.app\.config\]\n).*?(?=\n\[tool\.)"
    return re.sub(section, lambda _: run_config(), text, flags=re.DOTALL)


def main() -> None:
    """Write both files."""
    for name, change in (("README.md", readme), ("pyproject.toml", pyproject)):
        path = ROOT / name
        path.write_text(change(path.read_text()))


if __name__ == "__main__":
    main()
