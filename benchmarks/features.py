"""The time and traffic that cached features save: docs/features.md.

`python -m benchmarks.features` measures a round of FedPCL with and without the cache, and of FedAvg
on cached features. There are 5 clients of 100 images of 32x32 pixels, and one or three backbones,
on the local grid.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Context
from torch import Tensor

from benchmarks.measure import machine
from coprefl_flwr.arrays import Arrays, to_record
from coprefl_flwr.clients import FedPCLClient, TorchClient, client_app
from coprefl_flwr.data import Dataset, ImageDataset, Samples, make_dataset
from coprefl_flwr.data.features import features_of
from coprefl_flwr.federation.client_state import ClientState
from coprefl_flwr.grids import LocalGrid
from coprefl_flwr.learning.optimisers import ADAM
from coprefl_flwr.learning.prototypes import no_prototypes
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models import build_model, model_arrays
from coprefl_flwr.models.backbones import Backbone
from coprefl_flwr.models.networks import WIDTH, lightweight_model, projection_head
from coprefl_flwr.strategies import FedAvg, FedPCL, RoundStrategy

CLIENTS, SAMPLES, CLASSES, SHAPE = 5, 100, 10, (3, 32, 32)
CPU = torch.device("cpu")
PAGE = Path(__file__).parent.parent / "docs" / "features.md"


@dataclass(frozen=True, eq=False)
class Encoded(Dataset):
    """A `Dataset` without a cache: it runs the backbones for every batch."""

    images: ImageDataset
    backbones: Sequence[Backbone]

    @classmethod
    def of(cls, images: ImageDataset, backbones: Sequence[Backbone]) -> "Encoded":
        """Return the features of images, with the images' labels."""
        return cls(images, backbones, labels=images.labels, classes=images.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's features."""
        return (sum(backbone.size for backbone in self.backbones),)

    def inputs(self, rows: npt.NDArray[np.int64], device: torch.device) -> Tensor:
        """Return the features of `rows`, computed by the backbones."""
        images = self.images.images[torch.from_numpy(rows)].to(device).float() / 255
        return torch.cat([backbone.features(images) for backbone in self.backbones], dim=1)


@dataclass(frozen=True)
class Measured:
    """Seconds of a round, and the bytes of the arrays in all of its messages."""

    seconds: float
    bytes_down: float
    bytes_up: float


def random_images() -> ImageDataset:
    """Return random images with labels; times and bytes do not depend on their values."""
    rng = np.random.default_rng(0)
    n = CLIENTS * SAMPLES
    pixels = torch.from_numpy(rng.integers(0, 256, (n, *SHAPE), dtype=np.uint8))
    images = make_dataset("random", pixels, np.arange(n) % CLASSES)
    assert isinstance(images, ImageDataset)
    return images


def random_backbones(model: str, number: int) -> list[Backbone]:
    """Return networks with random weights."""
    networks = [build_model(model, CLASSES, SHAPE, seed_key=(k,)) for k in range(number)]
    return [Backbone.of(network, SHAPE, [0.5] * 3, [0.3] * 3) for network in networks]


def samples_of(dataset: Dataset, client: int) -> Samples:
    """Return a client's samples, ten of each class."""
    rows = np.arange(client * SAMPLES, (client + 1) * SAMPLES)
    return Samples(dataset, rows, dataset.labels[rows])


def measure(
    strategy: RoundStrategy, start: Arrays, samples: Sequence[Samples], rounds: int
) -> Measured:
    """Run a first round without training and `rounds` more; return medians of the latter."""
    features = samples[0].dataset.shape[0]
    pcl = isinstance(strategy, FedPCL)
    network = projection_head(features) if pcl else lightweight_model(features, CLASSES)
    initial, seconds = model_arrays(network), []
    with tempfile.TemporaryDirectory() as folder:

        def client(_: Context, client_id: int) -> TorchClient:
            training, train = (
                LocalTraining(optimiser=ADAM, weight_decay=1e-4, local_epochs=1),
                samples[client_id],
            )
            if not pcl:
                return TorchClient(network, train, training=training, device=CPU)
            return FedPCLClient(
                network,
                train,
                state=ClientState(folder),
                initial=initial,
                training=training,
                device=CPU,
            )

        grid = LocalGrid(client_app(client), nodes=CLIENTS)
        began = [time.monotonic()]

        def after_round(_: object) -> None:
            seconds.append(time.monotonic() - began[0])
            began[0] = time.monotonic()

        result = strategy.start(grid, to_record(start), rounds + 1, hooks=[after_round])
    traffic = result.history.traffic[rounds + 1]
    return Measured(median(seconds[1:]), traffic["client-bytes-down"], traffic["client-bytes-up"])


def compare(model: str, number: int, rounds: int) -> dict[str, Measured]:
    """Measure FedPCL with and without the cache, and FedAvg with it, on `number` backbones."""
    images, backbones = random_images(), random_backbones(model, number)
    encoded = Encoded.of(images, backbones)
    uncached = [samples_of(encoded, client) for client in range(CLIENTS)]
    encoders = [backbone.features for backbone in backbones]
    cached = [features_of(samples_of(images, client), encoders, CPU) for client in range(CLIENTS)]
    start = model_arrays(lightweight_model(cached[0].dataset.shape[0], CLASSES))
    run: dict[str, Any] = {"clients": CLIENTS, "evaluate_every": 0}
    none = no_prototypes(CLASSES, WIDTH)
    return {
        "FedPCL, cached": measure(FedPCL(**run), none, cached, rounds),
        "FedPCL, not cached": measure(FedPCL(**run), none, uncached, rounds),
        "FedAvg, cached": measure(FedAvg(**run), start, cached, rounds),
    }


def page(model: str, results: dict[int, dict[str, Measured]], rounds: int) -> str:
    """Return the page; `results` is {number of backbones: {method: measurement}}."""
    about = machine()
    lines = [
        "# What frozen features save",
        "",
        "Frozen backbones give the same features in every round, so the package computes them once "
        "per client and caches them. The table compares a round with and without this cache.",
        "",
        f"There are {CLIENTS} clients. Each is a node with {SAMPLES} images of 32x32 pixels in "
        f"{CLASSES} classes. The backbones are {model}. In a round, each client trains its head "
        "for one epoch by Adam in batches of 32, in one process on the local grid. Times are the "
        f"median of {rounds} rounds. MB are those of the arrays in all messages of a round.",
        "",
        "| backbones | method | s/round | MB to clients | MB from clients |",
        "| --: | --- | --: | --: | --: |",
    ]
    for number, methods in results.items():
        for name, measured in methods.items():
            sent = f"{measured.bytes_down / 1e6:.3f} | {measured.bytes_up / 1e6:.3f}"
            lines.append(f"| {number} | {name} | {measured.seconds:.3f} | {sent} |")
    lines += [
        "",
        f"{about['processor']}, {torch.get_num_threads()} thread(s), torch {about['torch']}, load "
        f"{about['load_before']:.1f} before, {about['date']}. "
        f"`python -m benchmarks.features --model {model} --rounds {rounds}`",
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure one and three backbones and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--model", default="resnet18", help="the backbones (default resnet18)")
    parser.add_argument("--output", type=Path, default=PAGE, help="the page (docs/features.md)")
    chosen = parser.parse_args(argv)
    if chosen.rounds < 1:
        parser.error(f"--rounds {chosen.rounds}: at least 1 is needed")
    results = {number: compare(chosen.model, number, chosen.rounds) for number in (1, 3)}
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(page(chosen.model, results, chosen.rounds), encoding="utf-8")
    print(chosen.output)


if __name__ == "__main__":
    main()
