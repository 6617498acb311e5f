"""`--scale small`: a recipe cut to what two CPU cores finish in minutes.

Numbers of clients and rounds are cut in proportion, so that a comparison keeps its shape; data,
networks and training, for which there are no proportions, are replaced by an overlay. The recipe's
own part `small:` comes last.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coprefl_flwr.methods import short_forms
from coprefl_flwr.options import Value
from coprefl_flwr.recipes.entries import named_method, part_of, study_of
from coprefl_flwr.recipes.runs import ROLES
from coprefl_flwr.recipes.yaml_file import Located
from coprefl_flwr.report.columns import ACCURACY_OF
from coprefl_flwr.studies.personal_data import PIXELS, SCRATCH
from coprefl_flwr.studies.phases import keys_of
from coprefl_flwr.studies.settings import STARTS, Settings

FULL, SMALL = "full", "small"

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Cut:
    """How the recipes of one kind of study are made small.

    Parameters
    ----------
    most : Mapping[str, tuple[int, tuple[str, ...]]]
        Setting -> its largest value, and the settings that are cut in the same proportion.
    at_most : Mapping[str, int]
        Settings that are cut to a number if they are larger.
    overlay : Mapping[str, Value]
        What stands in the place of the paper's data, model and training; it is not searched either.
    replaced : Mapping[str, Change]
        Settings whose values are replaced one by one, where a recipe sets them.
    """

    most: Mapping[str, tuple[int, tuple[str, ...]]]
    overlay: Mapping[str, Value]
    at_most: Mapping[str, int] = field(default_factory=dict)
    replaced: Mapping[str, Change] = field(default_factory=dict)

    def changes(self, settings: Mapping[str, Located]) -> dict[str, Change]:
        """Return how the values of each setting are changed in a recipe with these settings."""
        found: dict[str, Change] = {}
        for key, (most, alike) in self.most.items():
            part = functools.partial(_part, min(1.0, most / _largest(settings, key)))
            found |= dict.fromkeys((key, *alike), part)
        found |= {key: functools.partial(_at_most, n) for key, n in self.at_most.items()}
        return found | dict(self.replaced)


def _part(factor: float, value: Any) -> Any:
    """Return a number times `factor`, rounded up; what is no finite number stays."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return value
    return math.ceil(value * factor - 1e-9)  # 35 / 5 is 7, whatever floating point makes of it.


def _at_most(most: int, value: Any) -> Any:
    """Return the smaller of two numbers; what is no number stays."""
    return min(most, value) if isinstance(value, int | float) else value


def _largest(settings: Mapping[str, Located], key: str) -> float:
    default: Any = Settings().to_config()[key]
    entries = settings[key].items() if key in settings else [Located(default, "")]
    numbers = [e.value for e in entries if isinstance(e.value, int | float)]
    return max(filter(math.isfinite, numbers), default=1) or 1


def _embedded(names: Any) -> str:
    """Return the embedded data that takes the place of one dataset, or of several."""
    several = len(str(names).split()) > 1 or str(names).endswith("@*")
    return "glyphs:domains@*" if several else "glyphs"


def _none_frozen(names: Any) -> str:
    """Return what takes the place of backbones."""
    return SCRATCH if str(names).strip() == SCRATCH else PIXELS


_STARTS = Cut(
    most={"clients": (20, ("participants",)), "rounds": (6, ("test-every",))},
    at_most={"tasks": 2, "task-rounds": 5, "task-clients": 5},
    overlay={
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
    },
)
_PERSONALISED = Cut(
    # It trains a small head on few samples: its rounds take less, and it needs more.
    most={"personal-clients": (20, ()), "rounds": (20, ("test-every",))},
    overlay={
        "dataset": "glyphs",
        "data-dir": "",
        "image-size": 0,
        "model": "femnist-cnn",
        "train-per-class": 5,
        "test-per-class": 10,
    },
    replaced={"personal-datasets": _embedded, "backbones": _none_frozen},
)


def cut(tree: Mapping[str, Located], name: str) -> dict[str, Located]:
    """Return the recipe cut down; its key `scale` says what was done."""
    place, kind = f"{name}, --scale small", study_of(tree)
    how = _STARTS if kind == STARTS else _PERSONALISED
    parts = {key: entry for key, entry in tree.items() if key != "small"}
    settings, own = dict(part_of(tree, "settings")), part_of(tree, "small")
    changes, defaults = how.changes(settings), Settings().to_config()
    for key, change in changes.items():
        if kind == STARTS or key in settings or key == "rounds":
            settings[key] = _each(settings.get(key, Located(defaults[key], place)), change)
    has = _keys_of_methods(tree, ROLES[kind])
    overlay = {key: v for key, v in how.overlay.items() if key in has or key not in short_forms()}
    settings |= {key: Located(value, place) for key, value in overlay.items()}
    settings |= own
    parts["settings"] = Located(settings, parts["settings"].place if "settings" in parts else name)
    if "seeds" in parts:
        parts["seeds"] = parts["seeds"].holding(parts["seeds"].listed("seeds")[:1])
    for key in ("methods", "search"):
        if key in parts:
            parts[key] = _cut_methods(parts[key], changes, how.overlay)
    if parts.get("search", Located(None, "")).value == {}:
        del parts["search"]
    if ":" in str(parts["reference"].value if "reference" in parts else ""):
        del parts["reference"]  # One of the values that are shown, which may be gone.
    if "paper" in parts:
        parts["paper"] = _cut_paper(parts["paper"], changes, {*how.overlay, *own})
    if kind != STARTS and "metrics" in parts:
        parts["metrics"] = _without_domains(parts["metrics"])
    account = _account(settings) if kind == STARTS else _personal_account(settings)
    parts["scale"] = Located(account, place)
    return parts


