"""From the store to a report: what a recipe's runs came to, table by table."""

import itertools
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coprefl_flwr.recipes.around import loss_around
from coprefl_flwr.recipes.printed import PaperTable
from coprefl_flwr.recipes.recipe import VALIDATION, Candidate, Recipe
from coprefl_flwr.recipes.store import Run, Store
from coprefl_flwr.recipes.sweep import Cell, Failures, cells
from coprefl_flwr.report import Comparison, Measured, Report, fairness, tables
from coprefl_flwr.report.columns import ACCURACY_OF, SENT, STD_CLIENTS
from coprefl_flwr.report.figures import Similarity
from coprefl_flwr.report.pretraining import pretraining_summary
from coprefl_flwr.studies.personalised import LOCAL
from coprefl_flwr.studies.settings import Value
from coprefl_flwr.studies.similarity import similarity

logger = logging.getLogger("flwr.coprefl")

# Tasks are numbered on from seed to seed; no study has as many.
TASKS_OF_A_SEED = 1000


def collect(recipe: Recipe, store: Store, failed: Failures) -> Report:
    """Return the report of what is in the store; what is missing there is nan, and said."""
    grouped = itertools.groupby(cells(recipe), key=lambda cell: cell.combination)
    comparisons = [_comparison(recipe, store, list(group), failed) for _, group in grouped]
    return Report(
        title=recipe.title,
        source=recipe.source,
        notes=[*recipe.notes, *_notes(recipe)],
        comparisons=comparisons,
        figures=recipe.figures,
        settings={k: _listed(v) for k, v in recipe.settings.items() if k != "data-dir"},
    )


def _notes(recipe: Recipe) -> list[str]:
    """Return how searched values were chosen, if there are any."""
    if not any(cell.searched for cell in cells(recipe)):
        return []
    if recipe.select == VALIDATION:
        return [
            f"Searched values were chosen by the mean accuracy on {recipe.validation_tasks} "
            f"validation tasks of a pre-training of their own (seed {recipe.validation_seed}), "
            "whose classes no reported task has; each row says which."
        ]
    return [
        "Searched values were chosen on the very results that are reported (select: test), which "
        "favours the rows that search more."
    ]


def _comparison(
    recipe: Recipe, store: Store, group: Sequence[Cell], failed: Failures
) -> Comparison:
    combination = group[0].combination
    printed = recipe.paper_table(combination)
    shown = [(cell, one) for cell in group for one in cell.shown(store)]
    lost = [
        f"{cell.row.label}: no value could be chosen" for cell in group if not cell.shown(store)
    ]
    lost += [
        f"{run.name}, on validation tasks: {failed.get(run.key, 'not run yet')}"
        for cell in group
        if cell.searched and recipe.select == VALIDATION
        for one in cell.row.candidates()
        for run in cell.deciding(one)
        if not store.done(run)
    ]
    lost += [
        f"{run.name}, seed {run.settings.seed}: {failed.get(run.key, 'not run yet')}"
        for cell, one in shown
        for run in cell.reported(one)
        if not store.done(run)
    ]
    return Comparison(
        name=_name(recipe, combination),
        title=_title(recipe, combination),
        metrics=recipe.metrics,
        units=_units(group[0]),
        measured=[row for cell in group for row in _of_cell(recipe, store, group, cell)],
        reference=recipe.reference,
        paper=printed.rows if printed else {},
        source=_source(recipe, printed),
        failed=lost,
    )


