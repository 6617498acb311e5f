"""A stage: one method on one population, from given arrays.

Pre-training, a downstream task and a personalised method are stages alike. A stage leaves
`result.json`, with a row per client and one per round, and may leave a model; it is done when the
result is there. Files are written in one step: a stage that was interrupted continues after its
last checkpoint, and ends with the very bytes of one that was not.

    FOLDER/result.json               {"rows": ..., "rounds": ...}
    FOLDER/SHA256SUMS                checksums of it and of the model, by which damage is found
    FOLDER/seconds.json              how long each round took, of the last process alone; if `timed`
    FOLDER/checkpoint.safetensors    while it is under way, with .rounds.jsonl next to it
    FOLDER/client-state/             what its clients keep, where they keep something
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord
from flwr.client import NumPyClient
from flwr.serverapp import Grid

from coprefl_flwr.arrays import Arrays, to_record
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.federation.checkpoint import History, State
from coprefl_flwr.federation.client_state import STATE_FILE
from coprefl_flwr.federation.progress import Progress
from coprefl_flwr.federation.run import EvaluateFn, Hook
from coprefl_flwr.files import remove_named, write_atomically
from coprefl_flwr.options import WORDS, Checked, option
from coprefl_flwr.plugins import METRIC
from coprefl_flwr.report.training_checks import DIVERGED, Trouble
from coprefl_flwr.strategies import Replies, RoundReport, RoundStrategy
from coprefl_flwr.studies.phases import Phase
from coprefl_flwr.studies.store import CHECKPOINT, SECONDS, STATES, Store, read_result, write_result

STAGE, FOLDER, FEATURES = "stage", "folder", "features"
"""Settings of a message: its stage's path, and names below the client's own folder, of its stage's
files and features."""

CLIENT_ACCURACY = "client-accuracy"
"""The plain mean of the clients' accuracies in percent, in a round's evaluation."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Checked):
    """How stages are run: the seed, and when to wait, to give up and to keep a checkpoint."""

    seed: int = option(0, "seed of every random choice", minimum=0)
    min_available_nodes: int = option(
        1,
        "clients to wait for before the first round; a node that hosts several clients counts as "
        "that many",
        minimum=1,
        counts=False,
    )
    min_replies: int = option(
        1,
        "valid client replies needed per message exchange; with fewer, the round is repeated",
        minimum=1,
    )
    max_failed_rounds: int = option(3, "attempts at a round before the run fails", minimum=1)
    timeout: float = option(
        3600.0,
        "longest wait for the replies of a message exchange",
        unit="s",
        above=0,
        counts=False,
    )
    checkpoint_every: int = option(
        5, "rounds between checkpoints", unit="rounds", minimum=1, counts=False
    )
    stop_at_loss: float | None = option(
        None,
        "stop the pre-training when the global model's mean loss over all training samples of all "
        "its clients (in float32) is at most this; checked every `stop-check-every` rounds",
        above=0,
        starts_only="its methods have no model of everybody to stop at",
    )
    stop_check_every: int = option(
        5, "rounds between checks of `stop-at-loss`", unit="rounds", minimum=1
    )
    client_metrics: str = option(
        "",
        "your own metrics, module:NAME each, separated by spaces: functions of (logits, labels) "
        "that every client computes on its test samples",
        takes=(WORDS,),
    )

    def of_strategy(self, population: str, **changes: Any) -> dict[str, Any]:
        """Return the options that the strategy of a population takes from these."""
        names = ("seed", "min_available_nodes", "min_replies", "max_failed_rounds")
        own = {name: getattr(self, name) for name in names} | {"population": population}
        return own | {"evaluate_every": 0} | changes


class ClientFolders(NamedTuple):
    """Where clients of this process find files: those of their stage's states, and features."""

    states: Path
    features: Path