def _keys_of_methods(tree: Mapping[str, Located], role: str) -> set[str]:
    """Return the settings that some method of the recipe has."""
    entries = tree["methods"].items() if "methods" in tree else ()
    names = [str(named_method(entry)[1].value) for entry in entries]
    return {key for name in names for key in keys_of(name, role)}


def _each(entry: Located, change: Change) -> Located:
    """Return an entry with each of its values changed; values that become equal stand once."""
    found: dict[str, Located] = {}
    for one in entry.items():
        value = change(one.value)
        found.setdefault(str(value), one.holding(value))
    values = list(found.values())
    return entry.holding(values) if isinstance(entry.value, list) else values[0]


def _cut_methods(
    entry: Located, changes: Mapping[str, Change], replaced: Mapping[str, Value]
) -> Located:
    """Cut rounds and participants within methods, and each searched list to its first two."""
    value: Any = entry.value
    if isinstance(value, str):
        value = _cut_options(value, changes)
    elif isinstance(value, list):
        value = [_cut_methods(one, changes, replaced) for one in value]
    elif isinstance(value, dict):
        value = {
            key: _each(one, changes[key])
            if key in changes
            else _cut_methods(_first_two(one), changes, replaced)
            for key, one in value.items()
            if key in changes or key not in replaced
        }
    return entry.holding(value)


def _cut_options(method: str, changes: Mapping[str, Change]) -> str:
    """Cut the numbers within a method such as "cyclic:rounds=100+fedavg" like the settings."""

    def shown(pair: str) -> str:
        key, equals, value = pair.partition("=")
        cut_down = key in changes and value.isdigit()
        return f"{key}={changes[key](int(value))}" if cut_down else key + equals + value

    phases = [phase.partition(":") for phase in method.split("+")]
    return "+".join(
        name + colon + ",".join(map(shown, options.split(","))) for name, colon, options in phases
    )


def _first_two(entry: Located) -> Located:
    """Return the first two values of a searched setting."""
    return entry.holding(entry.value[:2]) if isinstance(entry.value, list) else entry


def _cut_paper(entry: Located, changes: Mapping[str, Change], replaced: set[str]) -> Located:
    """Say which combination each of the paper's tables stands beside now; one table for each."""
    given = dict(entry.mapping("paper"))
    found: dict[str, Located] = {}
    for table in given["tables"].listed("tables") if "tables" in given else ():
        parts = dict(table.mapping("a table"))
        where = {
            name: _each(one, changes[name]) if name in changes else one
            for name, one in part_of(parts, "where").items()
            if name not in replaced
        }
        if where:
            parts["where"] = parts["where"].holding(where)
        else:
            parts.pop("where", None)
        found.setdefault(str(Located(where, "").plain()), table.holding(parts))
    if found:
        given["tables"] = given["tables"].holding(list(found.values()))
    return entry.holding(given)


def _without_domains(metrics: Located) -> Located:
    """Leave out the accuracies on single datasets: the cut replaces the datasets."""
    left = [one for one in metrics.items() if not str(one.value).startswith(ACCURACY_OF)]
    return metrics.holding(left or "accuracy")


_REST = "The figures of the paper stand beside it for orientation only."


def _personal_account(settings: Mapping[str, Located]) -> str:
    """Return what the report says of the cut of a personalised recipe."""
    names = ["personal-datasets" if "personal-datasets" in settings else "dataset"]
    names += [key for key in ("backbones", "rounds", "personal-clients") if key in settings]
    said = "; ".join(f"{key} {_values(settings, key)}" for key in names)
    return (
        f"Cut down (--scale small), in the place of the paper's: {said}; one seed, two values of "
        f"what is searched. {_REST}"
    )


def _account(settings: Mapping[str, Located]) -> str:
    """Return what the report says of the cut."""
    shown = functools.partial(_values, settings)
    return (
        f"Cut down (--scale small): {shown('dataset')} in the place of the paper's data, "
        f"{shown('model')}, {shown('rounds')} rounds, {shown('clients')} clients, "
        f"{shown('participants')} of them a round, {shown('tasks')} tasks of "
        f"{shown('task-rounds')} rounds on {shown('task-clients')} clients, one seed, two values "
        f"of what is searched. {_REST}"
    )


def _values(settings: Mapping[str, Located], key: str) -> str:
    return ", ".join(str(entry.value) for entry in settings[key].items())
