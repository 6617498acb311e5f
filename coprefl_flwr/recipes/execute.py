"""Execute a recipe's runs, in this process or on workers.

The unit of work is the run: a run's stages are executed one after the other, and a stage that is in
the store is not executed again. Workers are processes with one thread each, on this machine or on
an existing cluster. Each run is a task of Ray, which starts it again if its process dies. Two runs
that share a start wait for each other by `Store.locked`. If there are fewer runs than workers,
several processes share the clients of a run (`RayGrid`). RAY_ADDRESS names a cluster, whose
machines must share the folder of the results. Without RAY_ADDRESS, Ray is started on this machine,
and ended after the work.
"""

import contextlib
import io
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from coprefl_flwr import plugins
from coprefl_flwr.errors import logger, one_line, shorten
from coprefl_flwr.federation.flower import without_colours
from coprefl_flwr.federation.machine import cores, one_thread
from coprefl_flwr.federation.progress import Part, Progress, quiet_flower
from coprefl_flwr.grids import LocalGrid, RayGrid
from coprefl_flwr.grids.ray import connect, end_hosts, gpu_share, start_hosts
from coprefl_flwr.learning.device import default_device
from coprefl_flwr.named import display_names
from coprefl_flwr.recipes.runs import StudyRun
from coprefl_flwr.recipes.search import SearchedRow
from coprefl_flwr.studies.running import WORKERS as OPTION
from coprefl_flwr.studies.running import Followed, shown, unfollowed
from coprefl_flwr.studies.running import run as make_stages
from coprefl_flwr.studies.store import Store

FEW = 300
"""Number of clients' rounds up to which no workers are started: starting would take longer."""

SHOWN_EVERY = 0.5
"""Seconds between two looks into the store for the rounds of runs on workers."""

Failures = dict[str, str]
"""The error of each failed run: {identity of the run: error}."""
Begin = Callable[[StudyRun], Part]
"""A function that begins to show a run."""
Ended = Generator[tuple[StudyRun, Part, str]]
"""Runs at their end, each with its display and its error; the error is "" if there is none."""
Make = Callable[[Sequence[StudyRun]], Failures]
"""A function that executes runs, in this process or on workers, and returns the failures."""


def run_rows(rows: Sequence[SearchedRow[Any]], store: Store, make: Make) -> Failures:
    """Execute every run of these rows: the runs that choose values, and the reported runs.

    Returns the runs that failed. The results of the other runs are in the store.
    """
    failed: Failures = {}
    batches = [row.batches(store) for row in rows]
    while new := [batch for iterator in batches if (batch := next(iterator, None)) is not None]:
        runs = {run.keys: run for batch in new for run in batch}
        failed |= make([run for run in runs.values() if run.identity not in failed])
    return failed


def attempt(
    run: StudyRun, store: Store, tracker: Followed = unfollowed, hosts: Sequence[Any] = ()
) -> str:
    """Execute a run's stages, without Flower's log; return the error if the run failed, else "".

    This process is a node. Each process in `hosts` (see `RayGrid`) is a further node.
    """
    try:
        with quiet_flower():
            study = run.study
            study.check()
            # Clients write their files into the store. Under `flwr run` they write into output-dir.
            app = run.clients(store.base.resolve())
            grid = LocalGrid(app)
            if hosts:
                grid = RayGrid(app, 1 + len(hosts), hosts=[None, *hosts])
            make_stages(study, grid, replace(store, run_name=run.key), followed=tracker)
    except Exception as error:  # Any error ends this run only; the other runs continue.
        logger.debug("%s", run.key, exc_info=True)
        return one_line(error)
    return ""


def wanted_workers(number: int | None) -> tuple[int, bool]:
    """Return the number of workers, and whether the user asked for this number.

    If `number` is None, it is one worker per GPU, or per core if there is no GPU.
    """
    if number is None:
        gpus = torch.cuda.device_count() if default_device().type == "cuda" else 0
        return gpus or cores(), False
    return OPTION.checked(number, "--workers"), True


@contextlib.contextmanager
def executor(
    store: Store, number: int | None = 1, tracker: Followed = unfollowed, *, quiet: bool = False
) -> Iterator[Make]:
    """Yield the function that executes runs on `number` workers (see `wanted_workers`).

    With one worker, the runs are executed in this process. If the user set no number of workers, a
    small amount of work is also done in this process.
    """
    made = Executor(store, *wanted_workers(number), tracker, quiet)
    try:
        yield made
    finally:
        if made.started:
            import ray

            ray.shutdown()


