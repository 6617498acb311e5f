"""The small study in which a method is checked: its images, network, settings and runs."""

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message
from torch import nn
from torch.utils.data import TensorDataset

from coprefl_flwr.clients import client_app
from coprefl_flwr.data.glyphs import SAMPLES_PER_CLASS, glyphs
from coprefl_flwr.errors import flower_log, one_line
from coprefl_flwr.federation import RoundStrategy
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.federation.run import RoundReport
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.methods import HEAD, PERSONALISED, PRETRAINING, TASK
from coprefl_flwr.options import Value
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.method import Method
from coprefl_flwr.studies.running import run_stage
from coprefl_flwr.studies.settings import Settings
from coprefl_flwr.studies.stage import TrainingStage
from coprefl_flwr.studies.store import STATES, Layout, Store, read_result

RUN_NAME = "checked"
ROUNDS, CHECKPOINT_EVERY, INTERRUPTED_IN = 4, 2, 3

_STARTS: Mapping[str, Value] = {
    "clients": 5,  # Four participate, one per node on 4 nodes.
    "participants": 4,
    "downstream-classes": "2",
    "server-reserve": 0.2,
    "local-steps": 2,
    "tasks": 0,
}
_TASKS: Mapping[str, Value] = {
    **_STARTS,
    "method": "random",
    "tasks": 1,
    "task-classes": 2,
    "task-clients": 4,
    "task-rounds": ROUNDS,
    "task-local-steps": 2,
    "task-learning-rate": 0.05,
    "task-evaluate-every": 2,
}
_ROLES: Mapping[str, Mapping[str, Value]] = {
    PRETRAINING: _STARTS,
    HEAD: {**_TASKS, "task-rounds": 0},
    TASK: _TASKS,
    PERSONALISED: {
        "study": "personalised",
        "personal-clients": 4,
        "train-per-class": 4,
        "test-per-class": 4,
        "test-every": 2,
    },
}
"""{role: settings of the small study}. The clients have different numbers of samples."""


class Broken(Exception):  # noqa: N818
    """A method does not have a property; the message names the problem and the remedy."""


class _Interruption(BaseException):
    """Ends a run in the same way as Ctrl-C."""


@dataclass
class Outcome:
    """The result of a run.

    `numbers` is {description: value} of all arrays and numbers of the run: final arrays, states of
    the strategy, committed states of the clients, and metrics.
    `rows` has the metrics of each client. `uncommitted` is whether clients have written states
    although no state was committed. `warnings` has the logged warnings.
    """

    numbers: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    uncommitted: bool = False
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """A method in one of its roles; runs are written into `folder`."""

    method: Method
    role: str
    folder: Path

    def settings(self, name: str) -> Settings:
        """Return the settings of the small study, with results in `folder` / `name`."""
        config: dict[str, Any] = {
            "run-name": RUN_NAME,
            "checkpoint-every": CHECKPOINT_EVERY,
            "min-samples": 4,
            "rounds": ROUNDS,
            "batch-size": 8,
            "learning-rate": 0.05,
            **_ROLES[self.role],
            "dataset": "coprefl_flwr.testing.small_study:images",
            "model": "coprefl_flwr.testing.small_study:small_network",
            "output-dir": str(self.folder / name),
        }
        key = {TASK: "task-method", HEAD: "head"}.get(self.role, "method")
        return Settings.from_config({**config, key: self.method})

    @functools.cached_property
    def undisturbed(self) -> Outcome:
        """The result of the run on one node, with which other runs are compared."""
        return self.run("undisturbed")

    def run(self, name: str, nodes: int = 1, interrupted: bool = False) -> Outcome:
        """Run the small study on `nodes` nodes and return its result.

        If `interrupted`, the run is stopped in round INTERRUPTED_IN. Raises Broken if the run ends
        with an error.
        """
        outcome = Outcome()
        study = build(self.settings(name))
        study.check()
        store = Store(self.folder / name / RUN_NAME, Layout.PATH)
        stage = study.stages[-1]  # It runs the method.
        assert isinstance(stage, TrainingStage)
        strategy = stage.strategy()
        setattr(stage, "strategy", lambda: strategy)  # noqa: B010

        def look(report: RoundReport) -> None:
            if interrupted and report.round == INTERRUPTED_IN:
                raise _Interruption
            if report.round == report.num_rounds:
                _fill(outcome, report, strategy, store.folder(stage))

        grid = _Backwards(client_app(study.client), nodes)
        with quiet_log() as outcome.warnings:
            try:
                for current in study.stages:
                    run_stage(current, grid, store, [look] if current is stage else [])
            except _Interruption:
                return outcome
            except Exception as error:  # Any error of a method is reported in one line.
                why = "".join(f" ({line})" for line in outcome.warnings[:1])
                raise Broken(f"{name} run: {one_line(error)}{why}") from error
        outcome.rows = read_result(store.folder(stage))["rows"]
        outcome.numbers |= numbers_of(outcome.rows)
        return outcome