class Stage(ABC):
    """A step of a study that leaves a result; each kind of stage is a subclass.

    Parameters
    ----------
    title : str
        As progress shows it.
    path : str
        Where it is in its own study. Messages name it, so that clients know what to do.
    start : str
        What its rows and rounds call it: the starting model, or the personalised method.
    rounds : int
        Rounds of all phases; 0 where nothing is trained.
    """

    kind: ClassVar[str]
    """Kind of stage whose speed is used to estimate the remaining time."""
    phase: ClassVar[str]
    """Value of `phase` in the rows of its rounds."""
    has_client_rows: ClassVar[bool] = False
    """Whether it leaves a row per client, which tables compare: tasks, personalised methods."""
    phases: Sequence[Phase] = ()
    """The methods that it trains by, one after the other."""
    open_ended: bool = False
    """Whether it keeps its last checkpoint, so that it can continue with more rounds."""
    task: int | None = None
    phase_switch: int = 0
    """The last round of the first of several phases; 0 for one phase."""

    def __init__(self, title: str, path: str, start: str, rounds: int = 0) -> None:
        self.title, self.path, self.start, self.rounds = title, path, start, rounds

    @property
    @abstractmethod
    def key(self) -> str:
        """Return its folder in a shared store: a name and a hash of its identity."""

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return the parts that the result depends on; equal identities mean equal results."""

    def check(self) -> None:  # noqa: B027
        """Raise a SettingsError if something cannot be had as set; loads the data."""

    @abstractmethod
    def make(self, making: "Making") -> None:
        """Compute the result, and write it into the folder of the stage."""

    def max_parallel_clients(self) -> int:
        """Return the number of clients that can run at the same time; more nodes would be idle."""
        return 1

    def features(self) -> str:
        """Return a hash of what its clients' features depend on, "" where they have none."""
        return ""

    def trouble(self, folder: Path, start_loss: float | None = None) -> Trouble | None:
        """Return what is wrong with the result in its folder, if anything.

        `start_loss` is that of a start over all clients' data, where it was measured.
        """
        return None


class Making(NamedTuple):
    """The objects that a stage runs with: the grid, the store, its folder, the progress, hooks."""

    grid: Grid
    store: Store
    folder: Path
    progress: Progress
    hooks: Sequence[Hook]
    run_name: str


class TrainingStage(Stage):
    """A method on one population, from arrays that it begins with."""

    has_client_rows: ClassVar[bool] = True
    timed: ClassVar[bool] = False
    """Whether it leaves how long its rounds took."""
    warmup_rounds: int = 0
    """Rounds that prepare, before those that are counted: the last of them is round 0."""

    def __init__(
        self, run_options: RunOptions, title: str, path: str, start: str, rounds: int
    ) -> None:
        super().__init__(title, path, start, rounds)
        self.run_options = run_options

    @abstractmethod
    def strategy(self) -> RoundStrategy:
        """Make the strategy."""

    @abstractmethod
    def initial(self, store: Store) -> Arrays:
        """Return the arrays that this stage starts with."""

    def client(self, client_id: int, server_round: int, folders: ClientFolders) -> NumPyClient:
        """Return the client that a message of a round is about."""
        raise AssertionError(f"{self.title}: its clients are not of this package")

    def domains(self) -> Sequence[str]:
        """Return the domain of each client that it measures, "" where there are no domains."""
        return ()

    def save_extras(self, folder: Path, arrays: Arrays, state: State) -> dict[str, Any]:
        """Write what it leaves besides rows and rounds; return more columns of every round.

        Called after the last round, before the result is written, with the final arrays.
        """
        return {}

    def trouble(self, folder: Path, start_loss: float | None = None) -> Trouble | None:
        """Return whether clients, or the last round, ended with a loss that is not finite."""
        result = read_result(folder)
        lost = sum(row["loss"] is None for row in result["rows"])
        if lost:
            of = f"{lost} of {len(result['rows'])} clients"
            return Trouble(f"{of} end with a loss that is not finite")
        last = result["rounds"][-1] if result["rounds"] else {}
        return Trouble(DIVERGED) if last.get("loss", 0.0) is None else None

    def ends(self, report: RoundReport) -> bool:
        """Tell whether it ends after a round, before all its rounds were run."""
        return False

    def tester(self) -> EvaluateFn | None:
        """Return what tests the global model on the server, if anything does."""
        return None

    def make(self, making: Making) -> None:
        """Train for all rounds; without rounds, keep the arrays that it begins with."""
        if not self.rounds:
            making.progress.note(self.title)
            self.save_extras(making.folder, self.initial(making.store), {})
            write_result(making.folder, [], [])
            return
        part = making.progress.begin(self.title, self.kind, self.rounds, self.phase_switch)
        try:
            _train(self, making._replace(hooks=[*making.hooks, part]))
        finally:
            making.progress.end(part)


