"""List the contents of an output folder: recipes, their runs, and studies of `flwr run`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coprefl_flwr.files import read_json, read_text
from coprefl_flwr.recipes.yaml_file import read_yaml
from coprefl_flwr.report.page import FOLDER, PAGE
from coprefl_flwr.studies.known_methods import Methods
from coprefl_flwr.studies.settings import STARTS
from coprefl_flwr.studies.store import ABOUT, RESULT, Store

RECIPE, PLACE, RUNS = "recipe.yaml", "models.txt", "runs.json"
"""Files of a recipe's folder: the recipe, the path of the store, and the stages of each run."""

FAILED = "failed.json"
"""File with the errors of failed runs, written when `coprefl run` has ended."""


def store_of(folder: Path) -> Store:
    """Return the store of a recipe's folder."""
    place = folder / PLACE
    return Store(folder / read_text(place).strip() if place.exists() else folder / "models")


def listing(outputs: Path) -> str:
    """Return the tables of recipes, runs and studies, one below the other, without empty tables."""
    folders = [path.parent for path in sorted(outputs.glob(f"*/{RECIPE}"))]
    shared = [outputs / "models", *(store_of(folder).root for folder in folders)]
    stores = {root.resolve(): root for root in reversed(shared) if root.is_dir()}
    parts = [
        _table("Recipes", ("folder", "state", "title"), list(map(_recipe, folders))),
        *(
            _table(f"Runs of recipes, in {root}", ("run", "method", "seed", "tasks"), _runs(root))
            for root in stores.values()
        ),
        _table("Studies of flwr run", ("folder", "state", "seed", "method"), _studies(outputs)),
    ]
    return "\n\n".join(filter(None, parts)) or f"no results in {outputs}"


def _recipe(folder: Path) -> list[str]:
    """Return a line of the table of recipes: folder, state and title."""
    tree, _ = read_yaml(folder / RECIPE)
    return [str(folder), _state(folder), str(tree["title"])]


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
    runs = read_json(folder / RUNS)
    done = [all((store / key / RESULT).exists() for key in keys) for keys in runs]
    return f"{sum(done)} of {len(done)} run{'s' * (len(done) != 1)}"


def _runs(models: Path) -> list[list[str]]:
    """Return a line for each run whose first stage is done."""
    lines = []
    for folder in [path.parent for path in sorted(models.glob(f"*/{RESULT}"))]:
        if not (folder / ABOUT).exists():
            continue
        settings = read_json(folder / ABOUT)["settings"]
        tasks = len(list(folder.glob(f"tasks/*/{RESULT}")))
        method, seed = Methods.read(settings["method"]).without_folders, seeds_of(settings)
        kind = str(tasks) if settings["study"] == STARTS else "personalised"
        lines.append([folder.name, method, seed, kind])
    return lines


def _studies(outputs: Path) -> list[list[str]]:
    lines = []
    for file in sorted(outputs.glob("*/settings.yaml")):
        settings, _ = read_yaml(file)
        state = "finished" if (file.parent / "rounds.jsonl").exists() else "not finished"
        method = Methods.read(settings["method"]).without_folders
        lines.append([str(file.parent), state, seeds_of(settings), method])
    return lines


def seeds_of(settings: Mapping[str, Any]) -> str:
    """Return the seed in a run's stored settings, and its draw if it has one: "1, draw 3"."""
    draw = settings.get("data-seed", "")
    return f"{settings['seed']}" if draw == "" else f"{settings['seed']}, draw {draw}"


def _table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return lines below their headings, each column as wide as its widest cell; "" for no line."""
    if not lines:
        return ""
    lines = [[" ".join(cell.split()) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    rows = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (heads, *lines)
    ]
    return "\n".join([f"{title}:", *(f"  {row}" for row in rows)])
