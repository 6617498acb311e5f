"""The two parts that every study is made of: pre-train a starting model, run a task from it.

A part is done when its file is there, and files are written in one step: a part that was
interrupted goes on after its last checkpoint.
"""

import functools
import importlib.metadata
import json
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from torch import nn

import coprefl_flwr
from coprefl_flwr.arrays import Arrays, from_record, to_record
from coprefl_flwr.data import Dataset, ImageDataset
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.files import write_atomically
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.models import (
    build_model,
    head_names,
    load_saved_model,
    model_arrays,
    save_model,
    with_fresh_head,
)
from coprefl_flwr.report import tables
from coprefl_flwr.rounds.strategy import EvaluateFn, Hook
from coprefl_flwr.strategies import Replies, RoundReport
from coprefl_flwr.studies.populations import (
    class_split,
    clients_samples,
    dataset,
    input_shape,
    samples_to_test_on,
    server_samples,
    task_name,
    union,
)
from coprefl_flwr.studies.progress import PRETRAINING_KIND, TASK_KIND, Progress
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.starts import Start, task_strategy


@dataclass(frozen=True)
class Setup:
    """Settings, and what the data and the network that they name come to.

    Parameters
    ----------
    head : frozenset[str]
        Names of the arrays whose shape depends on the number of classes.
    input_shape : tuple[int, ...]
        Of one sample.
    num_classes : int
        Of the pre-training.
    """

    settings: Settings
    head: frozenset[str]
    input_shape: tuple[int, ...]
    num_classes: int

    @classmethod
    def of(cls, settings: Settings) -> "Setup":
        """Load the data and build the network once, or raise a SettingsError."""
        classes, _ = class_split(settings)
        shape = input_shape(settings)
        head = _head(settings.model, len(classes), shape, settings.norm)
        return cls(settings, head, shape, len(classes))

    def network(self) -> nn.Module:
        """Return a network of the pre-training."""
        settings = self.settings
        return build_model(settings.model, self.num_classes, self.input_shape, settings.norm)

    def server_data(self, pool: str) -> ServerData:
        """Return what is computed on at the server: its own data, all of the clients', or both."""
        pools = {"server": [server_samples], "clients": [clients_samples]}
        pools["both"] = [*pools["clients"], *pools["server"]]
        return ServerData(self.network(), union([held(self.settings) for held in pools[pool]]))


@functools.lru_cache(maxsize=16)
def _head(model: str, num_classes: int, shape: tuple[int, ...], norm: str) -> frozenset[str]:
    """Return `head_names`, for which networks are built, once for all runs of a comparison."""
    return head_names(model, num_classes, shape, norm)


def initial_model(setup: Setup) -> Arrays:
    """Return the random weights that every pre-training starts from."""
    settings = setup.settings
    return model_arrays(
        build_model(
            settings.model,
            setup.num_classes,
            setup.input_shape,
            settings.norm,
            seed_key=(settings.seed, "model"),
        )
    )


def pretrain(
    setup: Setup,
    grid: Grid,
    start: Start,
    folder: Path,
    progress: Progress,
    hooks: Sequence[Hook] = (),
) -> Arrays:
    """Return the starting model, pre-training it into the folder unless that is done."""
    title = f"pre-training {start.name}"
    checkpoint = folder / "checkpoint.safetensors"
    state = folder / "client-state"
    if (folder / "model.safetensors").exists():
        progress.skip(title, PRETRAINING_KIND, start.rounds)
        checkpoint.unlink(missing_ok=True)
        shutil.rmtree(state, ignore_errors=True)
        return load_saved_model(folder)[0]
    arrays = initial_model(setup)
    if not start.phases:
        progress.done += 1
        save_model(folder, arrays, about(setup, start))
        return arrays
    progress.begin(title, PRETRAINING_KIND, start.rounds)
    settings = setup.settings
    strategy = start.strategy(setup.server_data)
    result = strategy.start(
        grid,
        to_record(arrays),
        start.rounds,
        settings.timeout,
        ConfigRecord({"start": start.name, "state-dir": str(state)}),
        evaluate_fn=tester(setup, start.rounds) if settings.test_every else None,
        checkpoint=checkpoint,
        checkpoint_every=settings.checkpoint_every,
        resume=checkpoint.exists(),
        hooks=[progress, *hooks],
    )
    rounds = [
        {"phase": "pretraining", "start": start.name, "task": None, "round": number, **metrics}
        for number, metrics in strategy.history.rounds().items()
    ]
    write_lines(folder / "rounds.jsonl", rounds)
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    save_model(folder, arrays, about(setup, start))
    checkpoint.unlink()
    shutil.rmtree(state, ignore_errors=True)
    return arrays


