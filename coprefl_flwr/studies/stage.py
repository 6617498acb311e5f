"""A stage: one method on one population, from given arrays.

Pre-training, a downstream task and a personalised method are stages alike. A stage leaves
`result.json`, with a row per client and one per round, and may leave a model; it is done when the
result is there. Files are written in one step: a stage that was interrupted goes on after its last
checkpoint, and ends with the very bytes of one that was not.

    FOLDER/result.json               {"rows": ..., "rounds": ...}
    FOLDER/checkpoint.safetensors    while it is under way
    FOLDER/client-state/             what its clients keep, where they keep something
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from coprefl_flwr.arrays import Arrays, to_record
from coprefl_flwr.errors import RunFailedError
from coprefl_flwr.files import write_atomically
from coprefl_flwr.options import check_declared, option
from coprefl_flwr.rounds.progress import Progress
from coprefl_flwr.rounds.strategy import EvaluateFn, Hook
from coprefl_flwr.strategies import Replies, RoundReport, RoundStrategy

RESULT, ABOUT = "result.json", "model.json"

CLIENT_ACCURACY = "client-accuracy"
"""The plain mean of the clients' accuracies in percent, in a round's evaluation."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How stages are run: the seed, and when to wait, to give up and to keep a checkpoint."""

    seed: int = option(0, "every random choice is a function of it", minimum=0)
    min_nodes: int = option(1, "nodes to wait for before the first round", minimum=1)
    min_replies: int = option(1, "good replies an exchange needs", minimum=1)
    max_failed_rounds: int = option(3, "attempts at a round before the run fails", minimum=1)
    timeout: float = option(3600.0, "longest wait for an exchange", unit="s", above=0)
    checkpoint_every: int = option(5, "rounds between checkpoints", unit="rounds", minimum=1)

    def __post_init__(self) -> None:
        """Check each value."""
        check_declared(self)

    def of_strategy(self, population: str, **changes: Any) -> dict[str, Any]:
        """Return the options that the strategy of a population takes from these."""
        return {
            "seed": self.seed,
            "population": population,
            "min_nodes": self.min_nodes,
            "min_replies": self.min_replies,
            "max_failed_rounds": self.max_failed_rounds,
        } | changes


class Store(Protocol):
    """Where stages lie."""

    def folder(self, stage: "Stage") -> Path:
        """Return the folder of a stage."""

    def shared(self, key: str) -> Path:
        """Return the folder of what several stages share, by a hash of what it depends on."""