def numbers_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return {description: value} of all numbers in the rows of clients."""
    return {
        f"{name} of client {row['client']}": value
        for row in rows
        for name, value in row.items()
        if isinstance(value, int | float)
    }


def small_network(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Return a network with BatchNorm, which has float32 statistics and an int64 counter."""
    size = int(torch.Size(input_shape).numel())
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, num_classes)
    )


@functools.cache
def images(_: str) -> TensorDataset:
    """Return 40 images of glyphs for each of 6 classes: uint8 (240, 1, 14, 14), and labels (240,).

    The argument of this dataset, the folder of downloads, is not used.
    """
    dataset = glyphs()
    chosen = [label * SAMPLES_PER_CLASS + n for label in range(6) for n in range(40)]
    halved = torch.nn.functional.avg_pool2d(dataset.images[chosen].double(), 2)
    return TensorDataset(halved.to(torch.uint8), torch.from_numpy(dataset.labels[chosen]))


class _Backwards(LocalGrid):
    """A grid on which the last node works first, to detect clients that depend on their order."""

    def push_messages(self, messages: Any) -> Any:
        """Run the ClientApp on the messages from the last to the first; return their ids."""
        return super().push_messages(list[Message](messages)[::-1])


def _fill(outcome: Outcome, report: RoundReport, strategy: RoundStrategy, folder: Path) -> None:
    """Copy the results of the last round to `outcome` before the clients' states are removed."""
    numbers, rounds = outcome.numbers, report.history.rounds()
    numbers |= {f"array {name}": array for name, array in report.arrays.items()}
    for key, value in report.state.items():
        arrays = value if isinstance(value, dict) else {"": value}
        numbers |= {f"state {key} {name}".strip(): array for name, array in arrays.items()}
    for number, metrics in rounds.items():
        own = {name: value for name, value in metrics.items() if not name.startswith("wire-")}
        numbers |= {f"{name} of round {number}": value for name, value in own.items()}
    store, committed = ClientState(folder / STATES), report.versions
    request = {"run": strategy.run_name, "population": strategy.population}
    for client, version in sorted(committed.items()):
        state = store.read({**request, "client": client, "state-version": version}) or {}
        numbers |= {f"state of client {client}, {name}": array for name, array in state.items()}
    outcome.uncommitted = not committed and any((folder / STATES).rglob("*.safetensors"))


@contextmanager
def quiet_log() -> Iterator[list[str]]:
    """Turn off Flower's log during this block; yield a list to which its warnings are added."""
    lines: list[str] = []

    class Collects(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(" ".join(record.getMessage().split()))

    before = flower_log.handlers, flower_log.propagate
    flower_log.handlers, flower_log.propagate = [Collects(logging.WARNING)], False
    try:
        yield lines
    finally:
        flower_log.handlers, flower_log.propagate = before
