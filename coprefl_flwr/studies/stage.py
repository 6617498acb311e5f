"""A stage: one run of one method on one population of clients, from given initial arrays.

A pre-training, a downstream task and a personalised method are each a stage. A stage writes
`result.json`, with a row per client and a row per round, and may write a model. A stage is done
when `result.json` exists. Files are written atomically. An interrupted stage continues after its
last checkpoint, and its result is byte for byte equal to the result of an uninterrupted run.

    FOLDER/result.json               {"rows": ..., "rounds": ...}
    FOLDER/SHA256SUMS                checksums of the result and the model, to detect damage
    FOLDER/seconds.json              seconds of each round of the last process; if `timed`
    FOLDER/checkpoint.safetensors    while the stage runs, with .rounds.jsonl next to it
    FOLDER/client-state/             states of clients, if the clients keep states
"""

import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from torch import nn

from coprefl_flwr.arrays import Arrays, to_record
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation.checkpoint import History
from coprefl_flwr.federation.client_state import STATE_FILE
from coprefl_flwr.federation.flower import NumPyClient
from coprefl_flwr.federation.keep import Keep
from coprefl_flwr.federation.run import EvaluateFn, Hook
from coprefl_flwr.files import remove_named, write_atomically
from coprefl_flwr.models import buffer_names
from coprefl_flwr.models.base import BASE, base_hash
from coprefl_flwr.options import WORDS, Checked, option, same_option
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.report.training_checks import NOT_FINITE, Problem
from coprefl_flwr.strategies import Replies, RoundReport, RoundStrategy
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.store import CHECKPOINT, SECONDS, STATES, Store, read_result, write_result

STAGE, FOLDER, FEATURES = "stage", "folder", "features"
"""Keys in the config of a message: the path of the stage, the folder of the stage's files, and the
folder of features. Both folders are relative to the folder of the client's process."""

CLIENT_ACCURACY = "client-accuracy"
"""Metric of a round's evaluation: the unweighted mean of the clients' accuracies, in percent."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Checked):
    """Options of running a stage: seed, waiting times, attempts, checkpoints, stopping, metrics."""

    seed: int = same_option(RoundStrategy, "seed", minimum=0)
    min_available_nodes: int = same_option(RoundStrategy, "min_available_nodes", counts=False)
    min_replies: int = same_option(RoundStrategy, "min_replies")
    max_failed_rounds: int = same_option(RoundStrategy, "max_failed_rounds")
    timeout: float = option(
        3600.0, "longest wait for the replies of an exchange", unit="s", above=0, counts=False
    )
    checkpoint_every: int = option(
        5, "rounds between checkpoints", unit="rounds", minimum=1, counts=False
    )
    keep: Keep | None = option(
        None,
        "keep the model of the best round, or end the pre-training early: `accuracy:patience=20`, "
        "`start-loss:stop-at=0.5,model=last`; not set: the model of the last round",
    )
    client_metrics: str = option(
        "",
        "your own metrics, module:NAME each, separated by spaces: functions of (outputs, targets) "
        "that every client computes on its test samples",
        takes=(WORDS,),
    )

    def of_strategy(self, population: str, **changes: Any) -> dict[str, Any]:
        """Return the keyword arguments of a strategy for a population; `changes` override them."""
        names = ("seed", "min_available_nodes", "min_replies", "max_failed_rounds")
        own = {name: getattr(self, name) for name in names} | {"population": population}
        return own | {"evaluate_every": 0} | changes


class ClientFolders(NamedTuple):
    """Folders of this process: the folder of the clients' states, and the folder of features."""

    states: Path
    features: Path