def _train(stage: TrainingStage, making: Making) -> None:
    _, store, folder, *_ = making
    strategy = stage.strategy()
    strategy.run_name = making.run_name
    checkpoint, seconds = folder / CHECKPOINT, list[float]()
    if not checkpoint.exists():
        remove_named(folder / STATES, STATE_FILE)

    def finish(report: RoundReport) -> None:
        """Keep what a checkpoint does not hold: what was evaluated, and at the end the result."""
        if report.evaluation:
            metrics = _of_evaluation(stage, report.evaluation)
            mean = float((100 * metrics["correct"] / metrics["num-examples"]).mean())
            report.history.evaluate[report.round][CLIENT_ACCURACY] = mean
        seconds.append(report.seconds)
        if report.round == report.num_rounds:
            if stage.timed:  # Not in the result, which is the same however long it took.
                write_atomically(folder / SECONDS, json.dumps(seconds).encode())
            more = stage.save_extras(folder, report.arrays, report.state)
            rows = client_rows(stage, report.evaluation) if stage.has_client_rows else []
            write_result(folder, rows, round_rows(stage, report.history, more))

    config = {STAGE: stage.path, FOLDER: _name_in_messages(folder, store)}
    if stage.features():
        config[FEATURES] = _name_in_messages(store.shared(stage.features()), store)
    strategy.start(
        making.grid,
        to_record(stage.initial(store), copy=False),
        stage.rounds,
        stage.run_options.timeout,
        ConfigRecord(dict(config)),
        ConfigRecord(dict(config)),
        evaluate_fn=stage.tester(),
        checkpoint=checkpoint if store.checkpoints else None,
        checkpoint_every=stage.run_options.checkpoint_every,
        resume=checkpoint.exists(),
        stop=stage.ends,
        hooks=[finish, *making.hooks],
    )


def _name_in_messages(folder: Path, store: Store) -> str:
    """Return a folder's name for messages, which clients look for below their own folder."""
    return folder.relative_to(store.base).as_posix()


def client_rows(stage: TrainingStage, evaluation: Replies | None) -> list[dict[str, Any]]:
    """Return a row per client: what the final model is worth to it on its own test samples.

    Raises a RunFailedError if a client did not evaluate: metrics over the others would not be
    comparable.
    """
    answered = evaluation.clients if evaluation else ()
    missing = sorted(set(range(len(stage.domains()))) - set(answered))
    if missing or evaluation is None:
        raise RunFailedError(f"{stage.title}: no evaluation from clients {missing}")
    metrics, domains = _of_evaluation(stage, evaluation), stage.domains()
    return [
        {
            "start": stage.start,
            "task": stage.task or 0,
            "client": client,
            "n": int(metrics["num-examples"][position]),
            "correct": int(metrics["correct"][position]),
            "loss": float(metrics["loss"][position]),
            **{name: float(metrics[name][position]) for name in metrics if name.startswith(METRIC)},
        }
        | ({"domain": domains[client]} if domains[client] else {})
        for position, client in enumerate(evaluation.clients)
    ]


def _of_evaluation(
    stage: TrainingStage, evaluation: Replies
) -> Mapping[str, npt.NDArray[np.float64]]:
    """Return the metrics of an evaluation; a RunFailedError where a client left the hits out."""
    hits = evaluation.metrics.get("correct")
    if hits is None or np.isnan(hits).any():
        problem = "the evaluation of a client has no metric 'correct'"
        needed = "`evaluate` returns (loss, n, {'correct': hits among the n})"
        raise RunFailedError(f"{stage.title}: {problem}; {needed}")
    return evaluation.metrics


def round_rows(
    stage: TrainingStage, history: History, more: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a row per round: its metrics, and the clients' accuracy where that was measured."""
    rows, about = [], {"phase": stage.phase, "start": stage.start, "task": stage.task}
    for number, metrics in history.rounds().items():
        accuracy = metrics.pop(f"evaluate-{CLIENT_ACCURACY}", None)
        measured = {"accuracy": accuracy} if stage.has_client_rows else {}
        own = {**about, "round": number - stage.warmup_rounds, **measured}
        # A node may answer with metrics of any name, which are not to take the place of these.
        rows.append({**own, **metrics, **more, **own})
    return rows
