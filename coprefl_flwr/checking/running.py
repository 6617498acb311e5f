"""Runs of the small study, each in a process of its own, and what they come to.

A process that was just made has no memory of earlier runs: what a method keeps in a class or a
module neither helps nor spoils another run, and a process that is killed loses all of it.
"""

import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.client import NumPyClient

from coprefl_flwr import places
from coprefl_flwr.arrays import Arrays
from coprefl_flwr.checking.small_study import settings_of
from coprefl_flwr.checking.watching import Fault, Seen, Watch
from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients import client_app
from coprefl_flwr.errors import one_line
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.rounds.checkpoint import State
from coprefl_flwr.rounds.progress import Progress
from coprefl_flwr.rounds.strategy import RoundReport
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.build import build
from coprefl_flwr.studies.stage import STATES, read_result, run_stage
from coprefl_flwr.studies.study import Study, StudyFolder

OWN_COUNTS = ("wire-bytes-down", "wire-bytes-up")
"""Metrics that depend on which node hosts whom."""


@dataclass(frozen=True)
class Job:
    """A run: of a method, given by its place and options, in a role, into a folder.

    `killed_after` is the round after which, before its checkpoint is written, the process is
    killed; 0 for a run that is not. `registered` is what has a name in this process alone.
    """

    place: str
    role: str
    data: Path
    folder: Path
    nodes: int = 1
    network: str = "plain"
    faults: tuple[Fault, ...] = ()
    killed_after: int = 0
    registered: bytes = b""


@dataclass
class Outcome:
    """What a run came to; `error` says why it came to nothing, "" if it ended.

    `states` are the clients' that count at the end, `rows` and `metrics` its figures by client and
    by round, `left_out` what was logged of clients that failed.
    """

    error: str = ""
    killed: bool = False
    first: Arrays = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    kept: State = field(default_factory=dict)
    states: dict[int, Arrays] = field(default_factory=dict)
    unread: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)


def outcome(job: Job) -> Outcome:
    """Make a run in a new process, and return what it came to."""
    context = _processes()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        found: Outcome = ours.recv()
    except EOFError:  # It was killed, as it should be or by a crash.
        process.join()
        wanted = job.killed_after and process.exitcode == -signal.SIGKILL
        said = "" if wanted else f"the process ended with {process.exitcode}"
        return Outcome(error=said, killed=bool(wanted))
    process.join()
    return found


def pickled_registered() -> bytes:
    """Return what `places.register` was given, for `Job.registered`; b"" if nothing was."""
    known = places.registered()
    if not known:
        return b""
    from ray import cloudpickle  # Pickles classes of a notebook too.

    found: bytes = cloudpickle.dumps(known)  # type: ignore[no-untyped-call]
    return found


_LATE = ("flwr_datasets.partitioner", "torch._dynamo")
"""What is imported at first use, and takes seconds: once for all processes."""


@functools.cache
def _processes() -> Any:
    """Return how processes are made.

    By "forkserver" from one that has imported everything and computed nothing: a copy of this
    process would have its memory, and threads of torch that wait for others which are not there.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context: Any = multiprocessing.get_context("forkserver")
    # Of this package all that is imported here, as a new process imports the main module too.
    ours = sorted(name for name in sys.modules if name.split(".")[0] == "coprefl_flwr")
    context.set_forkserver_preload([*ours, *_LATE])
    return context


# ---- in the new process --------------------------------------------------------------------------


def _work(job: Job, pipe: Any) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # The same bytes twice are the CPU's to give.
    torch.set_num_threads(1)
    # For as long as the process is there: what a method prints is no line of the output.
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    with _collected() as left_out:
        found = Outcome()
        try:
            _make(job, found)
        except BaseException as error:  # Whatever a method raises is told in one line.
            reasons = "; ".join(line.partition(": ")[2] or line for line in left_out[:1])
            found.error = one_line(error) + (f" ({reasons})" if reasons else "")
    found.left_out = left_out
    pipe.send(found)
    pipe.close()


@contextlib.contextmanager
def _collected() -> Iterator[list[str]]:
    """Give the list of what is logged as a warning in place of showing it."""
    lines: list[str] = []

    class Collects(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(" ".join(record.getMessage().split()))

    flower = logging.getLogger("flwr")
    flower.handlers, flower.propagate = [Collects(logging.WARNING)], False
    yield lines


def _make(job: Job, found: Outcome) -> None:
    """Run the small study, and fill in what it came to."""
    if job.registered:
        from ray import cloudpickle

        places.adopt(cloudpickle.loads(job.registered))
    watch = Watch(job.faults)
    outputs = job.folder.parent
    settings = settings_of(job.place, job.role, job.data, outputs, job.network)
    study = build(settings)
    study.check()
    store, stage = StudyFolder(job.folder), study.stages[-1]
    strategy = watch.strategy(stage.strategy())
    setattr(stage, "strategy", lambda: strategy)  # noqa: B010

    def look(report: RoundReport) -> None:
        if report.round == job.killed_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if report.round == report.num_rounds:
            _fill(found, report, strategy, store.folder(stage))

    grid, progress = _grid(study, watch, job.nodes), Progress(len(study.stages))
    for one in study.stages:
        run_stage(one, grid, store, progress, [look] if one is stage else [])
    found.first = stage.initial(store)
    found.rows = read_result(store.folder(stage))["rows"]
    found.seen = watch.seen


def _fill(found: Outcome, report: RoundReport, strategy: RoundStrategy, folder: Path) -> None:
    """Fill in what is there after the last round, before the clients' states are removed."""
    found.arrays = report.arrays
    found.kept = dict(strategy.state)
    found.metrics = {
        number: {name: value for name, value in each.items() if name not in OWN_COUNTS}
        for number, each in strategy.history.rounds().items()
    }
    store, named = ClientState(folder / STATES), strategy.versions.committed
    about = {"run": strategy.run_name, "population": strategy.population}
    for client, version in sorted(named.items()):
        state = store.read({**about, "client": client, "state-version": version})
        found.states[client] = state or {}
    found.unread = not named and any((folder / STATES).rglob("*.safetensors"))


class _Backwards(LocalGrid):
    """A grid whose last node works first: what clients of one process leave to each other shows."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the messages from the last to the first."""
        return super().push_messages(list(messages)[::-1])


def _grid(study: Study, watch: Watch, nodes: int) -> LocalGrid:
    """Return a grid of the study's own clients, watched."""

    def make(_: Context, client_id: int, config: Mapping[str, Any]) -> NumPyClient:
        return watch.client(study.client(client_id, config))

    app = client_app(make, clients=lambda _, population: study.hosted(population))
    return _Backwards(app, nodes)


def folder_of(job: Job) -> Path:
    """Return the folder of the method's stage, the last of its study."""
    settings = settings_of(job.place, job.role, job.data, job.folder.parent, job.network)
    return StudyFolder(job.folder).folder(build(settings).stages[-1])
