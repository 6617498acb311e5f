"""Clients that are computed as one, next to clients that train one after another.

`python -m benchmarks.together [--device cuda]` prints, for several networks, the time of a client's
step one after another, and the part of it that a step takes for 4, 10, 16 and 64 clients together.
Both train by the package's own functions, in turns, in float32. The times are CPU seconds of one
thread, or on a GPU wall time.
"""

import argparse
import functools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from coprefl_flwr import seeds
from coprefl_flwr.data import Samples, TensorDataset
from coprefl_flwr.federation.machine import keep_freed_memory
from coprefl_flwr.learning.together import clients_at_once, train_together
from coprefl_flwr.learning.training import LocalTraining, local_sgd
from coprefl_flwr.models.build import build_model

STEPS, TIMES, SIZES = 5, 5, (4, 10, 16, 64)


def _linear(inputs: int) -> nn.Module:
    return nn.Linear(inputs, 10)


def _head() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


def _group_norm() -> nn.Module:
    """Return a network of two convolutions with GroupNorm for images (3, 32, 32)."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.GroupNorm(4, 64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2304, 10),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear 32-10, 10": (functools.partial(_linear, 32), (32,), 10),
    "linear 784-10, 10": (functools.partial(_linear, 784), (784,), 10),
    "head 512-256-10, 25": (_head, (512,), 25),
    "LeNet-5, 32": (functools.partial(build_model, "lenet5", 10, (1, 28, 28)), (1, 28, 28), 32),
    "FEMNIST CNN, 32": (
        functools.partial(build_model, "femnist-cnn", 62, (1, 28, 28)),
        (1, 28, 28),
        32,
    ),
    "CNN with GroupNorm, 32": (_group_norm, (3, 32, 32), 32),
}
"""{network and batch: (function that makes it, shape of an input, batch)}."""


def clock(device: torch.device) -> float:
    """Return CPU seconds of this process, or seconds after a wait for the GPU."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def row(name: str, device: torch.device) -> list[str]:
    """Return a row of the table: milliseconds of a step, parts of it, and the rule's number."""
    make, shape, batch = NETWORKS[name]
    torch.manual_seed(0)
    model, most = make().to(device), max(SIZES)
    inputs = torch.randn(most * batch * STEPS, *shape)
    labels = np.random.default_rng(0).integers(0, 10, len(inputs))
    whole = TensorDataset(inputs, labels=labels, classes=tuple("0123456789"))
    each = np.split(np.arange(len(inputs)), most)
    samples = [Samples(whole, rows, labels[rows]) for rows in each]
    orders = [functools.partial(seeds.generator, client) for client in range(most)]
    training = LocalTraining(local_steps=STEPS, batch_size=batch, learning_rate=0.01)
    how: dict[str, Any] = {"server_round": 1, "device": device}

    def alone(count: int) -> None:
        for own, order in zip(samples[:count], orders, strict=False):
            local_sgd(model, own, training, rng=order(), **how)

    def joint(count: int) -> None:
        train_together(model, training, samples[:count], orders[:count], **how)

    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(TIMES + 1):
        for count in SIZES:
            for compute in (alone, joint):
                start = clock(device)
                compute(count)
                times.setdefault((compute.__name__, count), []).append(clock(device) - start)
    medians = {key: median(seconds[1:]) for key, seconds in times.items()}
    ratios = [medians["joint", count] / medians["alone", count] for count in SIZES]
    step = 1000 * medians["alone", most] / most / STEPS
    number, _ = clients_at_once(training, model, device)
    chosen = str(number) if number > 1 else "one after another"
    return [name, f"{step:.2f} ms", *(f"{ratio:.2f}" for ratio in ratios), chosen]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    torch.set_num_threads(1)
    keep_freed_memory()
    counts = [f"{count} together" for count in SIZES]
    heads = ["network, batch", "one client's step", *counts, "unless set"]
    for cells in (heads, ["---", *["---:"] * (len(heads) - 1)]):
        print("| " + " | ".join(cells) + " |")
    for name in NETWORKS:
        print("| " + " | ".join(row(name, device)) + " |", flush=True)


if __name__ == "__main__":
    main()
