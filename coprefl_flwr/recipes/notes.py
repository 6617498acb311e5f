"""Notes of a report: how values were chosen, training problems, and provenance of the results."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coprefl_flwr.files import read_json
from coprefl_flwr.recipes.recipe import VALIDATION, Recipe
from coprefl_flwr.recipes.runs import StudyRun
from coprefl_flwr.recipes.search import table_rows
from coprefl_flwr.report.answer import value_text
from coprefl_flwr.report.columns import STEP_SIZE
from coprefl_flwr.studies import results
from coprefl_flwr.studies.results import without_folders
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.store import ABOUT, RESULT, Store

NOT_DONE = "no run is finished yet"

# ---- choices -------------------------------------------------------------------------------------


def how(recipe: Recipe, measure: str) -> list[str]:
    """Return notes on the recipe's scale and protocol, and on how searched values were chosen.

    `measure` is the name of the study's measure, such as "accuracy".
    """
    notes = [recipe.scale] if recipe.scale else []
    if recipe.protocol:
        notes.append(f"Protocol {recipe.protocol}: {recipe.because.rstrip('.')}.")
    if recipe.equal == STEP_SIZE:
        notes.append(
            "Each row has the number of rounds with which its summed step size (sum of the steps' "
            f"learning rates) is nearest to that of {recipe.reference}. For A+B, B's rounds change."
        )
    if not any(row.searched for row in table_rows(recipe)):
        return notes
    if recipe.select == VALIDATION:
        notes.append(
            f"Searched values were chosen by the mean {measure} on {recipe.validation_tasks} "
            f"validation tasks (seed {value_text(recipe.validation_seed)}), which have their own "
            "pre-training "
            "and classes that no reported task has. The column Chosen shows the values."
        )
    else:
        notes.append(
            "Searched values were chosen on the reported results themselves (select: test), which "
            "favours rows with more searched values."
        )
    return notes


# ---- problems ------------------------------------------------------------------------------------


def problems(store: Store, runs: Sequence[StudyRun]) -> list[str]:
    """Return a line for each stage of a row's runs that diverged."""
    return _lines(runs, [results.problems(run.study, store) for run in runs])


def lost_replies(store: Store, runs: Sequence[StudyRun]) -> list[str]:
    """Return a line for each stage of a row's runs in which clients' replies were ignored."""
    return _lines(runs, [results.lost_replies(run.study, store) for run in runs])


def _lines(runs: Sequence[StudyRun], of_runs: Sequence[Mapping[Stage, str]]) -> list[str]:
    lines = []
    for run, of_stages in zip(runs, of_runs, strict=True):
        for stage, line in of_stages.items():
            task = "" if stage.task is None else f", task {stage.task}"
            lines.append(f"{run.seeds}{task}: {line}")
    return lines


# ---- provenance of the results -------------------------------------------------------------------


def provenance(recipe: Recipe, store: Store, runs: Sequence[StudyRun]) -> dict[str, str]:
    """Return the provenance of the finished runs: versions, commit, machine, dates and seeds.

    These facts are stored with the results, so a report that is written again has the same text.
    """
    folders = sorted({store.folder(stage) for run in runs for stage in run.study.stages})
    done = [folder for folder in folders if (folder / RESULT).exists()]
    abouts = [read_json(folder / ABOUT) for folder in done if (folder / ABOUT).exists()]
    packages = [about["versions"].items() for about in abouts if "versions" in about]
    listed = [", ".join(f"{name} {number}" for name, number in of_run) for of_run in packages]
    together = _joined(str(about.get("together", "")) for about in abouts)
    return {
        "versions": _joined(listed) or NOT_DONE,
        "commit of the package": _joined(str(about.get("commit", "")) for about in abouts)
        or "not recorded, as the package did not run from a git checkout",
        "machine": _joined(str(about.get("machine", "")) for about in abouts) or NOT_DONE,
        "date (UTC)": _days(done) or NOT_DONE,
        "seeds": value_text(recipe.seeds),
        **({"clients computed as one": f"up to {together}"} if together else {}),
    }


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(sorted({text for text in texts if text}))


def _days(folders: Sequence[Path]) -> str:
    """Return the first and the last day on which results were written; one date if equal."""
    times = sorted((folder / RESULT).stat().st_mtime for folder in folders)
    ends = [datetime.fromtimestamp(time, UTC) for time in times[:1] + times[-1:]]
    return " to ".join(dict.fromkeys(f"{end:%Y-%m-%d}" for end in ends))


def set_here(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that the recipe sets, without the data folder."""
    return {
        key: without_folders(values[0]) if len(values) == 1 else list(map(without_folders, values))
        for key, values in recipe.settings.items()
        if key != "data-dir"
    }


def left_alone(recipe: Recipe) -> dict[str, Any]:
    """Return the defaults of the settings that the study uses but the recipe does not set."""
    values = Settings.from_config(recipe.combinations()[0]).used()
    return {key: value for key, value in values.items() if key not in recipe.settings}


def phases(stage: Stage) -> str:
    """Return a text with each phase's method and its settings; "not trained" if none."""
    return " + ".join(_phase(phase.about()) for phase in stage.phases) or "not trained"


def _phase(about: dict[str, Any]) -> str:
    values = [f"{k} = {v}" for k, v in about.items() if k != "method" and v not in ("", None)]
    return ": ".join(filter(None, [str(without_folders(about["method"])), ", ".join(values)]))
