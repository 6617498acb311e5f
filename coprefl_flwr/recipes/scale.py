"""`--scale small`: a recipe cut to what two CPU cores finish in minutes.

Numbers of clients and rounds are cut in proportion, so that a comparison keeps its shape; data,
networks and training, for which there are no proportions, are replaced by an overlay. The recipe's
own part `small:` comes last.
"""

import functools
import math
from collections.abc import Callable, Container, Mapping
from typing import Any

from coprefl_flwr.methods import PERSONALISED, short_forms
from coprefl_flwr.named import Named
from coprefl_flwr.options import Value
from coprefl_flwr.recipes.entries import named_method, study_of, with_tables
from coprefl_flwr.recipes.runs import ROLES
from coprefl_flwr.recipes.yaml_file import Located, entries_of, part_of
from coprefl_flwr.report.columns import ACCURACY_OF
from coprefl_flwr.studies.personal_data import PIXELS, SCRATCH
from coprefl_flwr.studies.phases import keys_of
from coprefl_flwr.studies.settings import STARTS, Settings

FULL, SMALL = "full", "small"

Change = Callable[[Any], Any]

OVERLAYS: Mapping[str, Mapping[str, Value]] = {
    STARTS: {
        "dataset": "glyphs", "data-dir": "", "model": "femnist-cnn",
        "downstream-classes": "20", "pretraining-classes": "",
        "local-epochs": "", "local-steps": 5,
        "learning-rate": 0.1, "momentum": 0.0, "weight-decay": 0.0,
        "task-local-epochs": "", "task-local-steps": 5, "task-learning-rate": 0.05,
    },
    PERSONALISED: {
        "dataset": "glyphs", "data-dir": "", "image-size": 0, "model": "femnist-cnn",
        "train-per-class": 5, "test-per-class": 10,
    },
}  # fmt: skip
"""By kind of study, what replaces the paper's data, model and training, and is not searched."""

_REST = (
    "one seed, two values of what is searched. The figures of the paper stand beside it for "
    "orientation only."
)
_ACCOUNT = (
    "Cut down (--scale small): {dataset} in the place of the paper's data, {model}, {rounds} "
    "rounds, {clients} clients, {participants} of them a round, {tasks} tasks of {task-rounds} "
    f"rounds on {{task-clients}} clients, {_REST}"
)


def cut(tree: Mapping[str, Located], name: str) -> dict[str, Located]:
    """Return the recipe cut down; its key `scale` says what was done."""
    place, kind = f"{name}, --scale small", study_of(tree)
    parts = {key: entry for key, entry in tree.items() if key != "small"}
    settings, own = dict(part_of(tree, "settings")), part_of(tree, "small")
    known = {key: Located(value, place) for key, value in Settings().to_config().items()} | settings
    changes, overlay = _changes(kind, known), OVERLAYS[kind]
    for key, change in changes.items():
        if kind == STARTS or key in settings or key == "rounds":
            settings[key] = _each(known[key], change)
    methods = [named_method(entry)[1].value for entry in entries_of(tree, "methods")]
    has = {key for method in methods for key in keys_of(method, ROLES[kind])}
    for key, value in overlay.items():
        if key in has or key not in short_forms():
            settings[key] = Located(value, place)
    parts["settings"] = tree.get("settings", Located({}, name)).holding(settings | dict(own))
    if "seeds" in parts:
        parts["seeds"] = parts["seeds"].holding(parts["seeds"].listed("seeds")[:1])
    if "methods" in parts:
        found = [_cut_method(one, changes, overlay) for one in entries_of(parts, "methods")]
        parts["methods"] = parts["methods"].holding(found)
    if "search" in parts:
        parts["search"] = parts["search"].holding(
            _cut_options(part_of(parts, "search"), changes, overlay)
        )
    if "search" in parts and parts["search"].value == {}:
        del parts["search"]
    if "reference" in parts and ":" in str(parts["reference"].value):
        del parts["reference"]  # One of the values that are shown, which may be gone.
    if "paper" in parts:
        parts["paper"] = _cut_paper(parts["paper"], changes, {*overlay, *own})
    if kind != STARTS and "metrics" in parts:
        # The accuracies on single datasets: the cut replaces the datasets.
        left = [m for m in parts["metrics"].items() if not str(m.value).startswith(ACCURACY_OF)]
        parts["metrics"] = parts["metrics"].holding(left or "accuracy")
    parts["scale"] = Located(_account(kind, parts["settings"].value), place)
    return parts


