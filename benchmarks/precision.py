"""Times and weights in bfloat16 compared with float32: the table in docs/results.md.

`python -m benchmarks.precision cifar100.npz` measures ResNet-8 and the small CNN on CIFAR-100. Both
precisions alternate in one process on one thread. The table has the median CPU times of an SGD step
and of an evaluation, and the difference of the weights after one round of FedAvg.
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
from coprefl_flwr.learning.evaluation import EVALUATION_BATCH, evaluate
from coprefl_flwr.learning.training import LocalTraining, local_sgd
from coprefl_flwr.models import build_model, model_arrays

MODELS = ("resnet8", "femnist-cnn")
PRECISIONS = ("float32", "bf16")
REPETITIONS, CLIENTS = 15, 100
TRAINING = {"local_steps": 5, "batch_size": 32, "learning_rate": 0.1}
CPU = torch.device("cpu")


def table(images: ImageDataset) -> str:
    """Return the table, one line for each model."""
    heads = ("model", *(f"{what}, {p}, ms" for what in ("step", "evaluation") for p in PRECISIONS))
    lines = [f"| {' | '.join((*heads, 'steps', 'evaluations', 'after seconds round'))} |"]
    lines.append("| --- " + "| --: " * (len(heads) + 2) + "|")
    for name in MODELS:
        model = build_model(name, len(images.classes), images.shape)
        samples = Samples(images, np.arange(512), images.labels[:512])
        steps = alternating(lambda p, m=model, s=samples: train(m, s, p))  # type: ignore[misc]
        tests = alternating(lambda p, m=model, s=samples: measure(m, s, p))  # type: ignore[misc]
        times = [*(1e3 * seconds / 5 for seconds in steps), *(1e3 * seconds for seconds in tests)]
        ratios = [f"{steps[1] / steps[0]:.2f}", f"{tests[1] / tests[0]:.2f}"]
        fresh = build_model(name, len(images.classes), images.shape)
        cells = [name, *(f"{seconds:.1f}" for seconds in times), *ratios, apart(fresh, images)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def train(model: torch.nn.Module, samples: Samples, precision: str) -> None:
    """Run a client's SGD steps of one round."""
    training = LocalTraining(**TRAINING, precision=precision)  # type: ignore[arg-type]
    rng = seeds.generator(0, "batches")
    local_sgd(model, samples, training, server_round=1, rng=rng, device=CPU)


def measure(model: torch.nn.Module, samples: Samples, precision: str) -> None:
    """Evaluate a model on 512 samples."""
    evaluate(model, samples.batches(EVALUATION_BATCH, CPU), precision=precision)


def alternating(work: Callable[[str], None]) -> list[float]:
    """Return the median CPU seconds of `work` in each precision, without its first run."""
    seconds: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    for _ in range(REPETITIONS + 1):
        for precision in PRECISIONS:
            began = time.process_time()
            work(precision)
            seconds[precision].append(time.process_time() - began)
    return [median(each[1:]) for each in seconds.values()]


def apart(model: torch.nn.Module, images: ImageDataset) -> str:
    """Return the difference of the weights after a round of FedAvg in bfloat16 and in float32."""
    clients = cp.partition(images, clients=CLIENTS, alpha=0.5)
    first, *ends = (
        model_arrays(network)
        for network in (
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
    """Return the options of local training for the round."""
    return {**TRAINING, "precision": precision, "quiet": True}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="CIFAR-100 as an .npz file")
    chosen = parser.parse_args(argv)
    torch.set_num_threads(1)
    images = cp.load_dataset(chosen.dataset)
    if not isinstance(images, ImageDataset):
        parser.error(f"{chosen.dataset}: images are needed")
    print(f"load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    print(table(images))


if __name__ == "__main__":
    main()
