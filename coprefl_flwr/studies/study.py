"""A study: pre-train starting models, try each on the same downstream tasks, write what came out.

Its folder, OUTPUT-DIR/RUN-NAME:

    settings.yaml                       the settings as used
    starts/START/model.safetensors      the starting model, and model.json: how it was made
    starts/START/rounds.jsonl           metrics of every pre-training round
    starts/START/checkpoint.safetensors while the pre-training runs; a task has its own
    tasks/NUMBER/START.json             a task from a start: rows per client, metrics per round
    rows.jsonl, rounds.jsonl            all of these in one file each
    pretraining.md                      what the pre-training came to, and what it sent
    summary.csv, summary.md             the comparison on the tasks
    client_accuracies.png, learning_curves.png

Every file is written in one step, and a part is done when its file is there: a run that was
interrupted goes on with the first part that is not.
"""

import json
import logging
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from flwr.serverapp import Grid

from coprefl_flwr.data import split_in_two
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.files import write_atomically
from coprefl_flwr.report import figures, tables
from coprefl_flwr.report.pretraining import pretraining_summary, pretraining_table
from coprefl_flwr.strategies import HybridCoPreFL
from coprefl_flwr.studies.populations import (
    PRETRAINING,
    population,
    server_samples,
    task_name,
)
from coprefl_flwr.studies.progress import (
    PRETRAINING_KIND,
    TASK_KIND,
    Progress,
    quiet_flower,
)
from coprefl_flwr.studies.runs import Setup, pretrain, read_lines, run_task, write_lines
from coprefl_flwr.studies.settings import Settings, key_of, unknown
from coprefl_flwr.studies.starts import Start, starts

logger = logging.getLogger("flwr.coprefl")

FREE_ON_RESUME = {"resume", "output_dir", "data_dir", "min_nodes", "timeout", "checkpoint_every"}
"""Settings that a resumed run may change: they do not enter its numbers."""


@dataclass(frozen=True)
class Study:
    """A checked study, ready to run."""

    setup: Setup
    starts: list[Start]
    folder: Path

    @property
    def settings(self) -> Settings:
        """The study's settings."""
        return self.setup.settings

    def folder_of(self, start: Start) -> Path:
        """Return where a starting model lies."""
        return self.folder / "starts" / start.folder

    def file_of(self, start: Start, task: int) -> Path:
        """Return where a task from a start is written."""
        return self.folder / "tasks" / str(task) / f"{start.folder}.json"


def run_study(grid: Grid, settings: Settings) -> Path:
    """Run the study and return its folder.

    Raises
    ------
    SettingsError
        Before any work, if something set cannot be used.
    RunFailedError
        If the clients failed a round too often; what was finished stays, and can be resumed.
    """
    study = prepare(settings)
    logger.info("results go to %s", study.folder)
    with quiet_flower():
        setup, progress = study.setup, _progress(study)
        models = {
            start.name: pretrain(setup, grid, start, study.folder_of(start), progress)
            for start in study.starts
        }
        for number in range(settings.tasks):
            for start in study.starts:
                file = study.file_of(start, number)
                run_task(setup, grid, number, start.name, models[start.name], file, progress)
    write_results(study)
    return study.folder


def _progress(study: Study) -> Progress:
    """Return the account of all rounds that the study takes."""
    tasks = study.settings.tasks * len(study.starts)
    ahead = {
        PRETRAINING_KIND: sum(start.rounds for start in study.starts),
        TASK_KIND: tasks * study.settings.task_rounds,
    }
    return Progress(len(study.starts) + tasks, ahead)


def prepare(settings: Settings) -> Study:
    """Check everything a study needs and make its folder; nothing is written before that."""
    settings = with_run_name(settings)
    setup, chosen = check(settings)
    return Study(setup, chosen, make_folder(settings))


def with_run_name(settings: Settings) -> Settings:
    """Return settings that name the run: by date and time where the user did not."""
    if settings.run_name:
        return settings
    return replace(settings, run_name=datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))


def make_folder(settings: Settings) -> Path:
    """Make the run's folder with its settings in it, or raise a SettingsError before that."""
    folder = Path(settings.output_dir).expanduser().resolve() / settings.run_name
    _check_folder(folder, settings)
    config = settings.to_config()
    write_atomically(folder / "settings.yaml", yaml.safe_dump(config).encode())
    return folder