def _listed(values: Sequence[Value]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def _title(recipe: Recipe, combination: Mapping[str, Value]) -> str:
    """Return what this table is among the others: the compared settings."""
    return ", ".join(f"{key} = {combination[key]}" for key in recipe.compared) or recipe.title


def _name(recipe: Recipe, combination: Mapping[str, Value]) -> str:
    parts = [f"{key}={combination[key]}" for key in recipe.compared]
    return re.sub(r"[^A-Za-z0-9.=+_-]+", "-", "_".join(parts)).strip("-_") or "table"


def _source(recipe: Recipe, printed: PaperTable | None) -> str:
    if printed is None:
        return ""
    paper = recipe.source.rpartition(", Table")[0] or recipe.source
    return f"{paper}, Table {printed.table}" if printed.table else recipe.source


def _units(cell: Cell) -> list[str]:
    return [unit for run in cell.reported(cell.row.candidates()[0]) for unit in run.units]


def _of_cell(recipe: Recipe, store: Store, group: Sequence[Cell], cell: Cell) -> list[Measured]:
    """Return the rows of a cell: one that is all missing where no value could be chosen."""
    shown = [_measured(recipe, store, group, cell, one) for one in cell.shown(store)]
    missing = [math.nan] * len(_units(cell))
    return shown or [Measured(cell.row.label, "", dict.fromkeys(recipe.metrics, missing))]


def _measured(
    recipe: Recipe, store: Store, group: Sequence[Cell], cell: Cell, chosen: Candidate
) -> Measured:
    runs = cell.reported(chosen)
    rows = [row for run in runs for row in _client_rows(store, run, cell.row.label)]
    rounds = {run.settings.seed: store.rounds(run) for run in runs}
    measured = "landscape" in recipe.figures and store.done(runs[0])
    return Measured(
        label=cell.row.label,
        chosen=chosen.chosen,
        values=_values(recipe, store, group, cell, chosen),
        rows=rows,
        rounds=rounds,
        curves=[row for run in runs for row in _curves(store, run, cell.row.label)],
        switch=runs[0].switch,
        landscape=loss_around(store, runs[0]) if measured else None,
        similarity=_similarity(recipe, store, cell, chosen),
    )


def _similarity(recipe: Recipe, store: Store, cell: Cell, chosen: Candidate) -> Similarity | None:
    """Return the heat map of a row with several backbones, if each was run alone too."""
    names = str(cell.combination.get("backbones", "")).split()
    if "similarity" not in recipe.figures or len(names) < 2:
        return None
    alone = [replace(cell, combination={**cell.combination, "backbones": one}) for one in names]
    runs = [one.reported(chosen)[0] for one in [*alone, cell]]
    folders = [store.folder(run) for run in runs]
    if not all(store.done(run) and (store.folder(run) / LOCAL).exists() for run in runs):
        return None
    found = similarity(folders, store.task(runs[-1], 0)["domains"])
    return replace(found, backbones=[Path(one.partition("=")[2] or one).stem for one in names])


def _numbered(run: Run, task: int) -> int:
    return run.settings.seed * TASKS_OF_A_SEED + task


def _client_rows(store: Store, run: Run, label: str) -> list[tables.ClientRow]:
    found: list[tables.ClientRow] = []
    for number in range(run.tasks):
        if store.task_file(run, number).exists():
            rows = store.task(run, number)["rows"]
            found += [row | {"start": label, "task": _numbered(run, number)} for row in rows]
    return found


def _curves(store: Store, run: Run, label: str) -> list[Any]:
    names = ("phase", "round", "loss", "accuracy")
    return [
        {name: row.get(name) for name in names} | {"start": label, "task": _numbered(run, number)}
        for number in range(run.tasks)
        if store.task_file(run, number).exists()
        for row in store.task(run, number)["rounds"]
    ]


def _values(
    recipe: Recipe, store: Store, group: Sequence[Cell], cell: Cell, chosen: Candidate
) -> dict[str, list[float]]:
    """Return metric -> a value per unit: per task of a seed, or per seed."""
    found: dict[str, list[float]] = {metric: [] for metric in recipe.metrics}
    for position, run in enumerate(cell.reported(chosen)):
        of_seed = _pretraining(store, group, position, chosen)
        for number in range(run.tasks or 1):
            # One figure a seed stands at its first task.
            here = _of_task(store, run, number) | ({} if number else of_seed)
            for metric, values in found.items():
                values.append(here.get(metric, math.nan))
    return found


def _of_task(store: Store, run: Run, number: int) -> dict[str, float]:
    if not run.tasks or not store.task_file(run, number).exists():
        return {}
    task = store.task(run, number)
    ((_, tasks),) = tables.accuracies(task["rows"]).items()
    (values,) = tasks.values()
    found = fairness.summarise_task(values)
    found[STD_CLIENTS] = math.sqrt(found["variance"])
    return found | _of_domains(task, values) | {key: task[key] for key in SENT if key in task}


def _of_domains(task: Mapping[str, Any], values: Sequence[float]) -> dict[str, float]:
    """Return the mean accuracy of the clients of each dataset, where a study names theirs."""
    of: dict[str, list[float]] = {}
    for name, value in zip(task.get("domains", ()), values, strict=False):
        of.setdefault(f"{ACCURACY_OF}{name}", []).append(value)
    return {metric: float(np.mean(found)) for metric, found in of.items()}


def _pretraining(
    store: Store, group: Sequence[Cell], position: int, chosen: Candidate
) -> dict[str, float]:
    """Return what the pre-training with the seed at `position` came to, next to its plain form."""
    # Two rows may be the same start under two labels.
    rounds = {
        one.start: store.rounds(cell.reported(one)[position])
        for cell in group
        for one in cell.shown(store)
    }
    rows = [{**row, "start": start} for start, found in rounds.items() for row in found]
    entries = {entry["start"]: entry for entry in pretraining_summary(rows)}
    found = entries.get(chosen.start, {})
    if "catches-up" in found and found["catches-up"] is None:
        return found | {"catches-up": math.inf}
    return found
