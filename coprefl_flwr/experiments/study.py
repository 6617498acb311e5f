"""A study: pre-train starting models, try each on the same downstream tasks, write what came out.

Its folder, OUTPUT-DIR/RUN-NAME:

    settings.yaml                       the settings as used
    starts/START/model.safetensors      the starting model, and model.json: how it was made
    starts/START/rounds.jsonl           metrics of every pre-training round
    starts/START/checkpoint.safetensors while the pre-training runs
    tasks/NUMBER/START.json             a task from a start: rows per client, metrics per round
    rows.jsonl, rounds.jsonl            all of these in one file each
    pretraining.md                      what the pre-training came to, and what it sent
    summary.csv, summary.md             the comparison on the tasks
    client_accuracies.png, learning_curves.png

Every file is written in one step, and a part is done when its file is there: a run that was
interrupted goes on with the first part that is not.
"""

import importlib.metadata
import json
import logging
import platform
import shutil
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from torch import nn

import coprefl_flwr
from coprefl_flwr.arrays import Arrays, from_record, to_record
from coprefl_flwr.data import Dataset, ImageDataset, split_in_two
from coprefl_flwr.errors import RunFailedError, SettingsError
from coprefl_flwr.experiments import figures, tables
from coprefl_flwr.experiments.populations import (
    PRETRAINING,
    class_split,
    clients_samples,
    dataset,
    input_shape,
    population,
    samples_to_test_on,
    server_samples,
    task_name,
    union,
)
from coprefl_flwr.experiments.pretraining import pretraining_summary, pretraining_table
from coprefl_flwr.experiments.progress import Progress, quiet_flower
from coprefl_flwr.experiments.starts import Start, starts, task_strategy
from coprefl_flwr.files import write_atomically
from coprefl_flwr.models import (
    build_model,
    head_names,
    load_saved_model,
    model_arrays,
    save_model,
    with_fresh_head,
)
from coprefl_flwr.server_data import ServerData
from coprefl_flwr.settings import Settings, key_of, unknown
from coprefl_flwr.strategies import HybridCoPreFL, Replies, RoundReport
from coprefl_flwr.strategies.base import EvaluateFn

logger = logging.getLogger("flwr.coprefl")

FREE_ON_RESUME = {"resume", "output_dir", "data_dir", "min_nodes", "timeout", "checkpoint_every"}
"""Settings that a resumed run may change: they do not enter its numbers."""


@dataclass(frozen=True)
class Study:
    """A checked study, ready to run."""

    settings: Settings
    starts: list[Start]
    folder: Path
    head: frozenset[str]
    input_shape: tuple[int, ...]
    num_classes: int


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
        progress = Progress(len(study.starts) * (1 + settings.tasks))
        models = {start.name: pretrain(study, grid, start, progress) for start in study.starts}
        for number in range(settings.tasks):
            for start in study.starts:
                run_task(study, grid, number, start, models[start.name], progress)
    write_results(study)
    return study.folder


def prepare(settings: Settings) -> Study:
    """Check everything a study needs and make its folder; nothing is written before that."""
    if not settings.run_name:
        settings = replace(settings, run_name=datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    chosen = starts(settings)
    classes, _ = class_split(settings)
    shape = input_shape(settings)
    head = head_names(settings.model, len(classes), shape, settings.norm)
    for name in [PRETRAINING, *map(task_name, range(settings.tasks))]:
        population(settings, name)
    _check_server_share(settings, chosen)
    _check_support_sets(settings, chosen)
    folder = Path(settings.output_dir).expanduser().resolve() / settings.run_name
    check_folder(folder, settings)
    config = settings.to_config()
    write_atomically(folder / "settings.yaml", yaml.safe_dump(config).encode())
    return Study(settings, chosen, folder, head, shape, len(classes))


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


def check_folder(folder: Path, settings: Settings) -> None:
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


def initial_model(study: Study) -> Arrays:
    """Return the random weights that every pre-training starts from."""
    settings = study.settings
    return model_arrays(
        build_model(
            settings.model,
            study.num_classes,
            study.input_shape,
            settings.norm,
            seed_key=(settings.seed, "model"),
        )
    )


def pretrain(study: Study, grid: Grid, start: Start, progress: Progress) -> Arrays:
    """Return the starting model, pre-training it unless that is done."""
    folder = study.folder / "starts" / start.folder
    title = f"pre-training {start.name}"
    if (folder / "model.safetensors").exists():
        progress.skip(title)
        return load_saved_model(folder)[0]
    arrays = initial_model(study)
    if not start.phases:
        progress.done += 1
        save_model(folder, arrays, about(study, start))
        return arrays
    progress.begin(title)
    settings = study.settings
    checkpoint = folder / "checkpoint.safetensors"
    state = folder / "client-state"
    strategy = start.strategy(lambda pool: server_data(study, pool))
    result = strategy.start(
        grid,
        to_record(arrays),
        start.rounds,
        settings.timeout,
        ConfigRecord({"start": start.name, "state-dir": str(state)}),
        evaluate_fn=tester(study, start.rounds) if settings.test_every else None,
        checkpoint=checkpoint,
        checkpoint_every=settings.checkpoint_every,
        resume=checkpoint.exists(),
        hooks=[progress],
    )
    rounds = [
        {"phase": "pretraining", "start": start.name, "task": None, "round": number, **metrics}
        for number, metrics in strategy.history.rounds().items()
    ]
    write_lines(folder / "rounds.jsonl", rounds)
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    save_model(folder, arrays, about(study, start))
    checkpoint.unlink()
    shutil.rmtree(state, ignore_errors=True)
    return arrays


def server_data(study: Study, pool: str) -> ServerData:
    """Return what is computed on at the server: its own data, all of the clients', or both."""
    pools = {"server": [server_samples], "clients": [clients_samples]}
    pools["both"] = [*pools["clients"], *pools["server"]]
    return ServerData(_network(study), union([held(study.settings) for held in pools[pool]]))


def _network(study: Study) -> nn.Module:
    settings = study.settings
    return build_model(settings.model, study.num_classes, study.input_shape, settings.norm)


def tester(study: Study, last_round: int) -> EvaluateFn:
    """Return what tests the pre-trained model on the dataset's own test part, when that is due."""
    test = ServerData(_network(study), samples_to_test_on(study.settings))
    every = study.settings.test_every

    def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round % every and server_round != last_round:
            return None
        found = test.evaluate(from_record(arrays))
        accuracy = 100 * found["correct"] / found["num-examples"]
        return MetricRecord({"accuracy": accuracy, "loss": found["loss"]})

    return measure


def about(study: Study, start: Start) -> dict[str, Any]:
    """Return how a starting model was made, for its JSON."""
    source = dataset(study.settings)
    pretraining, _ = class_split(study.settings)
    return {
        "start": start.name,
        "phases": [{"method": phase.name, **phase.own_settings()} for phase in start.phases],
        "model": study.settings.model,
        "norm": study.settings.norm,
        "num-classes": study.num_classes,
        "input-shape": list(study.input_shape),
        "classes": [source.classes[number] for number in pretraining],
        **_pixels(source),
        "settings": study.settings.to_config(),
        "versions": {
            "coprefl-flwr": coprefl_flwr.__version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("flwr", "torch")},
        },
    }


