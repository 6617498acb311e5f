"""Entries: starts of others, which startbench measures by its rule (see README.md).

An entry is a YAML file such as `../own_parts/entry.yml`. `options` are set, and `search` has the
values of options that are chosen, at most eight trials in all, by the package's own search.
"""

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.methods import is_built_in
from coprefl_flwr.models.weights import is_external
from coprefl_flwr.recipes.load import read_recipe
from coprefl_flwr.recipes.overlays import with_whole_paths
from coprefl_flwr.recipes.recipe import Recipe
from coprefl_flwr.recipes.search import check_runs, table_rows
from coprefl_flwr.studies.costs import cost
from coprefl_flwr.studies.method import Method

KEYS = {"name": str, "method": str, "options": dict, "search": dict, "settings": list, "about": str}
"""By key of an entry's file, the type of its value; name, method and about are needed."""
TRIALS, MORE = 8, 1.03
"""An entry's most trials, and most gradients relative to the reference's."""


class Entry(NamedTuple):
    """A start of somebody else's; its method has absolute paths."""

    name: str
    method: str
    about: str
    options: Mapping[str, Any] = {}
    search: Mapping[str, list[Any]] = {}
    settings: Sequence[str] = ()

    def row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entry as a row of a recipe, with these values of its searched options."""
        return {self.name: {"method": self.method, **self.options, **values}}


def read_entry(path: Path, settings: tuple[str, ...]) -> Entry:
    """Read an entry's file; a SettingsError in one line if its form is wrong."""
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(given, dict):
        raise SettingsError(f"{path}: an entry is a mapping (key: value)")
    for key, value in given.items():
        if key not in KEYS:
            raise SettingsError(f"{path}: {unknown('key', str(key), KEYS)}")
        if not isinstance(value, KEYS[key]):
            raise SettingsError(f"{path}: {key}: must be a {KEYS[key].__name__}")
    if missing := [key for key in ("name", "method", "about") if key not in given]:
        raise SettingsError(f"{path}: {missing[0]}: is missing")
    for name in given.get("settings", ()):
        if name not in settings:
            raise SettingsError(f"{path}: settings: {unknown('setting', str(name), settings)}")
    if (trials := math.prod(len(values) for values in given.get("search", {}).values())) > TRIALS:
        raise SettingsError(f"{path}: search: {trials} trials; at most {TRIALS} are allowed")
    whole = with_whole_paths({"method": given["method"].replace(" ", "")}, path.parent.resolve())
    return Entry(**{"settings": list(settings), **given, **whole})


def changes(path: Path, entry: Entry, values: Mapping[str, Any] | None) -> list[str]:
    """Return the changes of a setting's recipe that measure an entry, as options of a command.

    With `values`, the chosen ones, the entry is a row next to random weights and the reference.
    Without them, it is the only row, and its values are searched.
    """
    if values is None:
        return _set([entry.row(entry.search)], entry.name)
    recipe = read_recipe(path, protocol="fresh")
    known = _by_label(recipe)
    if entry.name in known:
        raise SettingsError(f"{path}: has a row '{entry.name}' already: choose another name")
    return _set([known["random"], known[recipe.reference], entry.row(values)], recipe.reference)


def only(path: Path, protocol: str, rows: Sequence[str]) -> list[str] | None:
    """Return the changes of a recipe after which it has only these rows; none if `rows` is empty.

    Where nothing is searched, the reference is also kept. The result is None if the protocol
    searches values, but none of these rows.
    """
    if not rows:
        return []
    recipe = read_recipe(path, protocol=protocol)
    known, searched = _by_label(recipe), {r.label for r in recipe.rows if len(r.trials()) > 1}
    for row in rows:
        if row not in known:
            raise SettingsError(f"--rows: {path}: {unknown('row', row, known)}")
    kept = [row for row in known if row in (searched & {*rows} if searched else {*rows})]
    if searched:
        return _set([known[row] for row in kept], kept[0]) if kept else None
    kept = [row for row in known if row in {recipe.reference, *rows}]
    return _set([known[row] for row in kept], recipe.reference)


def _by_label(recipe: Recipe) -> dict[str, Any]:
    rows = recipe.effective["methods"]
    return {row if isinstance(row, str) else next(iter(row)): row for row in rows}


def _set(rows: Sequence[Any], reference: str) -> list[str]:
    pairs = {"methods": rows, "reference": reference}
    return [part for k, v in pairs.items() for part in ("--set", f"{k}={json.dumps(v)}")]


def check(path: Path, entry: Entry) -> str:
    """Check an entry in a setting, and return a line about its costs; a SettingsError if not.

    Its options, its file or code, and its data are read; its gradients are counted.
    """
    first = {key: values[0] for key, values in entry.search.items()}
    trials = [changes(path, entry, None)] if entry.search else []
    for given in [*trials, changes(path, entry, first)]:
        protocol, seed = ("tune", 900) if given in trials else ("fresh", 1000)
        recipe = read_recipe(path, [*given[1::2], f"seeds=[{seed}]"], protocol=protocol)
        check_runs(recipe)
    runs = {row.label: row.reported(row.trials()[0])[0] for row in table_rows(recipe)}
    gradients, most = (cost(runs[n].main).gradients for n in (entry.name, recipe.reference))
    if gradients > MORE * most:
        raise SettingsError(
            f"{path}: {entry.name} computes {gradients / most:.2f} times the gradients of "
            f"{recipe.reference}; at most {MORE} are allowed: set fewer local-steps"
        )
    counted = math.isfinite(gradients)
    return f"{gradients / most:.2f} times {recipe.reference}'s" if counted else "not known"


def check_code(entry: Entry) -> None:
    """Run `coprefl check-method` on each method of an entry that is not of the package."""
    for phase in Method.parse(entry.method).phases:
        known = phase.name == "random" or is_built_in(phase.name) or is_external(phase.name)
        if not known and subprocess.run(["coprefl", "check-method", phase.name]).returncode:
            raise SettingsError(f"{entry.name}: {phase.name} breaks a rule of methods, see above")
