"""What bfloat16 saves, and what it changes: the table in docs/results.md.

`python -m benchmarks.precision cifar100.npz` measures ResNet-8 and the small CNN on CIFAR-100 in
float32 and in bfloat16, alternating in one process on one thread: CPU time of a client's five SGD
steps and of an evaluation (medians), and how far a model is from float32's after one round.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

import coprefl_flwr as cp
from coprefl_flwr import seeds
from coprefl_flwr.data import ImageDataset, Samples
from coprefl_flwr.learning import EVALUATION_BATCH, LocalTraining, evaluate, local_sgd
from coprefl_flwr.models import build_model, model_arrays

MODELS = ("resnet8", "femnist-cnn")
PRECISIONS = ("float32", "bf16")
REPETITIONS, CLIENTS = 15, 100
TRAINING = {"local_steps": 5, "batch_size": 32, "learning_rate": 0.1}
CPU = torch.device("cpu")


def table(images: ImageDataset) -> str:
    """Return a line per model."""
    heads = ("model", *(f"{what}, {p}, ms" for what in ("step", "evaluation") for p in PRECISIONS))
    lines = [f"| {' | '.join((*heads, 'steps', 'evaluations', 'after one round'))} |"]
    lines.append("| --- " + "| --: " * (len(heads) + 2) + "|")
    for name in MODELS:
        model = build_model(name, len(images.classes), images.shape)
        samples = Samples(images, np.arange(512), images.labels[:512])
        steps = alternating(lambda p, m=model, s=samples: train(m, s, p))  # type: ignore[misc]
        tests = alternating(lambda p, m=model, s=samples: measure(m, s, p))  # type: ignore[misc]
        times = [*(1e3 * one / 5 for one in steps), *(1e3 * one for one in tests)]
        ratios = [f"{steps[1] / steps[0]:.2f}", f"{tests[1] / tests[0]:.2f}"]
        fresh = build_model(name, len(images.classes), images.shape)
        cells = [name, *(f"{one:.1f}" for one in times), *ratios, apart(fresh, images)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def train(model: torch.nn.Module, samples: Samples, precision: str) -> None:
    """Take a participation's steps."""
    training = LocalTraining(**TRAINING, precision=precision)  # type: ignore[arg-type]
    rng = seeds.generator(0, "batches")
    local_sgd(model, samples, training, server_round=1, rng=rng, device=CPU)


def measure(model: torch.nn.Module, samples: Samples, precision: str) -> None:
    """Evaluate a model on 512 samples."""
    evaluate(model, samples.batches(EVALUATION_BATCH, CPU), precision=precision)


def alternating(work: Callable[[str], None]) -> list[float]:
    """Return the median CPU seconds in each precision, after one that does not count."""
    seconds: dict[str, list[float]] = {one: [] for one in PRECISIONS}
    for _ in range(REPETITIONS + 1):
        for precision in PRECISIONS:
            began = time.process_time()
            work(precision)
            seconds[precision].append(time.process_time() - began)
    return [median(each[1:]) for each in seconds.values()]


def apart(model: torch.nn.Module, images: ImageDataset) -> str:
    """Return how far one round of FedAvg in bfloat16 ends from one in float32."""
    clients = cp.partition(images, clients=CLIENTS, alpha=0.5)
    first, *ends = (
        model_arrays(one)
        for one in (
            model,
            *(
                cp.pretrain(cp.FedAvg(participants=20), model, clients, 1, **options(p))
                for p in PRECISIONS
            ),
        )
    )
    names = [name for name, _ in model.named_parameters()]
    moved, differs = (
        np.concatenate([(ends[-1][n] - other[n]).ravel() for n in names])
        for other in (first, ends[0])
    )
    part = 100 * np.linalg.norm(differs) / np.linalg.norm(moved)
    return f"{np.abs(differs).max():.1e} ({part:.1f} %)"


def options(precision: str) -> dict[str, Any]:
    """Return how clients train in the round."""
    return {**TRAINING, "precision": precision, "quiet": True}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="CIFAR-100 as an .npz file")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    images = cp.load_dataset(given.dataset)
    if not isinstance(images, ImageDataset):
        parser.error(f"{given.dataset}: images are needed")
    print(f"load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    print(table(images))


if __name__ == "__main__":
    main()