@dataclass
class Executor:
    """Executes runs in this process, or on `workers` processes, which share the GPUs evenly.

    `requested` says whether the user asked for workers, and `started` whether Ray was started. If
    `quiet`, no progress is shown.
    """

    store: Store
    workers: int = 1
    requested: bool = True
    tracker: Followed = unfollowed
    quiet: bool = False
    started: bool = False

    def __call__(self, runs: Sequence[StudyRun]) -> Failures:
        """Execute the runs, except the stages that are in the store.

        Raises a SettingsError, before any work, if a result in the store is damaged.
        """
        stages = {stage.key: stage for run in runs for stage in run.study.stages}
        for stage in stages.values():
            self.store.finalise(stage)
        left = [stage for stage in stages.values() if not self.store.has(stage)]
        participations = sum(stage.rounds * stage.max_parallel_clients() for stage in left)
        few = participations <= FEW and not (self.requested or self.started)
        unfinished = [run for run in runs if not self.store.done(run.study.stages)]
        here = self.workers == 1 or few or not unfinished
        execute = self._here if here else self._on_workers
        names = display_names(run.name for run in runs)
        rounds = {run: sum(stage.rounds for stage in run.study.stages) for run in unfinished}
        failed: Failures = {}

        def begin(run: StudyRun) -> Part:
            return progress.part(f"{names[run.name]}, {run.seeds}", rounds[run])

        stream = io.StringIO() if self.quiet else None
        progress = Progress(len(unfinished), sum(rounds.values()), stream)
        with progress, contextlib.closing(execute(unfinished, begin)) as ended:
            for run, part, problem in ended:
                part.end(done=not problem)
                if problem:
                    logger.warning("%s failed: %s", run.name, problem)
                    failed[run.identity] = problem
        return failed

    def _here(self, runs: Sequence[StudyRun], begin: Begin) -> Ended:
        """Execute runs in this process, in one thread; yield each at its end."""
        one_thread()
        for run in runs:
            part = begin(run)
            yield run, part, attempt(run, self.store, partial(shown, part, self.tracker))

    def _on_workers(self, runs: Sequence[StudyRun], begin: Begin) -> Ended:
        """Execute runs as tasks of Ray; yield each at its end.

        Processes that are left over share the clients of runs.
        """
        self.started |= connect(self.workers)
        import ray

        share, free = gpu_share(self.workers), self.workers - len(runs)
        hosts = start_hosts(free, share) if free > 0 else []
        # A run whose process died is started again, and continues from its checkpoint.
        task = ray.remote(num_cpus=1, num_gpus=share, max_retries=1)(_on_worker)
        waiting, running = deque(enumerate(runs)), dict[Any, tuple[StudyRun, Part]]()
        try:
            while waiting or running:
                while waiting and len(running) < self.workers:
                    number, run = waiting.popleft()
                    others = hosts[number :: len(runs)]
                    sent = plugins.REGISTERED, run, self.store, self.tracker, others
                    named = task.options(name=run.name)  # Ray puts it before the task's log lines.
                    running[named.remote(*sent)] = run, begin(run)
                ended, _ = ray.wait(list(running), timeout=SHOWN_EVERY)
                for run, part in running.values():
                    _look(run, part, self.store)
                for answer in ended:
                    run, part = running.pop(answer)
                    try:
                        yield run, part, ray.get(answer)
                    except ray.exceptions.RayError as error:
                        yield run, part, shorten(one_line(error))
        finally:
            for answer in running:
                ray.cancel(answer, force=True)
            end_hosts(hosts)


def _on_worker(registered: plugins.Registered, *sent: Any) -> str:
    """Execute a run in a worker (see `attempt`), with the registered code of the first process."""
    one_thread()
    without_colours()
    plugins.REGISTERED.update(registered)
    return attempt(*sent)


def _look(run: StudyRun, part: Part, store: Store) -> None:
    """Show the rounds of a run that a worker has stored."""
    finished, metrics = 0, dict[str, Any]()
    for stage in run.study.stages:
        last = store.last_round(stage)
        finished += stage.rounds if store.has(stage) else last.get("round", 0)
        metrics = last.get("train", metrics)
    part.show(finished, metrics)
