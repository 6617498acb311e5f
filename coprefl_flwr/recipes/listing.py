"""List the contents of an output folder: recipes, their runs, and studies of `flwr run`."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coprefl_flwr.errors import SettingsError, printable
from coprefl_flwr.files import read_json, read_text
from coprefl_flwr.recipes.overlays import read_file
from coprefl_flwr.recipes.recipe import Recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import table_rows
from coprefl_flwr.report.page import FOLDER, PAGE
from coprefl_flwr.studies.method import Methods
from coprefl_flwr.studies.settings import STARTS, read_settings
from coprefl_flwr.studies.store import ABOUT, RESULT, Store, read_about

logger = logging.getLogger("flwr.coprefl")

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
    """Return the store of a recipe's folder; SettingsError if the store's path is damaged."""
    place = folder / PLACE
    if not place.exists():
        return Store(folder / "models")
    try:
        named = read_text(place).strip()
    except SettingsError:
        named = ""
    if not named.isprintable() or not named:
        raise SettingsError(f"{place} is damaged: it names no folder; run the recipe again")
    return Store(folder / named)


def runs_in(models: Path) -> dict[Path, dict[str, Any]]:
    """Return the folders of all runs whose first stage is done, each with its provenance."""
    files = [path.with_name(ABOUT) for path in sorted(models.glob(f"*/{RESULT}"))]
    runs = {}
    for file in filter(Path.exists, files):
        try:
            about = read_about(file.parent, settings=dict, phases=list)
            texts = [
                about["settings"].get(key) for key in ("study", "method", "model", "backbones")
            ]
            texts += [phase.get("method") for phase in about["phases"] if isinstance(phase, dict)]
            whole = len(texts) == 4 + len(about["phases"]) and "seed" in about["settings"]
            if not whole or not all(isinstance(text, str) for text in texts):
                raise SettingsError(f"{file} is damaged: its settings are incomplete")
            runs[file.parent] = about
        except SettingsError as error:  # The other runs are still listed.
            logger.warning("%s", error)
    return runs


def listing(outputs: Path) -> str:
    """Return the tables of recipes, runs and studies, one below the other, without empty tables.

    Raises a SettingsError if the folder does not exist.
    """
    if not outputs.is_dir():
        raise SettingsError(f"there is no folder {outputs}")
    folders = [path.parent for path in sorted(outputs.glob(f"*/{RECIPE}"))]
    roots = {folder: root for folder in folders if (root := _root_of(folder))}
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
    ended = (folder / FAILED).exists() and not read_json(folder / FAILED, dict)
    if ended and (folder / FOLDER / PAGE).exists():
        return "reported"
    store = store_of(folder).root
    done = [
        all((store / key / RESULT).exists() for key in run["stages"]) for run in wanted_in(folder)
    ]
    return f"{sum(done)} of {len(done)} run{'s' * (len(done) != 1)}"


def wanted_in(folder: Path) -> list[dict[str, Any]]:
    """Return the runs that a recipe needs, each as {"run": key, "for": purpose, "stages": keys}."""
    runs: list[dict[str, Any]] = read_json(folder / RUNS, list)
    for run in runs:
        texts = [run.get("run"), run.get("for")] if isinstance(run, dict) else [None]
        stages = run.get("stages") if isinstance(run, dict) else None
        whole = isinstance(stages, list) and all(isinstance(text, str) for text in texts + stages)
        if not whole:
            raise SettingsError(f"{folder / RUNS} is damaged: run the recipe again")
    return runs


def _root_of(folder: Path) -> Path | None:
    """Return the folder of a recipe's results; None if its path is damaged."""
    try:
        return store_of(folder).root
    except SettingsError:  # The table of recipes says so; the other recipes are still listed.
        return None


def _users(roots: Mapping[Path, Path], models: Path) -> dict[str, list[str]]:
    """Return the names of the recipes that use each run: {key: ["NAME", "NAME (validation)"]}.

    `roots` is the folder of the results of each recipe, by the recipe's folder.
    """
    users: dict[str, list[str]] = {}
    for folder, root in roots.items():
        if not (folder / RUNS).exists() or root.resolve() != models.resolve():
            continue
        try:
            wanted = wanted_in(folder)
        except SettingsError as error:  # The other recipes are still listed.
            logger.warning("%s", error)
            continue
        for run in wanted:
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
            settings = read_settings(file)
            about = [str(settings["seed"]), Methods.read(str(settings["method"])).without_folders]
        except (ValueError, KeyError):
            about = ["?", "its settings.yaml cannot be read"]
        state = "finished" if (file.parent / "rounds.jsonl").exists() else "not finished"
        lines.append([str(file.parent), state, *about])
    return lines


def _table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return lines below their headings, each column as wide as its widest cell."""
    lines = [list(map(printable, line)) for line in lines]
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    rows = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (heads, *lines)
    ]
    return "\n".join([f"{title}:", *(f"  {row}" for row in rows)])