def _pixels(source: Dataset) -> dict[str, list[float]]:
    """Return how the pixels of images were normalised; texts have none."""
    if not isinstance(source, ImageDataset):
        return {}
    return {"pixel-mean": source.mean.tolist(), "pixel-std": source.std.tolist()}


def run_task(
    study: Study, grid: Grid, number: int, start: Start, model: Arrays, progress: Progress
) -> None:
    """Run a downstream task from a starting model and write its file, unless it is there."""
    settings, name = study.settings, task_name(number)
    file = study.folder / "tasks" / str(number) / f"{start.folder}.json"
    title = f"task {number} from {start.name}"
    if file.exists():
        progress.skip(title)
        return
    progress.begin(title)
    curve: list[dict[str, Any]] = []

    def keep(report: RoundReport) -> None:
        measured = report.evaluation
        accuracy = float(client_accuracies(measured).mean()) if measured else None
        curve.append(
            {
                "phase": "downstream",
                "start": start.name,
                "task": number,
                "round": report.round,
                "accuracy": accuracy,
                **report.metrics,
            }
        )

    strategy = task_strategy(settings, name)
    state = file.with_suffix(".client-state")
    shutil.rmtree(state, ignore_errors=True)
    strategy.start(
        grid,
        to_record(task_model(study, name, model)),
        settings.task_rounds,
        settings.timeout,
        ConfigRecord({"state-dir": str(state)}),
        hooks=[progress, keep],
    )
    shutil.rmtree(state, ignore_errors=True)
    rows = client_rows(start.name, number, strategy.evaluation, settings.task_clients)
    write_atomically(file, json.dumps({"rows": rows, "rounds": curve}, indent=1).encode())


def task_model(study: Study, name: str, start: Arrays) -> Arrays:
    """Return the starting model with a fresh head, the same for every start of the task."""
    settings = study.settings
    fresh = build_model(
        settings.model,
        settings.task_classes,
        study.input_shape,
        settings.norm,
        seed_key=(settings.seed, name, "model"),
    )
    return with_fresh_head(start, fresh, study.head)


def client_accuracies(evaluation: Replies) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return each client's accuracy in percent, in the order of client ids."""
    metrics = evaluation.metrics
    return np.asarray(100 * metrics["correct"] / metrics["num-examples"])


def client_rows(
    start: str, task: int, evaluation: Replies | None, clients: int
) -> list[tables.ClientRow]:
    """Return a task's row per client.

    Raises
    ------
    RunFailedError
        If a client did not evaluate: metrics over the others would not be comparable.
    """
    found = evaluation.clients if evaluation else ()
    missing = sorted(set(range(clients)) - set(found))
    if missing or evaluation is None:
        raise RunFailedError(f"task {task} from {start}: no evaluation from clients {missing}")
    metrics = evaluation.metrics
    return [
        {
            "start": start,
            "task": task,
            "client": client,
            "n": int(metrics["num-examples"][position]),
            "correct": int(metrics["correct"][position]),
            "loss": float(metrics["loss"][position]),
        }
        for position, client in enumerate(evaluation.clients)
    ]


def write_results(study: Study) -> None:
    """Gather the parts' files into rows, rounds, tables and figures; log the table."""
    rows: list[tables.ClientRow] = []
    rounds: list[dict[str, Any]] = []
    for start in study.starts:
        kept = study.folder / "starts" / start.folder / "rounds.jsonl"
        if kept.exists():
            rounds += [json.loads(line) for line in kept.read_text().splitlines()]
        for number in range(study.settings.tasks):
            file = study.folder / "tasks" / str(number) / f"{start.folder}.json"
            part = json.loads(file.read_text())
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


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON Lines, atomically."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(path, text.encode())