Keep = Callable[[Path, RoundReport, RoundStrategy], Mapping[str, Any]]
"""Writes what a stage leaves besides rows and rounds; returns more columns of every round."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """One method on one population, ready to run.

    Parameters
    ----------
    title, kind : str
        As progress shows it, and what it has the pace of: "pre-training", "task", "personalised".
    path : str
        Its folder in a study of its own.
    key : Callable[[], str]
        Its folder in a store that studies share: a name and a hash of all that it depends on.
    method : str
        The entry of `method` or `task-method`, by which clients know what to do.
    about : Mapping[str, Any]
        What its rows and rounds say of it: phase, start, task.
    rounds : int
        Rounds of all phases; 0 for a model that is not trained.
    strategy : Callable[[], RoundStrategy]
        Makes the strategy.
    initial : Callable[[Store], Arrays]
        Gives the arrays that it begins with.
    keep : Keep
        Called with its folder after the last round, before the result is written.
    untrained : Callable[[Path, Arrays], None]
        The same for a model that is not trained.
    measures : bool
        Whether it leaves a row per client.
    clients : Callable[[], Sequence[str]]
        Gives the domain of each of its clients, "" where there are no domains.
    shared : Callable[[], str]
        Hash of what its clients' features depend on, "" where they have none.
    tested : Callable[[], EvaluateFn], optional
        Makes what tests the global model on the server.
    """

    title: str
    kind: str
    path: str
    key: Callable[[], str]
    method: str
    about: Mapping[str, Any]
    rounds: int
    run: RunSettings
    strategy: Callable[[], RoundStrategy]
    initial: Callable[[Store], Arrays]
    keep: Keep = lambda _folder, _report, _strategy: {}
    untrained: Callable[[Path, Arrays], None] = lambda _folder, _arrays: None
    measures: bool = False
    clients: Callable[[], Sequence[str]] = lambda: ()
    shared: Callable[[], str] = lambda: ""
    tested: Callable[[], EvaluateFn] | None = None


def run_stage(
    stage: Stage, grid: Grid, store: Store, progress: Progress, hooks: Sequence[Hook] = ()
) -> None:
    """Run a stage into its folder, unless that is done."""
    folder = store.folder(stage)
    checkpoint, state = folder / "checkpoint.safetensors", folder / "client-state"
    if (folder / RESULT).exists():
        progress.skip(stage.title, stage.kind, stage.rounds)
    elif not stage.rounds:
        progress.done += 1
        stage.untrained(folder, stage.initial(store))
        write_result(folder, [], [])
    else:
        progress.begin(stage.title, stage.kind, stage.rounds)
        _train(stage, grid, store, checkpoint, [progress], hooks)
    checkpoint.unlink(missing_ok=True)
    if stage.kind != "personalised":  # There the clients' models are what it is about.
        shutil.rmtree(state, ignore_errors=True)


def _train(
    stage: Stage,
    grid: Grid,
    store: Store,
    checkpoint: Path,
    first: Sequence[Hook],
    hooks: Sequence[Hook],
) -> None:
    folder, strategy = checkpoint.parent, stage.strategy()
    if not checkpoint.exists():
        shutil.rmtree(folder / "client-state", ignore_errors=True)

    def finish(report: RoundReport) -> None:
        """Keep what a checkpoint does not hold: what was evaluated, and at the end the result."""
        if report.evaluation:
            mean = float(client_accuracies(report.evaluation).mean())
            strategy.history.evaluate[report.round][CLIENT_ACCURACY] = mean
        if report.round == report.num_rounds:
            more = stage.keep(folder, report, strategy)
            rows = client_rows(stage, report.evaluation) if stage.measures else []
            write_result(folder, rows, round_rows(stage, strategy, more))

    def config() -> ConfigRecord:
        """Return what every message says: the method, and where states and features are."""
        places = {"state-dir": str(folder / "client-state")}
        if stage.shared():
            places["feature-dir"] = str(store.shared(stage.shared()))
        return ConfigRecord({"method": stage.method, **places})

    strategy.start(
        grid,
        to_record(stage.initial(store)),
        stage.rounds,
        stage.run.timeout,
        config(),
        config(),
        evaluate_fn=stage.tested() if stage.tested else None,
        checkpoint=checkpoint,
        checkpoint_every=stage.run.checkpoint_every,
        resume=checkpoint.exists(),
        hooks=[*first, finish, *hooks],
    )


def client_accuracies(evaluation: Replies) -> Any:
    """Return each client's accuracy in percent, (clients,) float64, in the order of client ids."""
    metrics = evaluation.metrics
    return 100 * metrics["correct"] / metrics["num-examples"]


def client_rows(stage: Stage, evaluation: Replies | None) -> list[dict[str, Any]]:
    """Return a row per client: what the final model is worth to it on its own test samples.

    Raises
    ------
    RunFailedError
        If a client did not evaluate: metrics over the others would not be comparable.
    """
    found = evaluation.clients if evaluation else ()
    missing = sorted(set(range(len(stage.clients()))) - set(found))
    if missing or evaluation is None:
        raise RunFailedError(f"{stage.title}: no evaluation from clients {missing}")
    metrics, domains = evaluation.metrics, stage.clients()
    return [
        {
            "start": stage.about["start"],
            "task": stage.about["task"] or 0,
            "client": client,
            "n": int(metrics["num-examples"][position]),
            "correct": int(metrics["correct"][position]),
            "loss": float(metrics["loss"][position]),
        }
        | ({"domain": domains[client]} if domains[client] else {})
        for position, client in enumerate(evaluation.clients)
    ]


def round_rows(
    stage: Stage, strategy: RoundStrategy, more: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a row per round: its metrics, and the clients' accuracy where that was measured."""
    rows = []
    for number, metrics in strategy.history.rounds().items():
        accuracy = metrics.pop(f"evaluate-{CLIENT_ACCURACY}", None)
        measured = {"accuracy": accuracy} if stage.measures else {}
        rows.append({**stage.about, "round": number, **measured, **metrics, **more})
    return rows


def write_result(
    folder: Path, rows: Sequence[Mapping[str, Any]], rounds: Sequence[Mapping[str, Any]]
) -> None:
    """Write a stage's result, in one step; a number that is not finite becomes null."""
    content = {"rows": list(map(_finite, rows)), "rounds": list(map(_finite, rounds))}
    write_atomically(folder / RESULT, json.dumps(content, indent=1, allow_nan=False).encode())


def _finite(record: Mapping[str, Any]) -> dict[str, Any]:
    infinite = [k for k, v in record.items() if isinstance(v, float) and not math.isfinite(v)]
    return {**record, **dict.fromkeys(infinite)}


def read_result(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return {"rows", "rounds"} of a stage that is done."""
    found: dict[str, list[dict[str, Any]]] = json.loads((folder / RESULT).read_text())
    return found
