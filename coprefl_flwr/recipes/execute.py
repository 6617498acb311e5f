"""Execute a recipe's runs, in this process or on workers.

A stage that several runs share is executed once. The first stage of a run is executed before the
stages that start from its model. Workers are processes with one thread each, on this machine or on
an existing cluster. If fewer stages are ready than workers are free, several workers share the
clients of a stage (`RayGrid`). RAY_ADDRESS names a cluster, whose machines must share the folder of
the results. Without RAY_ADDRESS, Ray is started on this machine, and ended after the work.
"""

import contextlib
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from logging.handlers import QueueHandler
from typing import Any

import torch

from coprefl_flwr import plugins
from coprefl_flwr.errors import RunFailedError, SettingsError, excerpt, one_line, shorten
from coprefl_flwr.federation.machine import MOST_WORKERS, cores, one_thread
from coprefl_flwr.federation.progress import Part, Progress, quiet_flower
from coprefl_flwr.grids import LocalGrid, RayGrid
from coprefl_flwr.grids.ray import START_UP, Host, connect, end_hosts, start_hosts
from coprefl_flwr.learning.device import default_device
from coprefl_flwr.recipes.recipe import Recipe
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.search import table_rows
from coprefl_flwr.recipes.trackers import untracked
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.running import Followed
from coprefl_flwr.studies.running import run as make_stages
from coprefl_flwr.studies.stage import Stage
from coprefl_flwr.studies.store import Store

logger = logging.getLogger("flwr.coprefl")

WORKERS = "COPREFL_WORKERS"
"""Environment variable with the number of workers, used if the command line gives none."""

FEW = 300
"""Number of clients' rounds up to which no workers are started: starting would take longer."""

SHOWN_EVERY = 0.2
"""Seconds between two reports of rounds by a worker, at least."""

Failures = dict[str, str]
"""The error of each failed run: {identity of the run: error}."""
Make = Callable[[Sequence[Run]], Failures]
"""A function that executes runs, in this process or on workers, and returns the failures."""


def run_recipe(recipe: Recipe, store: Store, make: Make) -> Failures:
    """Execute every run of a recipe: the runs that choose values, and the reported runs.

    Returns the runs that failed. The results of the other runs are in the store.
    """
    failed: Failures = {}
    batches = [row.batches(store) for row in table_rows(recipe)]
    while new := [batch for iterator in batches if (batch := next(iterator, None)) is not None]:
        runs = {run.keys: run for batch in new for run in batch}
        failed |= make([run for run in runs.values() if run.identity not in failed])
    return failed


def attempt(
    run: Run,
    store: Store,
    progress: Progress,
    tracker: Followed = untracked,
    *,
    keys: Collection[str] | None = None,
    hosts: Sequence[Any] = (),
) -> str:
    """Execute a run's stages, without Flower's log; return the error if the run failed, else "".

    `keys` selects stages by their keys; None: all stages. This process is a node. Each process in
    `hosts` (see `RayGrid`) is a further node.
    """
    try:
        with quiet_flower():
            study = run.study
            study.check()
            # Clients write their files into the store. Under `flwr run` they write into output-dir.
            app, name = run.clients(store.base.resolve()), run.key
            grid = LocalGrid(app)
            if hosts:
                grid = RayGrid(app, 1 + len(hosts), hosts=[None, *hosts])
            make_stages(study, grid, store, progress, run_name=name, only=keys, followed=tracker)
    except Exception as error:  # Any error ends this run only; the other runs continue.
        logger.debug("%s", run.key, exc_info=True)
        return one_line(error)
    return ""