def _account(kind: str, settings: Mapping[str, Located]) -> str:
    """Return what the report says of the cut."""
    values = {
        k: ", ".join(str(one.value) for one in entry.items()) for k, entry in settings.items()
    }
    if kind == STARTS:
        return _ACCOUNT.format_map(values)
    names = ["personal-datasets" if "personal-datasets" in settings else "dataset"]
    names += [key for key in ("backbones", "rounds", "personal-clients") if key in settings]
    said = "; ".join(f"{key} {values[key]}" for key in names)
    return f"Cut down (--scale small), in the place of the paper's: {said}; {_REST}"


# ---- how values are changed ----------------------------------------------------------------------


def _changes(kind: str, settings: Mapping[str, Located]) -> dict[str, Change]:
    """Return how the values of each setting are changed."""
    if kind == STARTS:
        return {
            **dict.fromkeys(("clients", "participants"), _share(settings["clients"], 20)),
            **dict.fromkeys(("rounds", "test-every"), _share(settings["rounds"], 6)),
            "tasks": functools.partial(_at_most, 2),
            **dict.fromkeys(("task-rounds", "task-clients"), functools.partial(_at_most, 5)),
        }
    return {  # It trains a small head on few samples: its rounds take less, and it needs more.
        "personal-clients": _share(settings["personal-clients"], 20),
        **dict.fromkeys(("rounds", "test-every"), _share(settings["rounds"], 20)),
        "personal-datasets": _embedded,
        "backbones": _none_frozen,
    }


def _share(entry: Located, most: int) -> Change:
    """Return what cuts an entry's largest number to `most`, and others in the same proportion."""
    values = [one.value for one in entry.items()]
    largest = max(filter(_is_finite, values), default=1) or 1
    return functools.partial(_part, min(1.0, most / largest))


def _part(factor: float, value: Any) -> Any:
    """Return a number times `factor`, rounded up; what is no finite number stays."""
    # 35 / 5 is 7, whatever floating point makes of it.
    return math.ceil(value * factor - 1e-9) if _is_finite(value) else value


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _at_most(most: int, value: Any) -> Any:
    """Return the smaller of two numbers; what is no number stays."""
    return min(most, value) if isinstance(value, int | float) else value


def _embedded(names: Any) -> str:
    """Return the embedded data that takes the place of one dataset, or of several."""
    several = len(str(names).split()) > 1 or str(names).endswith("@*")
    return "glyphs:domains@*" if several else "glyphs"


def _none_frozen(names: Any) -> str:
    """Return what takes the place of backbones."""
    return SCRATCH if str(names).strip() == SCRATCH else PIXELS


# ---- the parts of a recipe -----------------------------------------------------------------------


def _each(entry: Located, change: Change) -> Located:
    """Return an entry with each of its values changed; values that become equal stand once."""
    found: dict[str, Located] = {}
    for one in entry.items():
        value = change(one.value)
        found.setdefault(str(value), one.holding(value))
    values = list(found.values())
    return entry.holding(values) if isinstance(entry.value, list) else values[0]


def _cut_method(entry: Located, changes: Mapping[str, Change], replaced: Container[str]) -> Located:
    """Cut rounds and participants of a method's phases and options."""
    label, named, options = named_method(entry)

    def cut_phase(phase: Named) -> Named:
        own = {k: one for k, one in phase.options if k in changes and type(one) is int}
        return phase.having({key: changes[key](one) for key, one in own.items()})

    method = named.holding(named.value.changed(cut_phase))
    cut_options = _cut_options(options, changes, replaced)
    if method == named and cut_options == options:
        return entry
    return entry.holding({label: entry.holding({"method": method, **cut_options})})


def _cut_options(
    options: Mapping[str, Located], changes: Mapping[str, Change], replaced: Container[str]
) -> dict[str, Located]:
    """Cut options like the settings, and each other list that is searched to its first two."""
    return {
        key: _each(one, changes[key])
        if key in changes
        else one.holding(one.value[:2] if isinstance(one.value, list) else one.value)
        for key, one in options.items()
        if key in changes or key not in replaced
    }


def _cut_paper(entry: Located, changes: Mapping[str, Change], replaced: Container[str]) -> Located:
    """Say which combination each of the paper's tables stands beside now; one table for each."""
    found: dict[str, Located] = {}
    for table in entries_of(entry.mapping("paper"), "tables"):
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
    return with_tables(entry, list(found.values()))
