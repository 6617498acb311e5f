"""What the claims of a recipe need of its results: a small table, kept where these are not."""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.options import Value
from coprefl_flwr.recipes.collect import collect
from coprefl_flwr.recipes.listing import store_of
from coprefl_flwr.recipes.reading import read_recipe
from coprefl_flwr.recipes.recipe import Recipe
from coprefl_flwr.recipes.runs import ModelStore, Run
from coprefl_flwr.recipes.sweep import Contest
from coprefl_flwr.recipes.yaml_file import read_yaml
from coprefl_flwr.report.columns import STOPPED
from coprefl_flwr.report.comparison import Comparison, Measured
from coprefl_flwr.report.results import write_csv

logger = logging.getLogger("flwr.coprefl")

COLUMNS = ("recipe", "protocol", "where", "row", "metric", "seed", "value", "tasks")
"""Of the table: "value" is the mean over so many tasks of the seed, of a row of the recipe's table
for the compared settings "where"."""
_KEY = ["recipe", "protocol"]
AS_SET = "as set"
"""The protocol of a run that names none."""


def read_values(path: Path) -> pd.DataFrame:
    """Read the table; an empty one where there is no such file."""
    if not path.is_file():
        return pd.DataFrame(columns=list(COLUMNS))
    try:
        found = pd.read_csv(path, keep_default_na=False, dtype={"where": str, "row": str})
    except ValueError as error:
        raise SettingsError(f"{path} is no table: {' '.join(str(error).split())}") from error
    if tuple(found.columns) != COLUMNS:
        raise SettingsError(f"{path}: its columns must be {', '.join(COLUMNS)}")
    texts = found.select_dtypes(include=["object", "string"]).columns
    # As `write_csv` wrote what began as a formula does.
    found[texts] = found[texts].replace(r"^'(?=[=+\-@\t\r])", "", regex=True)
    return found.astype({"seed": int, "value": float, "tasks": int})


def write_values(path: Path, values: pd.DataFrame) -> None:
    """Write the table with ten digits."""
    write_csv(path, values.assign(value=[f"{value:.10g}" for value in values["value"]]))


def renewed(kept: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Return the table with what was found in the place of the same recipes and protocols."""
    anew = set(found[_KEY].itertuples(index=False, name=None))
    old = [key not in anew for key in kept[_KEY].itertuples(index=False, name=None)]
    both = [part for part in (kept[old], found) if len(part)]
    return pd.concat(both).sort_values(_KEY, kind="stable") if both else kept


def where_of(where: Iterable[tuple[str, Value]]) -> str:
    """Return compared settings as the table has them: "alpha=0.1, participants=30"."""
    return ", ".join(f"{key}={value}" for key, value in sorted(where))


def by_title(outputs: Path) -> dict[str, list[Path]]:
    """Return the recipes that were run into folders of `outputs`, by their titles."""
    found: dict[str, list[Path]] = {}
    for file in sorted(outputs.glob("*/recipe.yaml")):
        given = read_yaml(file).mapping("a recipe")
        if "title" in given:
            found.setdefault(str(given["title"].value), []).append(file)
    return found


def gathered(path: Path, metrics: Sequence[str], files: Iterable[Path]) -> pd.DataFrame:
    """Return the metrics of a recipe's runs, of every seed that is done.

    `files` are the recipes that were run under its title. One that was run at a small scale, or
    with other settings than the recipe and its protocol have, is left out with a line that says so.
    """
    found = []
    for file in files:
        try:
            kept = read_recipe(file)
            as_is = read_recipe(path, protocol=kept.protocol)
        except SettingsError as error:  # Written by another version, or its files were moved.
            logger.warning("%s is left out: %s", file.parent, error)
            continue
        other = _other(kept, as_is)
        if other:
            logger.warning("%s is left out: %s", file.parent, other)
            continue
        about = {"recipe": path.stem, "protocol": kept.protocol or AS_SET}
        found += [about | row for row in _rows(kept, store_of(file.parent), metrics)]
    table = pd.DataFrame(found, columns=list(COLUMNS))
    # The same seed may lie in two folders.
    return table.drop_duplicates([name for name in COLUMNS if name not in ("value", "tasks")])


def _other(kept: Recipe, recipe: Recipe) -> str:
    """Say why what was run is not the recipe, "" if it is."""
    if kept.notes:
        return "it was run at a small scale"
    pairs = {
        **{key: (kept.settings.get(key), recipe.settings.get(key)) for key in recipe.settings},
        **{key: (value, recipe.settings.get(key)) for key, value in kept.settings.items()},
        "methods": tuple([_method(one) for one in of.entrants] for of in (kept, recipe)),
        "select": (kept.select, recipe.select),
        "search-by": (kept.search_by, recipe.search_by),
        "search-trials": (kept.search_trials, recipe.search_trials),
    }
    for key, (here, there) in pairs.items():
        if key != "data-dir" and _by_name(here) != _by_name(there):
            return f"it has another value of {key} than the recipe"
    return ""


def _method(entrant: Any) -> tuple[Any, ...]:
    return entrant.label, entrant.method, tuple(entrant.options.items())


def _by_name(value: Any) -> Any:
    """Return a value with files by their names alone: they may lie elsewhere."""
    if isinstance(value, str):
        return " ".join(Path(word).name for word in value.split())
    return [_by_name(one) for one in value] if isinstance(value, list | tuple) else value


def _rows(recipe: Recipe, store: ModelStore, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row of the table for each value of the seeds that are done."""
    # Infinite for a start that never came to the loss at which it was to stop.
    columns = tuple(dict.fromkeys([*metrics, STOPPED]))
    recipe = replace(recipe, metrics=columns, figures=(), paper=())
    found = []
    tables = collect(recipe, store, {}).comparisons
    for combination, table in zip(recipe.combinations(), tables, strict=True):
        where = where_of((key, combination[key]) for key in recipe.compared)
        contests = [Contest(recipe, combination, entrant) for entrant in recipe.entrants]
        shown = [(one, chosen) for one in contests for chosen in one.shown(store)]
        for row, (contest, chosen) in zip(table.measured, shown, strict=True):
            about = {"where": where, "row": table.short_name(row)}
            runs: list[Run] = contest.reported(chosen) if chosen else []
            seeds = [run.settings.seed for run in runs if store.done(run)]
            found += [about | one for seed in seeds for one in _of_seed(table, row, seed)]
    return [one for one in found if one["metric"] in metrics]


def _of_seed(table: Comparison, row: Measured, seed: int) -> list[dict[str, Any]]:
    """Return the mean of each metric over a seed's tasks, and how many of them have it.

    Of a start that was to be compared at a loss to which it never came, each is infinite.
    """
    of_seed = [at for at, name in enumerate(table.seeds) if name == f"seed {seed}"]
    never = math.inf in [row.values[STOPPED][at] for at in of_seed if STOPPED in row.values]
    found = []
    for metric in table.metrics:
        values = [row.values[metric][at] for at in of_seed]
        values = [value for value in values if not math.isnan(value)]
        if values:
            mean = math.inf if never else sum(values) / len(values)
            found.append({"metric": metric, "seed": seed, "value": mean, "tasks": len(values)})
    return found