def wanted_workers(number: int | None) -> tuple[int, bool]:
    """Return the number of workers, and whether the user asked for this number.

    If `number` is None, it is the value of COPREFL_WORKERS, or else one worker per GPU, or per
    core if there is no GPU.
    """
    variable = os.environ.get(WORKERS, "")
    name, value = f"--workers {number}", number
    if value is None and not variable:
        gpus = torch.cuda.device_count() if default_device().type == "cuda" else 0
        return gpus or cores(), False
    if value is None:
        name = f"{WORKERS}={variable}"
        value = int(variable) if variable.isdecimal() and len(variable) < 20 else 0
    if not 1 <= value <= MOST_WORKERS:
        allowed = f"must be a whole number, at least 1 and at most {MOST_WORKERS}"
        raise SettingsError(f"{excerpt(name)}: {allowed}")
    return value, True


@contextlib.contextmanager
def executor(store: Store, number: int | None = 1, tracker: Followed = untracked) -> Iterator[Make]:
    """Yield the function that executes runs on `number` workers (see `wanted_workers`).

    With one worker, the runs are executed in this process. If the user set no number of workers, a
    small amount of work is also done in this process.
    """
    workers, requested = wanted_workers(number)
    if workers == 1:
        yield LocalExecutor(store, tracker)
        return
    with contextlib.closing(RayExecutor(store, workers, tracker, requested)) as on_workers:
        yield on_workers


@dataclass
class LocalExecutor:
    """Executes runs one after the other in this process, in one thread."""

    store: Store
    tracker: Followed = untracked
    progress: Progress = field(default_factory=Progress)

    def __call__(self, runs: Sequence[Run]) -> Failures:
        """Execute the runs, except the stages that are in the store."""
        one_thread()
        self.progress.labels |= {run.text: run.name for run in runs}
        self.progress.add(
            (stage.title, stage.kind, stage.rounds) for run in runs for stage in run.study.stages
        )
        failed: Failures = {}
        for run in runs:
            problem = attempt(run, self.store, self.progress, self.tracker)
            if problem:
                logger.warning("%s failed: %s", run.name, problem)
                failed[run.identity] = problem
        return failed


# ---- the stages still to execute -----------------------------------------------------------------


@dataclass(eq=False)
class StageJob:
    """A stage to execute, with its workers and its progress bar. It holds no data."""

    run: Run
    key: str
    title: str
    kind: str
    rounds: int
    switch: int
    at_once: int
    tries: int = 0
    workers: Sequence[Any] = ()
    part: Part | None = None

    def begin(self, workers: Sequence[Any], progress: Progress) -> None:
        """Begin the stage on these workers, or continue it if a worker died in the first try."""
        self.tries, self.workers = self.tries + 1, workers
        if self.part:
            progress.go_on(self.part, len(workers))
        elif self.rounds:
            about = self.title, self.kind, self.rounds, self.switch
            self.part = progress.begin(*about, len(workers))
        elif self.tries == 1:
            progress.note(self.title)