def tester(setup: Setup, last_round: int) -> EvaluateFn:
    """Return what tests the pre-trained model on the dataset's own test part, when that is due."""
    test = ServerData(setup.network(), samples_to_test_on(setup.settings))
    every = setup.settings.test_every

    def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round % every and server_round != last_round:
            return None
        found = test.evaluate(from_record(arrays))
        accuracy = 100 * found["correct"] / found["num-examples"]
        return MetricRecord({"accuracy": accuracy, "loss": found["loss"]})

    return measure


def about(setup: Setup, start: Start) -> dict[str, Any]:
    """Return how a starting model was made, for its JSON."""
    source = dataset(setup.settings)
    pretraining, _ = class_split(setup.settings)
    return {
        "start": start.name,
        "phases": [{"method": phase.name, **phase.own_settings()} for phase in start.phases],
        "model": setup.settings.model,
        "norm": setup.settings.norm,
        "num-classes": setup.num_classes,
        "input-shape": list(setup.input_shape),
        "classes": [source.classes[number] for number in pretraining],
        **_pixels(source),
        "settings": setup.settings.to_config(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of what results depend on."""
    others = {name: importlib.metadata.version(name) for name in ("flwr", "torch")}
    return {
        "coprefl-flwr": coprefl_flwr.__version__,
        "python": platform.python_version(),
        **others,
    }


def _pixels(source: Dataset) -> dict[str, list[float]]:
    """Return how the pixels of images were normalised; texts have none."""
    if not isinstance(source, ImageDataset):
        return {}
    return {"pixel-mean": source.mean.tolist(), "pixel-std": source.std.tolist()}


def run_task(
    setup: Setup,
    grid: Grid,
    number: int,
    start: str,
    model: Arrays,
    file: Path,
    progress: Progress,
    hooks: Sequence[Hook] = (),
) -> None:
    """Run a downstream task from a starting model and write its file, unless it is there.

    The file holds {"rows": a `tables.ClientRow` per client, "rounds": metrics per round}.
    """
    settings, title = setup.settings, f"task {number} from {start}"
    checkpoint = file.with_suffix(".checkpoint.safetensors")
    rounds = file.with_suffix(".rounds.jsonl")
    state = file.with_suffix(".client-state")
    if file.exists():
        progress.skip(title, TASK_KIND, settings.task_rounds)
    else:
        progress.begin(title, TASK_KIND, settings.task_rounds)
        curve = _Curve(start, number, rounds)
        strategy = task_strategy(settings, task_name(number))

        def finish(report: RoundReport) -> None:
            # Before the last checkpoint is written: a run resumed after it has nothing to measure.
            if report.round == report.num_rounds:
                rows = client_rows(start, number, report.evaluation, settings.task_clients)
                part = {"rows": rows, "rounds": curve.rows}
                write_atomically(file, json.dumps(part, indent=1).encode())

        strategy.start(
            grid,
            to_record(task_model(setup, task_name(number), model)),
            settings.task_rounds,
            settings.timeout,
            ConfigRecord({"state-dir": str(state)}),
            checkpoint=checkpoint,
            checkpoint_every=settings.checkpoint_every,
            resume=checkpoint.exists(),
            hooks=[progress, curve, finish, *hooks],
        )
    for left in (checkpoint, rounds):
        left.unlink(missing_ok=True)
    shutil.rmtree(state, ignore_errors=True)


class _Curve:
    """A task's metrics per round, kept beside its checkpoint (a hook, called before that)."""

    def __init__(self, start: str, task: int, file: Path) -> None:
        self._about = {"phase": "downstream", "start": start, "task": task}
        self._file = file
        self.rows: list[dict[str, Any]] = read_lines(file)

    def __call__(self, report: RoundReport) -> None:
        measured = report.evaluation
        accuracy = float(client_accuracies(measured).mean()) if measured else None
        # A round after the last checkpoint is run again.
        self.rows = [row for row in self.rows if row["round"] < report.round]
        self.rows.append(
            {**self._about, "round": report.round, "accuracy": accuracy, **report.metrics}
        )
        write_lines(self._file, self.rows)


def task_model(setup: Setup, name: str, start: Arrays) -> Arrays:
    """Return the starting model, unless its head is kept with one the same for every start."""
    settings = setup.settings
    if settings.head == "keep":
        return start
    fresh = build_model(
        settings.model,
        settings.task_classes,
        setup.input_shape,
        settings.norm,
        seed_key=(settings.seed, name, "model"),
    )
    return with_fresh_head(start, fresh, setup.head)


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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file; none if it is not there."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a JSON Lines file in one step."""
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
