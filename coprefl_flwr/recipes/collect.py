"""From the store to a report: what a recipe's runs came to, table by table."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coprefl_flwr.options import Value
from coprefl_flwr.recipes.around import loss_around
from coprefl_flwr.recipes.printed import PaperTable
from coprefl_flwr.recipes.recipe import VALIDATION, Candidate, Recipe
from coprefl_flwr.recipes.runs import ModelStore, Run
from coprefl_flwr.recipes.sweep import Contest, Failures, contests
from coprefl_flwr.report import Comparison, Measured, Report
from coprefl_flwr.report.columns import ACCURACY_OF, SENT, STD_CLIENTS
from coprefl_flwr.report.figures import Similarity
from coprefl_flwr.report.results import accuracies, frame, task_metrics
from coprefl_flwr.report.similarity import LOCAL, similarity
from coprefl_flwr.report.starts import pretraining_summary


def collect(recipe: Recipe, store: ModelStore, failed: Failures) -> Report:
    """Return the report of what is in the store; what is missing there is nan, and said."""
    grouped = itertools.groupby(contests(recipe), key=lambda cell: cell.combination)
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
    if not any(cell.searched for cell in contests(recipe)):
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
    recipe: Recipe, store: ModelStore, group: Sequence[Contest], failed: Failures
) -> Comparison:
    combination = group[0].combination
    printed = recipe.paper_table(combination)
    shown = [(cell, one) for cell in group for one in cell.shown(store)]
    lost = [
        f"{cell.entrant.label}: no value could be chosen" for cell in group if not cell.shown(store)
    ]
    lost += [
        f"{run.name}, on validation tasks: {failed.get(run.key, 'not run yet')}"
        for cell in group
        if cell.searched and recipe.select == VALIDATION
        for one in cell.entrant.candidates()
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


def _units(cell: Contest) -> list[str]:
    return [unit for run in cell.reported(cell.entrant.candidates()[0]) for unit in run.units]


def _of_cell(
    recipe: Recipe, store: ModelStore, group: Sequence[Contest], cell: Contest
) -> list[Measured]:
    """Return the rows of a cell: one that is all missing where no value could be chosen."""
    shown = [_measured(recipe, store, group, cell, one) for one in cell.shown(store)]
    missing = [math.nan] * len(_units(cell))
    return shown or [Measured(cell.entrant.label, "", dict.fromkeys(recipe.metrics, missing))]


def _measured(
    recipe: Recipe, store: ModelStore, group: Sequence[Contest], cell: Contest, chosen: Candidate
) -> Measured:
    runs, label = cell.reported(chosen), cell.entrant.label
    of_seeds = [
        frame([{**row, "seed": run.settings.seed} for row in store.result(run.main)["rounds"]])
        for run in runs
    ]
    measured = "landscape" in recipe.figures and store.done(runs[0])
    return Measured(
        label=label,
        chosen=chosen.chosen,
        values=_values(recipe, store, group, cell, chosen),
        rows=_of_tasks(store, runs, label, "rows"),
        rounds=pd.concat(of_seeds, ignore_index=True),
        curves=_of_tasks(store, runs, label, "rounds"),
        switch=runs[0].switch,
        landscape=loss_around(store, runs[0]) if measured else None,
        similarity=_similarity(recipe, store, cell, chosen),
    )


def _similarity(
    recipe: Recipe, store: ModelStore, cell: Contest, chosen: Candidate
) -> Similarity | None:
    """Return the heat map of a row with several backbones, if each was run alone too."""
    names = str(cell.combination.get("backbones", "")).split()
    if "similarity" not in recipe.figures or len(names) < 2:
        return None
    alone = [replace(cell, combination={**cell.combination, "backbones": one}) for one in names]
    runs = [one.reported(chosen)[0] for one in [*alone, cell]]
    folders = [store.folder(run.main) for run in runs]
    if not all(store.done(run) for run in runs) or not all((f / LOCAL).exists() for f in folders):
        return None
    clients = [row.get("domain", "") for row in store.result(runs[-1].main)["rows"]]
    found = similarity(folders, clients)
    return replace(found, backbones=[Path(one.partition("=")[2] or one).stem for one in names])


def _of_tasks(store: ModelStore, runs: Sequence[Run], label: str, what: str) -> pd.DataFrame:
    """Return the rows or the rounds of all tasks, which are numbered on from seed to seed."""
    found: list[dict[str, Any]] = []
    for number, stage in enumerate(stage for run in runs for stage in run.measured):
        rows = store.result(stage)[what]
        found += [row | {"start": label, "task": number} for row in rows]
    return frame(found)


def _values(
    recipe: Recipe, store: ModelStore, group: Sequence[Contest], cell: Contest, chosen: Candidate
) -> dict[str, list[float]]:
    """Return metric -> a value per unit: per task of a seed, or per seed."""
    found: dict[str, list[float]] = {metric: [] for metric in recipe.metrics}
    for position, run in enumerate(cell.reported(chosen)):
        of_seed = _pretraining(store, group, position, chosen)
        for number, _ in enumerate(run.units):
            # One figure a seed stands at its first task.
            here = _of_task(store, run, number) | ({} if number else of_seed)
            for metric, values in found.items():
                values.append(here.get(metric, math.nan))
    return found


def _of_task(store: ModelStore, run: Run, number: int) -> dict[str, float]:
    """Return the metrics of one task, or of a personalised method; none if it is not there."""
    stages = run.measured
    if not stages or not store.has(stages[number]):
        return {}
    task = store.result(stages[number])
    rows, last = frame(task["rows"]), task["rounds"][-1]
    found = _numbers(task_metrics(rows).drop(columns=["start", "task"]))
    found[STD_CLIENTS] = math.sqrt(found["variance"])
    if "domain" in rows:
        of_domains = accuracies(rows).groupby("domain")["accuracy"]
        found |= {f"{ACCURACY_OF}{name}": float(np.mean(part)) for name, part in of_domains}
    return found | {key: last[key] for key in SENT if key in last}


def _pretraining(
    store: ModelStore, group: Sequence[Contest], position: int, chosen: Candidate
) -> dict[str, float]:
    """Return what the pre-training with the seed at `position` came to, next to its plain form."""
    # Two rows may be the same start under two labels.
    rounds = {
        one.start: store.result(cell.reported(one)[position].main)["rounds"]
        for cell in group
        for one in cell.shown(store)
    }
    rows = [{**row, "start": start} for start, found in rounds.items() for row in found]
    entries = pretraining_summary(frame(rows))
    found = entries[entries["start"] == chosen.start]
    return {} if found.empty else _numbers(found.drop(columns="start"))


def _numbers(found: pd.DataFrame) -> dict[str, float]:
    """Return the numbers of the first row, without what is missing."""
    return {str(name): float(value) for name, value in found.iloc[0].dropna().items()}
