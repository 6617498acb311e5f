"""The results of a study: tables of the rows and rounds of all stages, and the report."""

import functools
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError, logger
from coprefl_flwr.models.weights import FILE
from coprefl_flwr.report import text_tables
from coprefl_flwr.report.columns import KEPT, STEP_SIZE, STOPPED
from coprefl_flwr.report.formats import LOG_WIDTH
from coprefl_flwr.report.frames import OF_A_ROUND, ROW, frame
from coprefl_flwr.report.outcome import Outcome, report_of
from coprefl_flwr.report.training_checks import Problem
from coprefl_flwr.studies.costs import cost
from coprefl_flwr.studies.personalised import PersonalStage
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.provenance import made_by
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.store import Store
from coprefl_flwr.studies.study import Study
from coprefl_flwr.studies.tasks import Task


def gather(study: Study, store: Store) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (a row per client, a row per round) of all stages, grouped by starting model."""
    starts = list(dict.fromkeys(stage.start for stage in study.stages))
    stages = sorted(study.stages, key=lambda stage: starts.index(stage.start))
    return frames_of([(stage.start, stage) for stage in stages], store)


def frames_of(
    stages: Iterable[tuple[str, Stage]], store: Store
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (a row per client, a row per round) of stages, each given with its start's name.

    Rows of clients are those of tasks and personalised methods. Your own kind of stage may have
    rows in its `result.json` too: they are not part of a report.
    """
    rows, rounds = list[dict[str, Any]](), list[dict[str, Any]]()
    for start, stage in stages:
        result = store.result(stage)
        rows += [{**row, "start": start} for row in result["rows"] if stage.has_client_rows]
        rounds += [{**row, "start": start} for row in result["rounds"]]
    return frame(rows, ROW), frame(rounds, OF_A_ROUND)


def outcome_of(starts: Mapping[str, Study], store: Store, content: Mapping[str, Any]) -> Outcome:
    """Return the results of starts, or of personalised methods, each with the study of its stages.

    `content` is added to what a report needs in addition to the rows (see `Outcome`).
    """
    stages = {start: list(study.stages) for start, study in starts.items()}
    rows, rounds = frames_of([(start, stage) for start in stages for stage in stages[start]], store)
    trained = {start: own[0] for start, own in stages.items() if isinstance(own[0], Pretraining)}
    about: dict[str, Any] = {
        "starts": list(stages),
        "costs": {start: costs_of(stage, store) for start, stage in trained.items()},
        "chained": {start: stage.chained(store) for start, stage in trained.items()},
        "seconds": {
            start: [store.seconds(stage) for stage in own if stage.has_client_rows]
            for start, own in stages.items()
        },
    }
    return Outcome(rows, rounds, {**about, **content})


def costs_of(stage: Pretraining, store: Store) -> dict[str, float]:
    """Return costs of a start's pre-training, and the round of an early stop."""
    # An untrained start has no rows of rounds to count.
    numbers = {} if stage.phases else {"rounds": 0.0}
    rounds = store.result(stage)["rounds"]
    if stage.keep and not rounds:
        return numbers
    # Stored results are reported even if the data of their clients are no longer available.
    if costs := result_or_none("the cost of starts", cost, stage, len(rounds) or None):
        numbers |= {STEP_SIZE: costs[0], "gradients": costs[1] / 1e6}
    if stage.keep:
        value = rounds[-1].get(stage.keep.column)
        ended = len(rounds) < stage.rounds or (value is not None and stage.keep.reached(value))
        numbers[STOPPED] = float(len(rounds)) if ended else math.inf
        numbers[KEPT] = rounds[-1].get(KEPT, math.nan)
    return numbers


def result_or_none(what: str, make: Callable[..., Any], *args: Any) -> Any:
    """Return the result. If code or data are missing or damaged, log a line and return None."""
    try:
        return make(*args)
    except (SettingsError, SafetensorError) as error:
        _warn_once(f"{what} is left out: {error}")
        return None


@functools.lru_cache(maxsize=64)
def _warn_once(line: str) -> None:
    logger.warning("%s", line)