def check(settings: Settings) -> tuple[Setup, list[Start]]:
    """Return what the settings come to, or raise a SettingsError; nothing is written."""
    chosen = starts(settings)
    setup = Setup.of(settings)
    for name in [PRETRAINING, *map(task_name, range(settings.tasks))]:
        population(settings, name)
    _check_server_share(settings, chosen)
    _check_support_sets(settings, chosen)
    return setup, chosen


def _check_server_share(settings: Settings, chosen: list[Start]) -> None:
    """Raise a SettingsError if a method would find less data at the server than it needs."""
    held = len(server_samples(settings))
    for start in chosen:
        for phase in start.phases:
            parts = phase.method.strategy_class is HybridCoPreFL
            needed = phase.settings.participants if parts else 1
            if phase.method.uses_server_data and held < needed:
                why = f" ({needed} participants, a part for each)" if parts else ""
                raise SettingsError(
                    f"server-share = {settings.server_share}, server-reserve = "
                    f"{settings.server_reserve}: the server has {held} samples, and "
                    f"{start.name} needs at least {needed}{why}"
                )


def _check_support_sets(settings: Settings, chosen: list[Start]) -> None:
    """Raise a SettingsError if a client could not split its samples; better now than in a round."""
    fewest = min(len(client.train) for client in population(settings, PRETRAINING).clients)
    for phase in (phase for start in chosen for phase in start.phases):
        fraction = phase.settings.support_fraction
        if fraction is not None:
            split_in_two(fewest, fraction, np.random.default_rng(0))


def _check_folder(folder: Path, settings: Settings) -> None:
    """Raise a SettingsError unless the folder is new, or holds the run that is resumed."""
    kept = folder / "settings.yaml"
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise SettingsError(f"output-dir: {place} is a file, not a folder")
    if not kept.exists():
        if settings.resume:
            runs = [path.parent.name for path in folder.parent.glob("*/settings.yaml")]
            raise SettingsError(f"resume = true: {unknown('run', settings.run_name, runs)}")
        return
    if not settings.resume:
        raise SettingsError(
            f"run-name = {settings.run_name}: {folder} holds a run already; set resume=true to go "
            "on with it, or another run-name"
        )
    written = yaml.safe_load(kept.read_text())
    if not isinstance(written, dict):
        raise SettingsError(f"{kept} holds no settings: the run cannot be resumed")
    before = Settings.from_config(written)
    for name, value in vars(before).items():
        if name not in FREE_ON_RESUME and value != getattr(settings, name):
            raise SettingsError(
                f"{key_of(name)} = {getattr(settings, name)}: the run to resume was started with "
                f"{value}"
            )


def write_results(study: Study) -> None:
    """Gather the parts' files into rows, rounds, tables and figures; log the table."""
    rows: list[tables.ClientRow] = []
    rounds: list[dict[str, Any]] = []
    for start in study.starts:
        rounds += read_lines(study.folder_of(start) / "rounds.jsonl")
        for number in range(study.settings.tasks):
            part = json.loads(study.file_of(start, number).read_text())
            rows += part["rows"]
            rounds += part["rounds"]
    write_lines(study.folder / "rounds.jsonl", rounds)
    names = ("phase", "start", "task", "round", "loss")
    curves: list[Any] = [
        {name: row[name] for name in names}
        | {"accuracy": row.get("accuracy", row.get("server-accuracy"))}
        for row in rounds
    ]
    if curves:
        figures.learning_curves(curves, study.folder / "learning_curves.png")
    entries = pretraining_summary(rounds)
    if entries:
        table = pretraining_table(entries, markdown=True)
        write_atomically(study.folder / "pretraining.md", table.encode())
        show(pretraining_table(entries))
    if rows:
        tables.write_rows(study.folder / "rows.jsonl", rows)
        tables.write_summary_csv(study.folder / "summary.csv", rows)
        table = tables.markdown_table(rows)
        write_atomically(study.folder / "summary.md", table.encode())
        figures.accuracy_histogram(rows, study.folder / "client_accuracies.png")
        show(tables.format_table(rows))
    logger.info("")
    logger.info("models, rows, tables and figures are in %s", study.folder)


def show(table: str) -> None:
    """Log a table, after an empty line."""
    for line in ["", *table.splitlines()]:
        logger.info("%s", line)
