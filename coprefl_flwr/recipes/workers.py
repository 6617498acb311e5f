"""Making runs on workers: processes of one thread on this machine, or on an existing cluster.

What a worker makes is a stage (`work` says which, in which order). One that gets several workers
has its clients spread over these (`RayGrid`). RAY_ADDRESS names a cluster, whose machines must
share the folder of the results; else Ray starts here, and ends with the work.
"""

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from logging.handlers import QueueHandler
from typing import Any

import torch

from coprefl_flwr import plugins
from coprefl_flwr.errors import RunFailedError, SettingsError, cut, one_line, short
from coprefl_flwr.federation.machine import MOST_WORKERS, cores
from coprefl_flwr.federation.progress import Part, Progress
from coprefl_flwr.grids.ray import START_UP, Host, connect, end_hosts, start_hosts
from coprefl_flwr.learning.device import default_device
from coprefl_flwr.recipes.runs import Run
from coprefl_flwr.recipes.sweep import Failures, InProcess, Make, attempt
from coprefl_flwr.recipes.work import Piece, Work
from coprefl_flwr.strategies import RoundReport
from coprefl_flwr.studies.store import Store
from coprefl_flwr.studies.study import Track

logger = logging.getLogger("flwr.coprefl")

WORKERS = "COPREFL_WORKERS"
"""The environment variable that says how many workers there are where the command does not."""

FEW = 300
"""Rounds of a client up to which starting workers takes longer than it saves."""

SHOWN_EVERY = 0.2
"""Seconds between two rounds that a worker tells of."""


def wanted_workers(given: int | None) -> tuple[int, bool]:
    """Return how many workers to use, and whether that was asked for.

    Without `given` it is what COPREFL_WORKERS says, or one for every GPU, or for every core.
    """
    said = os.environ.get(WORKERS, "")
    name, value = (f"--workers {given}", given) if given is not None else (f"{WORKERS}={said}", 0)
    if given is None and not said:
        gpus = torch.cuda.device_count() if default_device().type == "cuda" else 0
        return gpus or cores(), False
    if given is None and said.isdecimal() and len(said) < 20:
        value = int(said)
    if not 1 <= value <= MOST_WORKERS:
        allowed = f"must be a whole number, at least 1 and at most {MOST_WORKERS}"
        raise SettingsError(f"{short(name)}: {allowed}")
    return value, True


@contextlib.contextmanager
def workshop(store: Store, given: int | None = 1, tracker: Track | None = None) -> Iterator[Make]:
    """Give what makes runs on so many workers (see `wanted_workers`); 1 is this process.

    Where nobody asked for workers, little work is done in this process too.
    """
    workers, asked = wanted_workers(given)
    if workers == 1:
        yield InProcess(store, tracker)
        return
    made = OnWorkers(store, workers, tracker, asked)
    try:
        yield made
    finally:
        made.close()


Said = RoundReport | logging.LogRecord | str
"""What a worker says of a stage: a round, a line of its log, and at last why it failed, or ""."""


@dataclass
class Job:
    """A piece of work under way: who makes it, and what shows how far it is."""

    piece: Piece
    lead: Any
    others: list[Any]
    part: Part | None


class Maker(Host):
    """A worker: makes stages, or is a node of a stage that another one makes."""

    def make(
        self,
        run: Run,
        key: str,
        store: Store,
        tracker: Track | None,
        others: Sequence[Any],
    ) -> Iterator[Said]:
        """Make a stage; yield rounds without arrays, lines of the log, and why it failed, or ""."""
        told: queue.SimpleQueue[Said] = queue.SimpleQueue()

        def work() -> None:
            problem = "its worker ended it"
            try:
                problem = attempt(run, store, Told(to=told), tracker, keys=[key], hosts=others)
            finally:
                told.put(problem)

        flower = logging.getLogger("flwr")
        kept, flower.handlers = flower.handlers, [QueueHandler(told)]
        threading.Thread(target=work, daemon=True).start()
        try:
            while not isinstance(one := told.get(), str):
                yield one
        finally:
            flower.handlers = kept
        yield one


@dataclass
class Told(Progress):
    """Says how far a stage is to who shows it, in another process."""

    to: Any = None
    _last: float = 0.0

    def note(self, title: str, kind: str = "", rounds: int = 0) -> None:
        """Say nothing."""

    def show(self, part: Part, report: RoundReport, now: float) -> None:
        """Hand on what can be shown of a round."""
        if report.round == report.num_rounds or now - self._last >= SHOWN_EVERY:
            self._last = now
            self.to.put(replace(report, arrays={}, evaluation=None))


