"""A study of a few seconds: its images, its network and its settings."""

import numpy as np
from torch import nn

from coprefl_flwr.studies.settings import Settings


def write_images(path):
    """Write an .npz of 8 classes of 30 noisy 6x6 images, each class with a pattern of its own."""
    rng = np.random.default_rng(11)
    labels = rng.permutation(np.repeat(np.arange(8), 30))
    patterns = rng.integers(0, 200, (8, 6, 6))
    images = patterns[labels] + rng.integers(0, 56, (len(labels), 6, 6))
    np.savez(path, images=images.astype(np.uint8), labels=labels)


def write_domain(path, seed):
    """Write an .npz of 4 classes of 60 6x6 images, the same patterns under noise of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(4), 60))
    patterns = np.random.default_rng(1).integers(0, 150, (4, 6, 6))
    images = patterns[labels] + rng.integers(0, 60 + 20 * seed, (len(labels), 6, 6))
    np.savez(path, images=images.clip(0, 255).astype(np.uint8), labels=labels)


def network(num_classes):
    """Return a small network with BatchNorm, whose counter is int64."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_classes)
    )


def plain_network(num_classes):
    """Return a network of one layer, all of whose arrays are trained."""
    return nn.Sequential(nn.Flatten(), nn.Linear(36, num_classes))


def tiny_study(images, folder):
    """Return the settings: 5 classes and 6 clients to pre-train, two tasks of 3 clients."""
    return Settings(
        run_name="tiny",
        output_dir=str(folder / "outputs"),
        dataset=str(images),
        downstream_classes="3",
        clients=6,
        partition="iid",
        min_samples=4,
        model="tests.tiny_study:network",
        method="random fedavg coprefl:gamma=0.25",
        rounds=3,
        participants=3,
        local_steps=2,
        batch_size=8,
        learning_rate=0.05,
        tasks=2,
        task_classes=2,
        task_clients=3,
        task_partition="iid",
        task_rounds=2,
        task_local_steps=2,
        task_learning_rate=0.05,
        checkpoint_every=1,
    )
