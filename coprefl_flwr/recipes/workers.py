"""Making several runs at once: each a Ray task, on this machine or on an existing cluster.

A Ray that is started here ends with the program; RAY_ADDRESS names a cluster, whose machines must
share the folder of the results.
"""

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coprefl_flwr import places
from coprefl_flwr.errors import one_line
from coprefl_flwr.flower import without_colours
from coprefl_flwr.recipes.runs import ModelStore, Run
from coprefl_flwr.recipes.sweep import Failures, attempt
from coprefl_flwr.rounds.progress import clock
from coprefl_flwr.studies.study import Track

logger = logging.getLogger("flwr.coprefl")


@dataclass(frozen=True)
class OnRay:
    """Makes runs on so many Ray workers; the GPUs, if there are any, are shared evenly.

    Runs of the same starting model wait for each other; all others are independent.
    """

    store: ModelStore
    workers: int
    tracker: Track | None = None

    def __call__(self, runs: Sequence[Run]) -> Failures:
        """Make the runs; what is there is not made again."""
        # Lines of two runs look alike to Ray, which would show one of them.
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")
        import ray

        left = [run for run in runs if not self.store.done(run)]
        logger.info("%s runs, %s of them done before", len(runs), len(runs) - len(left))
        if not left:
            return {}
        if not ray.is_initialized():
            local: dict[str, Any] = {"num_cpus": self.workers, "include_dashboard": False}
            given = {} if "RAY_ADDRESS" in os.environ else local
            ray.init(logging_level=logging.WARNING, **given)
        found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        share = found.get("GPU", 0.0) / self.workers
        remote = ray.remote(num_cpus=1, num_gpus=share, max_retries=0)(_attempt)
        own = places.registered()
        pending = {remote.remote(run, self.store, self.tracker, own): run for run in left}
        return _collect(pending)


def _attempt(run: Run, store: ModelStore, tracker: Track | None, own: places.Registered) -> str:
    """Make a run in a worker that knows what was registered; return why it failed, or ""."""
    without_colours()
    places.adopt(own)
    return attempt(run, store, tracker)


def _collect(pending: dict[Any, Run]) -> Failures:
    """Wait for the runs, saying after each how many are left."""
    import ray

    failed: Failures = {}
    total, began = len(pending), time.monotonic()
    while pending:
        (ready,), _ = ray.wait(list(pending), num_returns=1)
        run = pending.pop(ready)
        try:
            problem = ray.get(ready)
        except ray.exceptions.RayError as error:  # A worker that died takes one run with it.
            problem = one_line(error)
        if problem:
            failed[run.key] = problem
            logger.warning("%s failed: %s", run.name, problem)
        done = total - len(pending)
        left = (time.monotonic() - began) / done * len(pending)
        words = f", {clock(left)} left" if pending else ""
        logger.info("[%s/%s] %s%s", done, total, run.key, words)
    return failed