def write_results(study: Study, store: Store) -> None:
    """Write the rows, the rounds and the report of a finished study, and log the tables."""
    rows, rounds = gather(study, store)
    settings = Settings.from_config(study.config)
    of_run = about(study, store, settings.seed, settings.data_seed)
    outcome = Outcome(rows, rounds, of_run | _about_settings(settings))
    page = outcome.write(store.root)
    for line in text_tables(report_of([outcome]).comparisons[0], LOG_WIDTH).splitlines():
        logger.info("%s", line)
    logger.info("")
    logger.info("models, rows, tables and figures are in %s", store.root)
    logger.info("report: %s", page.resolve().as_uri())


def about(study: Study, store: Store, seed: int, draw: int | None) -> dict[str, Any]:
    """Return the content of a report in addition to rows and settings (see `Outcome`).

    `draw` is the seed of clients and tasks; None: it is `seed`.
    Problems of the stages are also logged.
    """
    pretrainings = {stage.start: stage for stage in study.stages if isinstance(stage, Pretraining)}
    chained, costs, how = {}, {}, made_by()
    lost, problems_of = lost_replies(study, store), problems(study, store)
    for stage, line in [*lost.items(), *problems_of.items()]:
        logger.warning("%s: %s", stage.title, line)
    troubles: dict[str, list[str]] = {}
    for stage, problem in problems_of.items():
        task = "" if stage.task is None else f"task {stage.task}: "
        troubles.setdefault(stage.start, []).append(f"{task}{problem}")
    for start, stage in pretrainings.items():
        chained[start] = stage.chained(store)
        if not stage.is_external:
            numbers = costs_of(stage, store).items()
            costs[start] = {key: number for key, number in numbers if math.isfinite(number)}
    measuring = [stage for stage in study.stages if isinstance(stage, Task | PersonalStage)]
    headings = {key: text for stage in measuring for key, text in stage.metrics.headings.items()}
    made = {key: how[key] for key in ("commit", "machine") if key in how}
    versions = ", ".join(f"{name} {version}" for name, version in how["versions"].items())
    return {
        "title": "Starting models" if pretrainings else "Personalised methods",
        "seed": seed,
        **({} if draw is None else {"data-seed": draw}),
        "starts": list(dict.fromkeys(stage.start for stage in study.stages)),
        "chained": chained,
        "costs": costs,
        "troubles": {start: "; ".join(lines) for start, lines in troubles.items()},
        "warnings": [f"{stage.title}: {line}." for stage, line in lost.items()],
        "made": {"versions": versions, **made},
        **({"columns": headings} if headings else {}),
    }


def _about_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings of a study for its report, and the command that repeats the study."""
    used, changed = settings.used(), settings.changed()
    shown = {key: without_folders(value) for key, value in changed.items()}
    return {
        "settings": shown,
        "defaults": {key: used[key] for key in used if key not in shown},
        "command": _command(changed, shown),
    }


def without_folders(value: Any) -> Any:
    """Return a setting whose paths of user files have no folders, which other machines lack."""
    if isinstance(value, int | float):
        return value
    return re.sub(r"[^\s+]+", lambda word: _named(word[0]), str(value))


def _named(word: str) -> str:
    if word.startswith(FILE):
        return FILE + Path(word.removeprefix(FILE)).name
    return plugins.without_folders(word)


def _command(settings: Mapping[str, Any], shown: Mapping[str, Any]) -> str:
    """Return the `flwr run` command that repeats a study, or "" if no command can do so."""
    # Reports leave out the folders of the user's files. Flower does not parse quotation marks.
    if shown != settings or any('"' in str(value) for value in settings.values()):
        return ""
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    return f"flwr run . --run-config {shlex.quote(config)}" if config else "flwr run ."


def problems(study: Study, store: Store) -> dict[Stage, Problem]:
    """Return the finished stages that have a problem, such as divergence."""
    done = [stage for stage in study.stages if store.has(stage)]
    found = {stage: stage.problem(store.folder(stage)) for stage in done}
    return {stage: problem for stage, problem in found.items() if problem}


def lost_replies(study: Study, store: Store) -> dict[Stage, str]:
    """Return the stages in which replies were left out, each with a phrase on their number."""
    found = {}
    for stage in study.stages:
        rounds = store.result(stage)["rounds"]
        if some := [row for row in rounds if row.get("replies-left-out")]:
            lost = sum(int(row["replies-left-out"]) for row in some)
            asked = sum(int(row["replies-asked"]) for row in some)
            of_rounds = f"{len(some)} of the {len(rounds)} rounds"
            found[stage] = f"{lost} of {asked} replies were left out in {of_rounds}"
    return found