@dataclass
class OnWorkers:
    """Makes runs on so many Ray workers; the GPUs, if there are any, are shared evenly."""

    store: Store
    workers: int
    tracker: Track | None = None
    asked: bool = True
    progress: Progress = field(default_factory=Progress)
    _every: list[Any] = field(default_factory=list)
    _free: list[Any] = field(default_factory=list)
    _coming: dict[Any, Any] = field(default_factory=dict)
    _jobs: dict[Any, Job] = field(default_factory=dict)
    _left: dict[str, Part] = field(default_factory=dict)
    _started: bool = False

    def __call__(self, runs: Sequence[Run]) -> Failures:
        """Make the runs; what is there is not made again."""
        work = Work(runs, self.store)
        left = [run for run in runs if not self.store.done(run.study.stages)]
        logger.info("%s runs, %s of them done before", len(runs), len(runs) - len(left))
        if not (self.asked or self._every) and work.participations <= FEW:
            return InProcess(self.store, self.tracker, self.progress)(left)
        self.progress.add([(piece.kind, piece.rounds) for piece in work.pieces.values()])
        if work.pieces:
            self._start()
            self._hand_out(work)
        while self._jobs or work.left:
            self._wait(work)
            self._hand_out(work)
        return work.failed

    def close(self) -> None:
        """End the workers, and Ray if it was started for them."""
        for job in self._jobs.values():
            if job.part:
                self.progress.end(job.part)
        if self._every:
            import ray

            if self._coming:  # They answer at once, and Ray would tell of answers that it lost.
                ray.wait(list(self._coming), num_returns=len(self._coming), timeout=5)
            end_hosts(self._every)
            self._every = []
            if self._started:
                ray.shutdown()

    def _start(self) -> None:
        """Start the workers, unless they are there.

        On a busy cluster not all may come: after a while stages begin on those that are there.
        """
        if self._every:
            return
        logger.info("starting %s workers", self.workers)
        self._started = connect(self.workers)
        self._every = start_hosts(self.workers, Maker, patient=True)
        self.progress.workers = self.workers
        self._call(self._every)
        import ray

        ready, _ = ray.wait(list(self._coming), num_returns=self.workers, timeout=START_UP)
        for one in ready:
            self._take_in(one)
        if self._coming:
            told = f"{len(self._free)} of {self.workers} workers are there after {START_UP:g} s"
            logger.warning("%s; the others begin when Ray has room for them", told)

    def _call(self, workers: Sequence[Any]) -> None:
        """Count workers as free as soon as they answer: one may be starting, or still at work."""
        self._coming |= {worker.adopt.remote(plugins.REGISTERED): worker for worker in workers}

    def _take_in(self, answer: Any) -> None:
        """Take in that a worker is free, or that it cannot be had."""
        import ray

        worker = self._coming.pop(answer)
        try:
            ray.get(answer)
        except ray.exceptions.RayError as error:
            if not (self._coming or self._jobs or self._free):
                raise RunFailedError(f"no worker is left: {cut(one_line(error))}") from error
            logger.warning("a worker is lost: %s", cut(one_line(error)))
        else:
            self._free.append(worker)

    def _hand_out(self, work: Work) -> None:
        """Give the free workers something to do; few stages get several each."""
        while taken := work.take(len(self._free)):
            piece, many = taken
            lead, *others = [self._free.pop() for _ in range(many)]
            of = piece.run, piece.key, self.store, self.tracker, others
            rounds = lead.make.options(num_returns="streaming", max_task_retries=0).remote(*of)
            self._jobs[rounds] = Job(piece, lead, others, self._begun(piece, many))

    def _begun(self, piece: Piece, workers: int) -> Part | None:
        if part := self._left.pop(piece.key, None):
            self.progress.go_on(part, workers)
            return part
        if not piece.rounds:
            if piece.tries == 1:
                self.progress.note(piece.title)
            return None
        about = piece.title, piece.kind, piece.rounds, piece.switch, workers
        return self.progress.begin(*about)

    def _wait(self, work: Work) -> None:
        """Wait for whatever comes first: a round, the end of a stage, or a worker."""
        import ray

        first: Any = ray.wait([*self._coming, *self._jobs], num_returns=1)[0][0]
        if first in self._coming:
            self._take_in(first)
            return
        job = self._jobs[first]
        try:
            told: Said = ray.get(next(first))
        except ray.exceptions.RayError as error:
            self._lost(work, self._jobs.pop(first), cut(one_line(error)))
            return
        if isinstance(told, str):
            self._end(work, self._jobs.pop(first), told)
        elif isinstance(told, logging.LogRecord):
            logging.getLogger(told.name).handle(told)
        elif job.part:
            job.part(told)

    def _lost(self, work: Work, job: Job, why: str) -> None:
        """Let another worker go on, once, with what a worker had under way that died."""
        piece = job.piece
        if piece.tries > 1:
            self._end(work, job, why)
            return
        logger.warning("%s: its worker died; another goes on", piece.title)
        if job.part:
            self.progress.end(job.part)
            self._left[piece.key] = job.part
        self._call([job.lead, *job.others])
        work.put_back(replace(piece, tries=piece.tries + 1))

    def _end(self, work: Work, job: Job, problem: str) -> None:
        """Take note of the end of a stage, and call its workers for others."""
        self._call([job.lead, *job.others])
        failed = work.end(job.piece, problem)
        if job.part:
            self.progress.end(job.part)
            if not (problem or job.part.last):
                logger.info("%s  already done", job.piece.title)
        if failed:
            logger.warning("%s failed: %s", job.piece.run.name, problem)
