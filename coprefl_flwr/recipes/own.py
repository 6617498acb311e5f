"""What a recipe names of a user's own: files count from the recipe's folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.models.weights import FILE
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.recipes.entries import named_method
from coprefl_flwr.recipes.yaml_file import Located, entries_of, part_of
from coprefl_flwr.report.columns import DIAGNOSTICS, START_LOSS
from coprefl_flwr.studies.phases import WRAPPER

PARTS = ("settings", "metrics", "search", "small")
"""The keys of a recipe that can name something of a user's own."""

METRICS = "client-metrics"


def found(tree: Mapping[str, Located], folder: Path) -> dict[str, Located]:
    """Return a recipe in which every file of a user's own is named by its whole path.

    What a method is called in tables stays as it was written.
    """
    parts = {k: resolved(one, folder) if k in PARTS else one for k, one in tree.items()}
    if "methods" in tree:
        methods = [_method(one, folder) for one in entries_of(tree, "methods")]
        parts["methods"] = tree["methods"].holding(methods)
    return parts


def _method(entry: Located, folder: Path) -> Located:
    """Return a method with its whole path, under the label that it had."""
    if not isinstance(entry.value, str | dict):
        return entry
    label, named, options = named_method(entry)
    try:
        path = named.holding(named.value.resolved(folder))
    except SettingsError as error:
        raise named.error(str(error)) from error
    own = {key: resolved(one, folder) for key, one in options.items()}
    if path.value == named.value and own == options:
        return entry
    return entry.holding({label: entry.holding({"method": path, **own})})


def resolved(entry: Located, folder: Path) -> Located:
    """Return an entry with all files in it named by their whole paths."""
    value: Any = entry.value
    if isinstance(value, dict):
        value = {key: resolved(one, folder) for key, one in value.items()}
    elif isinstance(value, list):
        value = [resolved(one, folder) for one in value]
    elif isinstance(value, str):
        try:
            value = " ".join(_words(word, folder) for word in value.split(" "))
        except SettingsError as error:
            raise entry.error(str(error)) from error
    return entry.holding(value)


def _words(word: str, folder: Path) -> str:
    """Return a place, or several joined by "+", with whole paths; any other word as it is."""
    if word.startswith(FILE):
        return FILE + plugins.whole_path(word.removeprefix(FILE), folder)
    return "+".join(_phase(one, folder) for one in word.split("+"))


def _phase(text: str, folder: Path) -> str:
    """Return a place, and a client wrapper in the options behind it, with whole paths."""
    before, mark, wrapper = plugins.resolved(text, folder).partition(f"{WRAPPER}=")
    return before + mark + (plugins.resolved(wrapper, folder) if mark else "")


def with_what_columns_need(tree: dict[str, Located]) -> None:
    """Set what makes the columns that are named: metrics of the user's own, and diagnostics."""
    named = [str(one.value) for one in entries_of(tree, "metrics")]
    settings = dict(part_of(tree, "settings"))
    if any(name in DIAGNOSTICS for name in named):
        settings.setdefault("diagnostics", Located(True, tree["metrics"].place))
    if START_LOSS in named:
        settings.setdefault("start-loss", Located(True, tree["metrics"].place))
    own = [n for n in named if not n.startswith(METRIC) and plugins.is_place("metric", n)]
    if own:
        given = str(settings[METRICS].value).split() if METRICS in settings else []
        every = " ".join(dict.fromkeys([*given, *own]))
        settings[METRICS] = Located(every, tree["metrics"].place)
    tree["settings"] = tree["settings"].holding(settings)
