"""What a reader of a report must know besides its numbers."""

from collections.abc import Sequence

from coprefl_flwr.recipes.recipe import HALVING, OPTUNA, VALIDATION, Recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import optuna_version, table_rows
from coprefl_flwr.report.columns import STEP_SIZE
from coprefl_flwr.studies.results import left_out, trouble_in
from coprefl_flwr.studies.store import Store


def how(recipe: Recipe) -> list[str]:
    """Return which protocol this is, and how searched values were chosen, if there are any."""
    notes = (
        [f"Protocol {recipe.protocol}: {recipe.because.rstrip('.')}."] if recipe.protocol else []
    )
    if recipe.equal == STEP_SIZE:
        notes.append(
            "The rounds of each row were changed until its summed step size was nearest to that of "
            f"{recipe.reference}; of several phases, those of the last."
        )
    if not any(contest.searched for contest in table_rows(recipe)):
        return notes
    if recipe.search_by == HALVING:
        notes.append(
            "Searched by halving: every value ran a quarter of the rounds, of the pre-training and "
            "of the tasks, and only the best quarter of a row's values went on to the end."
        )
    if recipe.search_by == OPTUNA:
        notes.append(
            f"Searched by Optuna {optuna_version()} (TPE, seed {recipe.validation_seed}): of each "
            f"row {recipe.search_trials} of its values, or all where it has no more, one after the "
            "other, by what those before came to."
        )
    if recipe.select == VALIDATION:
        return [
            *notes,
            f"Searched values were chosen by the mean accuracy on {recipe.validation_tasks} "
            f"validation tasks of a pre-training of their own (seed {recipe.validation_seed}), "
            "whose classes no reported task has; each row says which.",
        ]
    return [
        *notes,
        "Searched values were chosen on the very results that are reported (select: test), which "
        "favours the rows that search more.",
    ]


def scored(recipe: Recipe) -> str:
    """Return what the score of a searched value is."""
    if recipe.select != VALIDATION:
        return "on the very results that are reported (select: test)"
    tasks = f"{recipe.validation_tasks} validation task{'s' * (recipe.validation_tasks != 1)}"
    return f"on {tasks} (seed {recipe.validation_seed})"


def troubles(store: Store, runs: Sequence[Run]) -> list[str]:
    """Return a line for each stage of a row's runs that diverged or did not learn."""
    found = []
    for run in runs:
        for stage in run.study.stages:
            trouble = trouble_in(run.study, store, stage)
            task = "" if stage.task is None else f", task {stage.task}"
            if trouble:
                found.append(f"seed {run.settings.seed}{task}: {trouble}")
    return found


def lost_replies(store: Store, name: str, runs: Sequence[Run]) -> list[str]:
    """Return a line for each stage of a row's runs of which replies were left out."""
    found = []
    for run in runs:
        for stage in run.study.stages:
            lost = left_out(store.result(stage)["rounds"])
            task = "" if stage.task is None else f", task {stage.task}"
            if lost:
                found.append(f"{name}, seed {run.settings.seed}{task}: {lost}.")
    return found
