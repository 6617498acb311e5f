"""`--scale small`: a recipe cut to what two CPU cores finish in minutes."""

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from coprefl_flwr.experiments.starts import own_settings, settings_of
from coprefl_flwr.experiments.yaml_file import Located
from coprefl_flwr.settings import Settings, Value

FULL, SMALL = "full", "small"

CLIENTS, ROUNDS = 20, 6
"""Most clients and rounds; participants, and the rounds of methods, are cut in proportion."""

AT_MOST = {"tasks": 2, "task-rounds": 5, "task-clients": 5}

CUTS: dict[str, Value] = {
    "dataset": "glyphs",
    "data-dir": "",
    "model": "femnist-cnn",
    "downstream-classes": "20",
    "pretraining-classes": "",
    "local-epochs": "",
    "local-steps": 5,
    "learning-rate": 0.1,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "task-local-epochs": "",
    "task-local-steps": 5,
    "task-learning-rate": 0.05,
}
"""What stands in the place of the paper's data, model and training; it is not searched either."""

_OPTION = re.compile(r"\b(rounds|participants)=(\d+)")
Change = Callable[[Any], Any]


def cut(tree: Mapping[str, Located], name: str) -> dict[str, Located]:
    """Return the recipe cut down; its key `scale` says what was done."""
    place = f"{name}, --scale small"
    settings = dict(tree["settings"].mapping("settings")) if "settings" in tree else {}
    changes = _changes(settings)
    defaults = Settings().to_config()
    for key, change in changes.items():
        settings[key] = _each(settings.get(key, Located(defaults[key], place)), change)
    settings |= {key: Located(value, place) for key, value in _cuts(tree).items()}
    own = tree["small"].mapping("small") if "small" in tree else {}
    settings |= own
    parts = {key: entry for key, entry in tree.items() if key != "small"}
    parts["settings"] = Located(settings, parts["settings"].place if "settings" in parts else name)
    if "seeds" in parts:
        parts["seeds"] = Located(parts["seeds"].listed("seeds")[:1], parts["seeds"].place)
    for key in ("methods", "search"):
        if key in parts:
            parts[key] = _cut_methods(parts[key], changes)
    if parts.get("search", Located(None, "")).value == {}:
        del parts["search"]
    if ":" in str(parts["reference"].value if "reference" in parts else ""):
        del parts["reference"]  # One of the values that are shown, which may be gone.
    if "paper" in parts:
        parts["paper"] = _cut_where(parts["paper"], changes, {*CUTS, *own})
    parts["scale"] = Located(_account(settings), place)
    return parts


def _cuts(tree: Mapping[str, Located]) -> dict[str, Value]:
    """Return the cuts, without those that no method of the recipe has."""
    text = str(tree["methods"].plain()) if "methods" in tree else ""
    has = {key for name in re.findall(r"[a-z][a-z-]+", text) for key in settings_of(name)}
    return {key: v for key, v in CUTS.items() if key in has or key not in own_settings()}


def _changes(settings: Mapping[str, Located]) -> dict[str, Change]:
    """Return how each number is cut: in proportion to the most clients and rounds, or at most."""
    clients = min(1.0, CLIENTS / _largest(settings, "clients"))
    rounds = min(1.0, ROUNDS / _largest(settings, "rounds"))
    factors = {"clients": clients, "participants": clients}
    factors |= {"rounds": rounds, "test-every": rounds}
    in_proportion = {key: functools.partial(_part, factor) for key, factor in factors.items()}
    return in_proportion | {key: functools.partial(min, most) for key, most in AT_MOST.items()}


def _part(factor: float, value: float) -> int:
    """Return a part of a number, rounded up but for what floating point added."""
    return math.ceil(value * factor - 1e-9)


def _largest(settings: Mapping[str, Located], key: str) -> float:
    default = Settings().to_config()[key]
    entries = settings[key].items() if key in settings else [Located(default, "")]
    return max((e.value for e in entries if isinstance(e.value, int | float)), default=1) or 1


def _each(entry: Located, change: Change) -> Located:
    """Return an entry with each of its numbers changed; what becomes equal stands once."""
    found: dict[Any, Located] = {}
    for one in entry.items():
        value = change(one.value) if isinstance(one.value, int | float) else one.value
        found.setdefault(value, Located(value, one.place))
    values = list(found.values())
    return Located(values, entry.place) if isinstance(entry.value, list) else values[0]


def _cut_methods(entry: Located, changes: Mapping[str, Change]) -> Located:
    """Cut rounds and participants within methods, and each searched list to its first two."""
    if isinstance(entry.value, str):
        text = _OPTION.sub(lambda m: f"{m[1]}={changes[m[1]](int(m[2]))}", entry.value)
        return Located(text, entry.place)
    if isinstance(entry.value, dict):
        inner = {}
        for key, value in entry.value.items():
            if key in changes:
                inner[key] = _each(value, changes[key])
            elif key not in CUTS:
                inner[key] = _cut_methods(_first_two(value), changes)
        return Located(inner, entry.place)
    if isinstance(entry.value, list):
        return Located([_cut_methods(one, changes) for one in entry.value], entry.place)
    return entry


def _first_two(entry: Located) -> Located:
    """Return the first two values of a searched setting."""
    return Located(entry.value[:2], entry.place) if isinstance(entry.value, list) else entry


def _cut_where(entry: Located, changes: Mapping[str, Change], replaced: set[str]) -> Located:
    """Let the paper's tables stand beside the combinations that take their place."""
    if isinstance(entry.value, list):
        return Located([_cut_where(one, changes, replaced) for one in entry.value], entry.place)
    if not isinstance(entry.value, dict):
        return entry
    inner = {}
    for key, value in entry.value.items():
        if key != "where" or not isinstance(value.value, dict):
            inner[key] = value if key == "rows" else _cut_where(value, changes, replaced)
            continue
        left = {
            name: _each(one, changes[name]) if name in changes else one
            for name, one in value.value.items()
            if name not in replaced
        }
        if left:
            inner[key] = Located(left, value.place)
    return Located(inner, entry.place)


def _account(settings: Mapping[str, Located]) -> str:
    """Return what the report says of the cut."""

    def shown(key: str) -> str:
        return ", ".join(str(entry.value) for entry in settings[key].items())

    return (
        f"Cut down (--scale small): {shown('dataset')} in the place of the paper's data, "
        f"{shown('model')}, {shown('rounds')} rounds, {shown('clients')} clients, "
        f"{shown('participants')} of them a round, {shown('tasks')} tasks of "
        f"{shown('task-rounds')} rounds on {shown('task-clients')} clients, one seed, two values "
        "of what is searched. The figures of the paper stand beside it for orientation only."
    )