class Stage(ABC):
    """A step of a study that writes a result. Each kind of stage is a subclass.

    Parameters
    ----------
    title : str
        The title of the stage in the progress display and in messages.
    path : str
        The path of the stage in its study, such as "starts/coprefl". A message to a client names
        the path, by which the client's process finds the stage. No two stages have the same path,
        and no path is below another stage's path.
    start : str
        The name of the starting model, or of the personalised method, in the rows of the result.
    rounds : int
        Total number of rounds of all phases; 0 if the stage trains nothing.
    """

    phase: ClassVar[str]
    """Value of the column `phase` in the rows of the stage's rounds."""
    has_client_rows: ClassVar[bool] = False
    """Whether the result has a row per client of a task or of a personalised method.

    A report has these rows only. Rows of other stages remain in their `result.json`.
    """
    keeps_states: ClassVar[bool] = False
    """Whether the clients' states are kept at the end, because they are the clients' models."""
    phases: Sequence[Method] = ()
    """The phases of the stage's training, in order; empty if the stage trains nothing."""
    open_ended: bool = False
    """Whether the last checkpoint is kept, so that the stage can continue with more rounds."""
    task: int | None = None
    """The number of the downstream task, from 0; None if the stage is not about a task."""
    phase_switch: int = 0
    """The last round of the first phase if there are several phases; 0 if there is only one."""

    def __init__(self, title: str, path: str, start: str, rounds: int = 0) -> None:
        self.title, self.path, self.start, self.rounds = title, path, start, rounds

    @property
    @abstractmethod
    def key(self) -> str:
        """Return the stage's folder in a shared store: a name and a hash of `identity`."""

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return the inputs that the result depends on. Equal identities mean equal results."""

    def check(self) -> None:  # noqa: B027
        """Load the data, and raise a SettingsError if a setting does not fit the data."""

    @abstractmethod
    def make(self, grid: Grid, store: Store, hooks: Sequence[Hook]) -> None:
        """Compute the result, and write it into the stage's folder of the store.

        `hooks` are called after each round.
        """

    def max_parallel_clients(self) -> int:
        """Return how many clients can run at the same time. Further nodes would be idle."""
        return 1

    def features(self) -> str:
        """Return a hash of the inputs of the clients' features; "" if there are no features."""
        return ""

    def problem(self, folder: Path) -> Problem | None:
        """Return a problem of the result in the stage's folder, such as divergence, or None."""
        return None


class TrainingStage(Stage):
    """A stage that trains: one method on one population, from initial arrays."""

    has_client_rows: ClassVar[bool] = True
    timed: ClassVar[bool] = False
    """Whether the durations of the rounds are written to `seconds.json`."""
    keep: Keep | None = None
    """The choice of the best round, and when the stage ends early; None for neither."""
    warmup_rounds: int = 0
    """Number of preparatory rounds before round 1. The last preparatory round is round 0."""

    def __init__(
        self, run_options: RunOptions, title: str, path: str, start: str, rounds: int
    ) -> None:
        super().__init__(title, path, start, rounds)
        self.run_options = run_options

    @abstractmethod
    def strategy(self) -> RoundStrategy:
        """Return a new strategy, or the strategy of the stage."""

    @abstractmethod
    def initial(self, store: Store) -> Arrays:
        """Return the arrays that this stage starts with."""

    @abstractmethod
    def client(self, client_id: int, server_round: int, folders: ClientFolders) -> NumPyClient:
        """Return the client with this id, for a message of this round."""

    @property
    @abstractmethod
    def module(self) -> nn.Module:
        """The network that clients train in this process, with any weights."""

    def domains(self) -> Sequence[str]:
        """Return the domain of each evaluated client, in the order of ids; "" without domains."""
        return [""] * self.max_parallel_clients()

    def save_extras(self, folder: Path, report: RoundReport) -> dict[str, Any]:
        """Write further files, such as the model. Return further columns for each round's row.

        The method is called with the report of the last round, before the result is written.
        """
        return {}

    def problem(self, folder: Path) -> Problem | None:
        """Return a Problem if a client's or the last round's loss is not finite; else None."""
        result = read_result(folder)
        lost = sum(row["loss"] is None for row in result["rows"])
        if lost:
            of = f"{lost} of {len(result['rows'])} clients"
            return Problem(f"{of} end with a loss that is not finite")
        last = result["rounds"][-1] if result["rounds"] else {}
        return NOT_FINITE if last.get("loss", 0.0) is None else None

    def tester(self) -> EvaluateFn | None:
        """Return the function that evaluates the global model on the server, or None."""
        return None

    def make(self, grid: Grid, store: Store, hooks: Sequence[Hook]) -> None:
        """Train for all rounds, and write the result; with 0 rounds, save the initial arrays."""
        folder = store.folder(self)
        if not self.rounds:
            self.save_extras(folder, RoundReport(0, 0, self.initial(store), {}, None, 0.0))
            write_result(folder, [], [])
            return
        strategy, checkpoint = self.strategy(), folder / CHECKPOINT
        strategy.run_name, strategy.buffers = store.run_name, buffer_names(self.module)
        if not checkpoint.exists():
            remove_named(folder / STATES, STATE_FILE)
        # Messages have paths relative to the folder of the client's process.
        config = {STAGE: self.path, FOLDER: folder.relative_to(store.base).as_posix()}
        if base := base_hash(self.module):
            config[BASE] = base
        if key := self.features():
            config[FEATURES] = store.shared(key).relative_to(store.base).as_posix()
        strategy.start(
            grid,
            to_record(self.initial(store), copy=False),
            self.rounds,
            self.run_options.timeout,
            ConfigRecord(dict(config)),
            ConfigRecord(dict(config)),
            evaluate_fn=self.tester(),
            checkpoint=checkpoint if store.checkpoints else None,
            checkpoint_every=self.run_options.checkpoint_every,
            resume=checkpoint.exists(),
            keep=self.keep,
            hooks=[functools.partial(self._finish, folder, []), *hooks],
        )

    def _finish(self, folder: Path, seconds: list[float], report: RoundReport) -> None:
        """Record the clients' mean measures of a round; after the last round, write the result.

        The duration of the round is added to `seconds`.
        """
        if report.evaluation:
            metrics = report.evaluation.metrics
            means = report.history.evaluate[report.round]
            if "correct" in metrics:
                accuracies = 100 * metrics["correct"] / metrics["num-examples"]
                means[CLIENT_ACCURACY] = float(accuracies.mean())
            else:
                own = [name for name in metrics if name.startswith(METRIC)]
                means |= {f"client-{n}": float(np.nanmean(metrics[n])) for n in ("loss", *own)}
        seconds.append(report.seconds)
        if report.round == report.num_rounds:
            if self.timed:  # A separate file: the result must not depend on durations.
                write_atomically(folder / SECONDS, json.dumps(seconds).encode())
            more = self.save_extras(folder, report)
            rows = client_rows(self, report.evaluation) if self.has_client_rows else []
            write_result(folder, rows, round_rows(self, report.history, more))


