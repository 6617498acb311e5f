"""List the contents of an output folder: recipes, their runs, and studies of `flwr run`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import read_json, read_text
from coprefl_flwr.recipes.overlays import read_file
from coprefl_flwr.recipes.recipe import Recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import table_rows
from coprefl_flwr.report.page import FOLDER, PAGE
from coprefl_flwr.studies.known_methods import Methods
from coprefl_flwr.studies.settings import STARTS
from coprefl_flwr.studies.store import ABOUT, RESULT, Store

RECIPE, PLACE, RUNS = "recipe.yaml", "models.txt", "runs.json"
"""Files of a recipe's folder: the recipe, the path of the store, and the list of its runs."""

FAILED = "failed.json"
"""File with the errors of failed runs, written when `coprefl run` has ended."""

REPORTED, VALIDATION, TRIAL = "reported", "validation", "trial"


def purposes(recipe: Recipe, runs: Sequence[Run]) -> dict[str, str]:
    """Return the purpose of each run by key: reported, or a run that chooses values.

    A short run that equals a full run, such as one of one round, has the full run's purpose.
    """
    kinds = dict.fromkeys((run.key for run in runs), VALIDATION)
    kinds |= {run.key: REPORTED for run in runs if run.settings.seed in recipe.seeds}
    row_trials = [(row, trial) for row in table_rows(recipe) for trial in row.trials()]
    whole = {run.key for row, trial in row_trials for run in row.selection_runs(trial)}
    trials = {run.key for row, trial in row_trials for run in row.short_runs(trial)}
    return kinds | dict.fromkeys(trials - whole, TRIAL)


def wanted_of(recipe: Recipe, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the content of the file `RUNS`: the key, purpose and stage folders of each run."""
    known = purposes(recipe, runs)
    return [{"run": run.key, "for": known[run.key], "stages": list(run.keys)} for run in runs]


def store_of(folder: Path) -> Store:
    """Return the store of a recipe's folder."""
    place = folder / PLACE
    return Store(folder / read_text(place).strip() if place.exists() else folder / "models")


def runs_in(models: Path) -> dict[Path, dict[str, Any]]:
    """Return the folders of all runs whose first stage is done, each with its provenance."""
    folders = [path.parent for path in sorted(models.glob(f"*/{RESULT}"))]
    abouts = {folder: folder / ABOUT for folder in folders if (folder / ABOUT).exists()}
    return {folder: read_json(file) for folder, file in abouts.items()}


def listing(outputs: Path) -> str:
    """Return the tables of recipes, runs and studies, one below the other, without empty tables.

    Raises a SettingsError if the folder does not exist.
    """
    if not outputs.is_dir():
        raise SettingsError(f"there is no folder {outputs}")
    folders = [path.parent for path in sorted(outputs.glob(f"*/{RECIPE}"))]
    roots = {folder: store_of(folder).root for folder in folders}
    shared = [outputs / "models", *roots.values()]
    stores = {root.resolve(): root for root in reversed(shared) if root.is_dir()}
    parts = [
        ("Recipes", ("folder", "state", "title"), [_recipe(folder) for folder in folders]),
        *(
            (
                f"Runs of recipes, in {root}",
                ("run", "method", "seed", "tasks", "used by"),
                _runs(root, _users(roots, root)),
            )
            for root in stores.values()
        ),
        ("Studies of flwr run", ("folder", "state", "seed", "method"), _studies(outputs)),
    ]
    return "\n\n".join(_table(*part) for part in parts if part[-1]) or f"no results in {outputs}"


def _recipe(folder: Path) -> list[str]:
    """Return a line of the table of recipes: folder, state and title."""
    try:
        state = _state(folder)
        tree, _ = read_file(folder / RECIPE)
        return [str(folder), state, tree["title"]]
    except SettingsError as error:  # Written by another version, or by hand.
        return [str(folder), "cannot be read", str(error)]


def _state(folder: Path) -> str:
    """Return "reported" for a finished recipe, or else the number of finished runs.

    A search may need fewer runs than are listed. This is known only when the search has ended.
    """
    if not (folder / RUNS).exists():
        return "not begun"
    ended = (folder / FAILED).exists() and not read_json(folder / FAILED)
    if ended and (folder / FOLDER / PAGE).exists():
        return "reported"
    store = store_of(folder).root
    runs = [run["stages"] for run in read_json(folder / RUNS)]
    done = [all((store / key / RESULT).exists() for key in keys) for keys in runs]
    return f"{sum(done)} of {len(done)} run{'s' * (len(done) != 1)}"


def _users(roots: Mapping[Path, Path], models: Path) -> dict[str, list[str]]:
    """Return the names of the recipes that use each run: {key: ["NAME", "NAME (validation)"]}.

    `roots` is the folder of the results of each recipe, by the recipe's folder.
    """
    users: dict[str, list[str]] = {}
    for folder, root in roots.items():
        if not (folder / RUNS).exists() or root.resolve() != models.resolve():
            continue
        for run in read_json(folder / RUNS):
            own = run["for"] == REPORTED
            name = folder.name if own else f"{folder.name} ({run['for']})"
            users.setdefault(run["run"], []).append(name)
    return users


def _runs(models: Path, users: Mapping[str, list[str]]) -> list[list[str]]:
    lines = []
    for folder, about in runs_in(models).items():
        settings, tasks = about["settings"], len(list(folder.glob(f"tasks/*/{RESULT}")))
        lines.append(
            [
                folder.name,
                Methods.read(settings["method"]).without_folders,
                str(settings["seed"]),
                str(tasks) if settings["study"] == STARTS else "personalised",
                # A run has no users if the folder of its recipe was removed.
                ", ".join(users.get(folder.name, ["no recipe in this folder"])),
            ]
        )
    return lines


def _studies(outputs: Path) -> list[list[str]]:
    lines = []
    for file in sorted(outputs.glob("*/settings.yaml")):
        try:
            settings = yaml.safe_load(read_text(file))
            about = [str(settings["seed"]), Methods.read(str(settings["method"])).without_folders]
        except (ValueError, KeyError, yaml.YAMLError):  # Written by another version, or by hand.
            about = ["?", "its settings.yaml cannot be read"]
        state = "finished" if (file.parent / "rounds.jsonl").exists() else "not finished"
        lines.append([str(file.parent), state, *about])
    return lines


def _table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return lines below their headings, each column as wide as its widest cell."""
    lines = [[" ".join(cell.split()) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    rows = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (heads, *lines)
    ]
    return "\n".join([f"{title}:", *(f"  {row}" for row in rows)])
