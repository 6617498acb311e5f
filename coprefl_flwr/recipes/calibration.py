"""How long this machine takes for what studies compute: measured in seconds, on one thread.

Real steps, real evaluations and real rounds of the package, on a few samples of the data or, where
these are not at hand, on made-up ones, which take as long.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from flwr.app import Context
from torch import nn

from coprefl_flwr.arrays import to_record
from coprefl_flwr.clients import TorchClient, client_app
from coprefl_flwr.data import Samples
from coprefl_flwr.data.features import FeatureDataset
from coprefl_flwr.data.images import ImageDataset
from coprefl_flwr.data.outline import Outline
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning import (
    EVALUATION_BATCH,
    AdamTraining,
    LocalTraining,
    default_device,
    evaluate,
    local_sgd,
    placed,
)
from coprefl_flwr.models import model_arrays
from coprefl_flwr.rounds.progress import quiet_flower
from coprefl_flwr.strategies import FedAvg
from coprefl_flwr.studies.efforts import Effort, Engine

SECONDS = 10.0
"""Longest that measuring takes in all, as far as the smallest batches allow."""

SMALLEST = 2
"""Samples of the first batch, by which the size of the others is chosen; BatchNorm needs two."""

_SHARES = (0.45, 0.3, 0.25)
"""Of the time: for training, for evaluating, for rounds without either."""


@dataclass(frozen=True)
class Pace:
    """Seconds of one thread for one sample, one client's answer and one round; bytes of a model."""

    gradient: float
    forward: float
    answer: float
    round: float
    model: float

    def seconds(self, effort: Effort) -> float:
        """Return how long an effort takes."""
        return (
            effort.gradients * self.gradient
            + effort.forwards * self.forward
            + effort.answers * self.answer
            + effort.rounds * self.round
        )

    def bytes(self, effort: Effort) -> float:
        """Return what it leaves on disk."""
        return effort.bytes + effort.models * self.model


def paces(engines: Sequence[Engine], seconds: float = SECONDS) -> dict[Engine, Pace]:
    """Return how fast each computes here, measured in about so many seconds in all."""
    with _one_thread(), quiet_flower():
        return {one: _pace(one, seconds / len(engines)) for one in engines}


def _pace(engine: Engine, seconds: float) -> Pace:
    device = default_device()
    model = placed(engine.network(), device)
    size = float(sum(array.nbytes for array in model_arrays(model).values()))
    samples = _samples(engine, max(engine.batch, EVALUATION_BATCH))
    kind = AdamTraining if engine.adam else LocalTraining

    def train(batch: int) -> None:
        training = kind(local_steps=1, batch_size=batch, precision=engine.precision)
        rng = np.random.default_rng(0)
        local_sgd(model, samples, training, server_round=1, rng=rng, device=device)

    def test(batch: int) -> None:
        batches = samples.take(np.arange(batch)).batches(batch, device)
        evaluate(model, batches, precision=engine.precision)

    of_training, of_testing, of_rounds = (share * seconds for share in _SHARES)
    if not engine.batch:
        forward = _per_sample(test, EVALUATION_BATCH, seconds, device)
        return Pace(0.0, forward, 0.0, 0.0, size)
    gradient = _per_sample(train, engine.batch, of_training, device)
    forward = _per_sample(test, EVALUATION_BATCH, of_testing, device)
    return Pace(gradient, forward, *_of_rounds(model, samples, of_rounds), size)


def _per_sample(
    run: Callable[[int], None], batch: int, seconds: float, device: torch.device
) -> float:
    """Return the seconds per sample of `run(batch)`, or of a batch that fits the time.

    The lower quartile: beside other programs many a batch takes longer, as the caches are cold.
    """
    clock, began = _clock(device), time.monotonic()
    run(SMALLEST)  # The first takes longer.
    first = _timed(run, SMALLEST, clock) / SMALLEST
    batch = int(np.clip(seconds / 4 / max(first, 1e-9), SMALLEST, batch))
    run(batch)
    found: list[float] = []
    while not found or (time.monotonic() - began < seconds and len(found) < 100):
        found.append(_timed(run, batch, clock) / batch)
    return float(np.quantile(found, 0.25))


def _of_rounds(model: nn.Module, samples: Samples, seconds: float) -> tuple[float, float]:
    """Return the seconds of a client's answer and of a round, besides all mathematics.

    Rounds in which clients take no steps, of one client and of several, with a checkpoint each.
    """
    most = 5
    two = samples.take(np.arange(SMALLEST))

    def client(_: Context, __: int) -> TorchClient:
        return TorchClient(model, two, training=LocalTraining(local_steps=0))

    record, began = to_record(model_arrays(model)), time.monotonic()
    taken: dict[int, list[float]] = {1: [], most: []}
    with tempfile.TemporaryDirectory() as folder:
        while not taken[most] or (time.monotonic() - began < seconds and len(taken[most]) < 10):
            for participants, found in taken.items():
                strategy = FedAvg(participants=participants)
                grid = LocalGrid(client_app(client, clients=most))
                file = Path(folder) / f"{participants}-{len(found)}"
                before = time.process_time()
                strategy.start(grid, record, 2, checkpoint=file)
                found.append((time.process_time() - before) / 2)
    one, several = median(taken[1]), median(taken[most])
    answer = max(several - one, 0.0) / (most - 1)
    return answer, max(one - answer, 0.0)


def _clock(device: torch.device) -> Callable[[], float]:
    """Return the clock of one thread's work; beside a GPU a process only waits."""
    return time.process_time if device.type == "cpu" else time.perf_counter


def _timed(run: Callable[[int], None], batch: int, clock: Callable[[], float]) -> float:
    before = clock()
    run(batch)
    return clock() - before


def _samples(engine: Engine, n: int) -> Samples:
    """Return n samples of two classes: of its dataset, or made-up ones where it is not at hand."""
    rng, labels, rows = np.random.default_rng(0), np.arange(n) % 2, np.arange(n)
    dataset = engine.source
    if isinstance(dataset, Outline):
        images = torch.from_numpy(rng.integers(0, 256, (n, *engine.shape), dtype=np.uint8))
        dataset = ImageDataset.of("calibration", images, labels, None)
    elif dataset is None:
        values = rng.standard_normal((n, *engine.shape)).astype(np.float32)
        dataset = FeatureDataset(values, labels, ("0", "1"))
    return Samples(dataset, rows % len(dataset.labels), labels)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