class JobQueue:
    """The stages of runs that are not in the store, each listed once.

    `failed` holds the failed runs. No further stage of a failed run is executed.
    """

    def __init__(self, runs: Sequence[Run], store: Store) -> None:
        self.failed: Failures = {}
        self.jobs: dict[str, StageJob] = {}
        self._ready: deque[StageJob] = deque()
        self._waiting: dict[str, list[StageJob]] = {}  # by the key of the stage they begin with
        several = len({run.settings.seed for run in runs}) > 1
        for run in runs:
            # Runs of several seeds are executed in no fixed order, so titles name the seeds.
            mark = f", seed {run.settings.seed}" if several else ""
            first, *_ = stages = run.study.stages
            for stage in stages:
                store.finalise(stage)
            for stage in stages:
                if stage.key not in self.jobs and not store.has(stage):
                    self._add(run, stage, first, mark)

    def _add(self, run: Run, stage: Stage, first: Stage, mark: str) -> None:
        about = stage.key, stage.title + mark, stage.kind, stage.rounds, stage.phase_switch
        job = StageJob(run, *about, stage.max_parallel_clients() if stage.rounds else 1)
        if first.key in self.jobs:
            self._waiting.setdefault(first.key, []).append(job)
        else:
            self._ready.append(job)
        self.jobs[job.key] = job

    @property
    def participations(self) -> int:
        """An upper bound of the number of clients' rounds that are left, over all stages."""
        return sum(job.rounds * job.at_once for job in self.jobs.values())

    @property
    def has_ready(self) -> bool:
        """Whether a stage is ready: not begun, and not waiting for another stage."""
        return bool(self._ready)

    def take(self, free: int) -> tuple[StageJob, int] | None:
        """Return the next stage and its number of workers; None if no stage or worker is free."""
        if not (free and self._ready):
            return None
        share, job = -(-free // len(self._ready)), self._ready.popleft()
        return job, min(share, job.at_once)

    def put_back(self, job: StageJob) -> None:
        """Put a stage back at the front of the queue."""
        self._ready.appendleft(job)

    def end(self, job: StageJob, problem: str = "") -> bool:
        """Record the end of a stage, and make the stages that wait for it ready, or drop them.

        Returns whether this stage is the first one of its run that failed.
        """
        behind = self._waiting.pop(job.key, [])
        if not problem:
            self._ready.extend(behind)
            return False
        self._ready = deque(other for other in self._ready if other.run != job.run)
        first = job.run.identity not in self.failed
        for other in (job, *behind):  # Runs of several tables may wait for one start.
            self.failed.setdefault(other.run.identity, problem)
        return first


# ---- workers -------------------------------------------------------------------------------------

Message = RoundReport | logging.LogRecord | str
"""Report of a worker on a stage: a round, a log line, or at the end the error ("" for none)."""


class StageWorker(Host):
    """A worker: it executes stages, or is a node of a stage that another worker executes."""

    def make(
        self, run: Run, key: str, store: Store, tracker: Followed, others: Sequence[Any]
    ) -> Iterator[Message]:
        """Execute a stage; yield rounds without arrays, log lines, and last the error or ""."""
        messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

        def work() -> None:
            problem = "its worker stopped before the end of the stage"
            try:
                progress = QueueProgress(to=messages)
                problem = attempt(run, store, progress, tracker, keys=[key], hosts=others)
            finally:
                messages.put(problem)

        flower = logging.getLogger("flwr")
        before, flower.handlers = flower.handlers, [QueueHandler(messages)]
        threading.Thread(target=work, daemon=True).start()
        try:
            while not isinstance(message := messages.get(), str):
                yield message
        finally:
            flower.handlers = before
        yield message


@dataclass
class QueueProgress(Progress):
    """Sends the progress of a stage to another process, which shows it."""

    to: Any = None
    _last: float = 0.0

    def note(self, title: str, kind: str = "", rounds: int = 0, remark: str = "") -> None:
        """Show nothing."""

    def show(self, part: Part, report: RoundReport, now: float) -> None:
        """Send a round's report without its arrays, unless a report was sent just before."""
        if report.round == report.num_rounds or now - self._last >= SHOWN_EVERY:
            self._last = now
            self.to.put(replace(report, arrays={}, evaluation=None))


@dataclass
class RayExecutor:
    """Executes runs on `workers` Ray workers, which share the available GPUs evenly."""

    store: Store
    workers: int
    tracker: Followed = untracked
    requested: bool = True
    progress: Progress = field(default_factory=Progress)
    _every: list[Any] = field(default_factory=list)
    _free: list[Any] = field(default_factory=list)
    _coming: dict[Any, Any] = field(default_factory=dict)  # {awaited answer: its worker}
    _assigned: dict[Any, StageJob] = field(default_factory=dict)  # {messages: ...}
    _started: bool = False

    def __call__(self, runs: Sequence[Run]) -> Failures:
        """Execute the runs, except the stages that are in the store."""
        jobs = JobQueue(runs, self.store)
        unfinished = [run for run in runs if not self.store.done(run.study.stages)]
        if not (self.requested or self._every) and jobs.participations <= FEW:
            return LocalExecutor(self.store, self.tracker, self.progress)(unfinished)
        self.progress.labels |= {run.text: run.name for run in runs}
        self.progress.add((job.title, job.kind, job.rounds) for job in jobs.jobs.values())
        if jobs.jobs:
            self._start()
            self._hand_out(jobs)
        while self._assigned or jobs.has_ready:
            self._wait(jobs)
            self._hand_out(jobs)
        return jobs.failed

    def close(self) -> None:
        """End the workers, and Ray if it was started for them."""
        for job in self._assigned.values():
            if job.part:
                self.progress.end(job.part)
        if self._every:
            import ray

            if self._coming:  # Workers answer at once. Ray would warn about lost answers.
                ray.wait(list(self._coming), num_returns=len(self._coming), timeout=5)
            end_hosts(self._every)
            self._every = []
            if self._started:
                ray.shutdown()

    def _start(self) -> None:
        """Start the workers, unless they run already.

        On a busy cluster some workers may not start. After START_UP seconds the stages begin on
        the workers that have started.
        """
        if self._every:
            return
        logger.info("starting %s workers", self.workers)
        self._started = connect(self.workers)
        self._every = start_hosts(self.workers, StageWorker, patient=True)
        self.progress.workers = self.workers
        self._call(self._every)
        import ray

        ready, _ = ray.wait(list(self._coming), num_returns=self.workers, timeout=START_UP)
        for answer in ready:
            self._take_in(answer)
        if self._coming:
            here = f"{len(self._free)} of {self.workers} workers have started in {START_UP:g} s"
            logger.warning("%s; the others start when Ray has free resources", here)

    def _call(self, workers: Sequence[Any]) -> None:
        """Call workers, which may be starting or busy. A worker counts as free when it answers."""
        self._coming |= {worker.adopt.remote(plugins.REGISTERED): worker for worker in workers}

    def _take_in(self, answer: Any) -> None:
        """Add a worker that has answered to the free ones, or log that the worker is lost."""
        import ray

        worker = self._coming.pop(answer)
        try:
            ray.get(answer)
        except ray.exceptions.RayError as error:
            if not (self._coming or self._assigned or self._free):
                raise RunFailedError(f"no worker is left: {shorten(one_line(error))}") from error
            logger.warning("a worker is lost: %s", shorten(one_line(error)))
        else:
            self._free.append(worker)

    def _hand_out(self, jobs: JobQueue) -> None:
        """Give stages to the free workers; a stage gets several workers if few are ready."""
        while assignment := jobs.take(len(self._free)):
            job, many = assignment
            lead, *others = workers = [self._free.pop() for _ in range(many)]
            make = lead.make.options(num_returns="streaming", max_task_retries=0)
            messages = make.remote(job.run, job.key, self.store, self.tracker, others)
            self._assigned[messages] = job
            job.begin(workers, self.progress)

    def _wait(self, jobs: JobQueue) -> None:
        """Wait for the next report: a round, a line of the log, a stage's end, or a free worker."""
        import ray

        first: Any = ray.wait([*self._coming, *self._assigned], num_returns=1)[0][0]
        if first in self._coming:
            self._take_in(first)
            return
        job, died = self._assigned[first], False
        try:
            message: Message = ray.get(next(first))
        except ray.exceptions.RayError as error:
            message, died = shorten(one_line(error)), True
        if isinstance(message, str):
            del self._assigned[first]
            self._end(jobs, job, message, died)
        elif isinstance(message, logging.LogRecord):
            logging.getLogger(message.name).handle(message)
        elif job.part:
            job.part(message)

    def _end(self, jobs: JobQueue, job: StageJob, problem: str, died: bool) -> None:
        """Call a stage's workers for other stages, and record the end of the stage.

        If a worker died in the stage's first try, the stage is put back into the queue instead.
        """
        self._call(job.workers)
        if job.part:
            self.progress.end(job.part)
        if died and job.tries == 1:
            logger.warning("%s: its worker died; another worker continues it", job.title)
            jobs.put_back(job)
            return
        failed = jobs.end(job, problem)
        if job.part and not (problem or job.part.last):
            logger.info("%s  already done", job.part.title)
        if failed:
            logger.warning("%s failed: %s", job.run.name, problem)
