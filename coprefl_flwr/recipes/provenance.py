"""How the results of a report were made: versions, machines, dates, and all settings."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coprefl_flwr import plugins
from coprefl_flwr.methods import short_forms
from coprefl_flwr.models.weights import FILE
from coprefl_flwr.named import Named
from coprefl_flwr.options import Value, declared
from coprefl_flwr.recipes.recipe import Recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.personal_data import PersonalOptions
from coprefl_flwr.studies.settings import STARTS, Settings, TaskDataSettings, TaskSettings
from coprefl_flwr.studies.stage_files import ABOUT, RESULT, read_about
from coprefl_flwr.studies.store import Store

ELSEWHERE = ("method", "seed")
"""Settings that the rows, and a line of their own, say."""


def made(recipe: Recipe, store: Store, runs: Sequence[Run], text: str) -> dict[str, str]:
    """Return how those runs that are there were made; `text` is the SHA-256 of the recipe's file.

    All of it is the results' own, so that a report that is made again says the same.
    """
    folders = [store.folder(stage) for run in runs for stage in run.study.stages]
    files = sorted({folder / RESULT for folder in folders if (folder / RESULT).exists()})
    abouts = [read_about(path.parent) for path in _beside(files)]
    versions = [_in_words(about.get("versions")) for about in abouts]
    found = {
        "versions": _joined(versions),
        "commit of the package": _joined(str(about.get("commit", "")) for about in abouts),
        "SHA-256 of the recipe": text,
        "machine": _joined(str(about.get("machine", "")) for about in abouts),
        "date (UTC)": _days(files),
        "seeds": ", ".join(map(str, recipe.seeds)),
    }
    return {key: text or _UNKNOWN[key] for key, text in found.items() if text or key in _UNKNOWN}


_UNKNOWN = {
    "versions": "nothing is done yet",
    "commit of the package": "not recorded: an installed package",
    "machine": "nothing is done yet",
    "date (UTC)": "nothing is done yet",
}
"""Why a line says nothing."""


def _beside(results: Iterable[Path]) -> list[Path]:
    """Return the files that say how starts, and personalised methods, were made."""
    return [file for file in (path.with_name(ABOUT) for path in results) if file.exists()]


def _in_words(versions: object) -> str:
    known = versions if isinstance(versions, dict) else {}
    return ", ".join(f"{name} {version}" for name, version in known.items())


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(sorted({text for text in texts if text}))


def _days(files: Sequence[Path]) -> str:
    """Return the first and the last day on which results were written: a second one adds none."""
    days = sorted({datetime.fromtimestamp(file.stat().st_mtime, UTC).date() for file in files})
    return " to ".join(dict.fromkeys(f"{day:%Y-%m-%d}" for day in (days[:1] + days[-1:])))


def set_here(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that the recipe sets."""
    return {
        key: portable(values[0]) if len(values) == 1 else list(map(portable, values))
        for key, values in recipe.settings.items()
        if key != "data-dir"
    }


def left_alone(recipe: Recipe) -> dict[str, Any]:
    """Return all other settings that count for such a study, as they were used: their defaults."""
    combination = recipe.combinations()[0]
    values = Settings.from_config(combination).to_config()
    starts = recipe.study == STARTS
    of_tasks = (*declared(TaskDataSettings), *declared(TaskSettings))
    unused = {
        key
        for key, one in declared(Settings).items()
        if not one.counts or (one.starts_only and not starts)
    }
    unused |= set(declared(PersonalOptions) if starts else of_tasks)
    # What methods have for themselves stands beside the rows.
    left_out = {*ELSEWHERE, *recipe.settings, *unused, *short_forms()}
    return {key: value for key, value in values.items() if key not in left_out}


def of_methods(runs: Sequence[tuple[str, Run]]) -> dict[str, str]:
    """Return {row: its methods with every setting that they heed}, of the rows' first runs."""
    found = {}
    for name, run in runs:
        phases = [phase.about() for phase in getattr(run.main, "phases", [])]
        phases += [run.main.of.about()] if hasattr(run.main, "of") else []
        found[name] = " + ".join(map(_phase, phases)) or "not trained here"
    return found


def _phase(about: dict[str, Any]) -> str:
    values = [f"{k} = {v}" for k, v in about.items() if k != "method" and v not in ("", None)]
    return ": ".join(filter(None, [str(portable(about["method"])), ", ".join(values)]))


def portable(value: Value) -> Value:
    """Return a value without the folders of a user's own files: they are nobody else's."""
    if isinstance(value, Method | Named):
        value = str(value)
    if not isinstance(value, str):
        return value
    return re.sub(r"[^\s+]+", lambda word: _named(word[0]), value)


def _named(word: str) -> str:
    if word.startswith(FILE):
        return FILE + Path(word.removeprefix(FILE)).name
    return plugins.portable(word)
