"""`--scale small`: a recipe cut to what two CPU cores finish in minutes."""

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from coprefl_flwr.recipes.personal_runs import personalised
from coprefl_flwr.recipes.yaml_file import Located
from coprefl_flwr.report.columns import ACCURACY_OF
from coprefl_flwr.studies.personal_data import PIXELS, SCRATCH
from coprefl_flwr.studies.settings import Settings, Value
from coprefl_flwr.studies.starts import own_settings, settings_of

FULL, SMALL = "full", "small"

CLIENTS, ROUNDS, PERSONAL_ROUNDS = 20, 6, 20
"""Most clients and rounds; participants, and the rounds of methods, are cut in proportion.

A personalised run trains a small head on few samples: its rounds take less, and it needs more.
"""

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

PERSONAL_CUTS: dict[str, Value] = {
    "dataset": "glyphs",
    "data-dir": "",
    "image-size": 0,
    "model": "femnist-cnn",
    "train-per-class": 5,
    "test-per-class": 10,
}
"""The same in a personalised recipe, whose datasets and backbones are replaced one by one."""

_OPTION = re.compile(r"\b(rounds|participants)=(\d+)")
Change = Callable[[Any], Any]


def cut(tree: Mapping[str, Located], name: str) -> dict[str, Located]:
    """Return the recipe cut down; its key `scale` says what was done."""
    place = f"{name}, --scale small"
    settings = dict(tree["settings"].mapping("settings")) if "settings" in tree else {}
    personal = personalised(tree)
    changes = _personal_changes(settings) if personal else _changes(settings)
    cuts = PERSONAL_CUTS if personal else _cuts(tree)
    defaults = Settings().to_config()
    for key, change in changes.items():
        settings[key] = _each(settings.get(key, Located(defaults[key], place)), change)
    settings |= {key: Located(value, place) for key, value in cuts.items()}
    own = tree["small"].mapping("small") if "small" in tree else {}
    settings |= own
    parts = {key: entry for key, entry in tree.items() if key != "small"}
    parts["settings"] = Located(settings, parts["settings"].place if "settings" in parts else name)
    if "seeds" in parts:
        parts["seeds"] = Located(parts["seeds"].listed("seeds")[:1], parts["seeds"].place)
    for key in ("methods", "search"):
        if key in parts:
            parts[key] = _cut_methods(parts[key], changes, PERSONAL_CUTS if personal else CUTS)
    if parts.get("search", Located(None, "")).value == {}:
        del parts["search"]
    if ":" in str(parts["reference"].value if "reference" in parts else ""):
        del parts["reference"]  # One of the values that are shown, which may be gone.
    if "paper" in parts:
        replaced = {*(PERSONAL_CUTS if personal else CUTS), *own}
        parts["paper"] = _once(_cut_where(parts["paper"], changes, replaced))
    if personal and "metrics" in parts:
        parts["metrics"] = _of_all(parts["metrics"])
    account = _personal_account(settings) if personal else _account(settings)
    parts["scale"] = Located(account, place)
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
    return in_proportion | {key: functools.partial(_at_most, most) for key, most in AT_MOST.items()}


def _personal_changes(settings: Mapping[str, Located]) -> dict[str, Change]:
    """Return the same of a personalised recipe: what it sets of these."""
    most = {"personal-clients": CLIENTS, "rounds": PERSONAL_ROUNDS}
    factors = {key: min(1.0, n / _largest(settings, key)) for key, n in most.items()}
    factors["test-every"] = factors["rounds"]
    changes: dict[str, Change] = {key: functools.partial(_part, f) for key, f in factors.items()}
    changes |= {"personal-datasets": _embedded, "backbones": _none_frozen}
    return {key: change for key, change in changes.items() if key in {*settings, "rounds"}}


def _embedded(names: Any) -> str:
    """Return the embedded data that takes the place of one dataset, or of several."""
    several = len(str(names).split()) > 1 or str(names).endswith("@*")
    return "glyphs:domains@*" if several else "glyphs"


def _none_frozen(names: Any) -> str:
    """Return what takes the place of backbones."""
    return SCRATCH if str(names).strip() == SCRATCH else PIXELS


def _part(factor: float, value: Any) -> Any:
    """Return a part of a number, rounded up but for what floating point added."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return value
    return math.ceil(value * factor - 1e-9)


def _at_most(most: int, value: Any) -> Any:
    """Return a number, or the most that it may be."""
    return min(most, value) if isinstance(value, int | float) else value


def _largest(settings: Mapping[str, Located], key: str) -> float:
    default: Any = Settings().to_config()[key]
    entries = settings[key].items() if key in settings else [Located(default, "")]
    numbers = [e.value for e in entries if isinstance(e.value, int | float)]
    return max(filter(math.isfinite, numbers), default=1) or 1


def _each(entry: Located, change: Change) -> Located:
    """Return an entry with each of its values changed; what becomes equal stands once."""
    found: dict[Any, Located] = {}
    for one in entry.items():
        value = change(one.value)
        found.setdefault(str(value), Located(value, one.place))
    values = list(found.values())
    return Located(values, entry.place) if isinstance(entry.value, list) else values[0]


def _option(changes: Mapping[str, Change], found: re.Match[str]) -> str:
    """Return "rounds=20" within a method, cut as the setting of its name is."""
    key, value = found[1], int(found[2])
    return f"{key}={changes[key](value) if key in changes else value}"


def _cut_methods(
    entry: Located, changes: Mapping[str, Change], replaced: Mapping[str, Value]
) -> Located:
    """Cut rounds and participants within methods, and each searched list to its first two."""
    if isinstance(entry.value, str):
        return Located(_OPTION.sub(functools.partial(_option, changes), entry.value), entry.place)
    if isinstance(entry.value, dict):
        inner = {}
        for key, value in entry.value.items():
            if key in changes:
                inner[key] = _each(value, changes[key])
            elif key not in replaced:
                inner[key] = _cut_methods(_first_two(value), changes, replaced)
        return Located(inner, entry.place)
    if isinstance(entry.value, list):
        cut_down = [_cut_methods(one, changes, replaced) for one in entry.value]
        return Located(cut_down, entry.place)
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


def _once(paper: Located) -> Located:
    """Leave out a table of the paper whose combination another one stands beside now."""
    if not isinstance(paper.value, dict) or "tables" not in paper.value:
        return paper
    tables = paper.value["tables"]
    found: dict[str, Located] = {}
    for table in tables.items():
        where = table.value.get("where") if isinstance(table.value, dict) else None
        found.setdefault(str(where.plain()) if where else "", table)
    kept = Located(list(found.values()), tables.place)
    return Located(paper.value | {"tables": kept}, paper.place)


def _of_all(metrics: Located) -> Located:
    """Leave out the accuracies on single datasets, which are others now."""
    left = [one for one in metrics.items() if not str(one.value).startswith(ACCURACY_OF)]
    return Located(left or "accuracy", metrics.place)


def _personal_account(settings: Mapping[str, Located]) -> str:
    """Return what the report says of the cut of a personalised recipe."""
    names = ["personal-datasets" if "personal-datasets" in settings else "dataset"]
    names += [key for key in ("backbones", "rounds", "personal-clients") if key in settings]
    said = [f"{key} {', '.join(str(one.value) for one in settings[key].items())}" for key in names]
    return (
        f"Cut down (--scale small), in the place of the paper's: {'; '.join(said)}; one seed, two "
        "values of what is searched. The figures of the paper stand beside it for orientation only."
    )


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
