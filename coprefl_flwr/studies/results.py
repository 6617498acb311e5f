"""What a study came to: the rows and rounds of its stages, and their report.

`python -m coprefl_flwr.studies.results FOLDER FOLDER ...` prints the comparison of several runs
that differ in their seed.
"""

import logging
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from coprefl_flwr import plugins
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.methods import PERSONALISED
from coprefl_flwr.report import text_tables
from coprefl_flwr.report.columns import STEP_SIZE
from coprefl_flwr.report.formats import LOG_WIDTH, markdown
from coprefl_flwr.report.frames import frame
from coprefl_flwr.report.outcome import Outcome, report_of
from coprefl_flwr.report.tables import tables
from coprefl_flwr.studies.budgets import cost
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.provenance import made_by
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import Store, read_result
from coprefl_flwr.studies.study import Study
from coprefl_flwr.studies.told import left_out, told

logger = logging.getLogger("flwr.coprefl")

Result = Mapping[str, Sequence[Mapping[str, Any]]]
"""{"rows", "rounds"} of a stage."""

TITLES = {True: "Personalised methods", False: "Starting models"}
OF_NO_RESULT = {
    *("output-dir", "run-name", "data-dir", "timeout", "checkpoint-every", "min-available-nodes")
}
"""Settings on which no number depends."""


def gather(study: Study, store: Store) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (a row per client, a row per round) of all stages, those of a start together."""
    starts = list(dict.fromkeys(stage.start for stage in study.stages))
    stages = sorted(study.stages, key=lambda stage: starts.index(stage.start))
    return frames_of((stage.start, read_result(store.folder(stage))) for stage in stages)


def frames_of(results: Iterable[tuple[str, Result]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (a row per client, a row per round) of results, each of the start of that name."""
    found = list(results)
    rows, rounds = (
        frame([{**row, "start": start} for start, result in found for row in result[kind]])
        for kind in ("rows", "rounds")
    )
    return rows, rounds


def write_results(study: Study, store: Store, folder: Path) -> None:
    """Write rows, rounds and the report of a finished study; log the tables."""
    rows, rounds = gather(study, store)
    outcome = Outcome(rows, rounds, _about(study, store))
    page = outcome.write(folder)
    for line in text_tables(report_of([outcome]).comparisons[0], LOG_WIDTH).splitlines():
        logger.info("%s", line)
    logger.info("")
    logger.info("models, rows, tables and figures are in %s", folder)
    logger.info("report: %s", page.resolve().as_uri())


def _about(study: Study, store: Store) -> dict[str, Any]:
    """Return what a report says besides the rows (see `Outcome`)."""
    made = {stage.start: stage for stage in study.stages if isinstance(stage, Pretraining)}
    chained, costs, lost = {}, {}, []
    for start, stage in made.items():
        rounds = read_result(store.folder(stage))["rounds"]
        chained[start] = [row["round"] for row in rounds if stage.chained(row["round"])]
        if not stage.from_elsewhere:
            step_size, gradients = cost(stage, len(rounds))
            of_start = {STEP_SIZE: step_size, "gradients": gradients / 1e6}
            costs[start] = {key: one for key, one in of_start.items() if math.isfinite(one)}
    for one in study.stages:
        line = left_out(read_result(store.folder(one))["rounds"])
        lost += [f"{one.title}: {line}."] * bool(line)
    troubles, how = told(study, store), made_by()
    defaults = Settings().to_config()
    known = {key: how[key] for key in ("commit", "machine") if key in how}
    versions = ", ".join(f"{name} {version}" for name, version in how["versions"].items())
    return {
        "title": TITLES[study.config["study"] == PERSONALISED],
        "seed": study.config["seed"],
        "starts": list(dict.fromkeys(stage.start for stage in study.stages)),
        "chained": chained,
        "costs": costs,
        "troubles": troubles,
        "warnings": [*(f"{start}: {line}." for start, line in troubles.items()), *lost],
        "made": {"versions": versions, **known, "seed": study.config["seed"]},
        "settings": {
            key: re.sub(r"[^\s+]+", lambda word: plugins.portable(word[0]), str(value))
            for key, value in study.config.items()
            if key not in OF_NO_RESULT and value != defaults[key]
        },
    }


def main(folders: Sequence[str]) -> None:
    """Print the comparison over several runs."""
    report = report_of([Outcome.read(Path(folder)) for folder in folders])
    print(markdown(*tables(report.comparisons[0].displayed())))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SettingsError as error:
        sys.exit(str(error))