def client_rows(stage: TrainingStage, evaluation: Replies | None) -> list[dict[str, Any]]:
    """Return a row per client: the metrics of the final model on the client's test samples.

    Raises a RunFailedError if a client did not evaluate, because means over fewer clients would not
    be comparable.
    """
    answered = evaluation.clients if evaluation else ()
    missing = sorted(set(range(len(stage.domains()))) - set(answered))
    if missing or evaluation is None:
        raise RunFailedError(f"{stage.title}: clients {missing} did not evaluate the model")
    metrics, domains = evaluation.metrics, stage.domains()
    own = {name: values for name, values in metrics.items() if name.startswith(METRIC)}
    hits = metrics.get("correct")
    return [
        {
            "start": stage.start,
            "task": stage.task or 0,
            "client": client,
            "n": int(metrics["num-examples"][position]),
            **({} if hits is None else {"correct": int(hits[position])}),
            "loss": float(metrics["loss"][position]),
            # Undefined values are left out.
            **{n: float(of[position]) for n, of in own.items() if not np.isnan(of[position])},
        }
        | ({"domain": domains[client]} if domains[client] else {})
        for position, client in enumerate(evaluation.clients)
    ]


def round_rows(
    stage: TrainingStage, history: History, more: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a row per round: the metrics, and the clients' mean accuracy if it was measured.

    Without classes, "evaluate-client-loss" and "evaluate-client-metric:NAME" are clients' means.

    The columns of `more` are added to every row.
    """
    rows, about = [], {"phase": stage.phase, "start": stage.start, "task": stage.task}
    has_classes = any(CLIENT_ACCURACY in metrics for metrics in history.evaluate.values())
    for number, metrics in history.rounds().items():
        accuracy = metrics.pop(f"evaluate-{CLIENT_ACCURACY}", None)
        measured = {"accuracy": accuracy} if stage.has_client_rows and has_classes else {}
        own = {**about, "round": number - stage.warmup_rounds, **measured}
        # A node may report metrics of any name, which must not overwrite the columns of `own`.
        rows.append({**own, **metrics, **more, **own})
    return rows
