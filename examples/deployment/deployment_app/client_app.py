"""The ClientApp. A node is one client; its node-config names the file of its data."""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context
from torch import nn

from coprefl_flwr.clients import CoPreFLClient, client_app
from coprefl_flwr.data import ImageDataset, Samples, load_dataset
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning.training import LocalTraining
from deployment_app import task


def client_fn(context: Context) -> CoPreFLClient:
    """Return this node's client. Each message starts a new process, so nothing is cached here."""
    config = context.run_config
    training = LocalTraining(
        local_steps=int(config["local-steps"]),
        batch_size=int(config["batch-size"]),
        learning_rate=float(config["learning-rate"]),
    )
    samples = node_samples(str(context.node_config.get("data-path", "")))
    return CoPreFLClient(
        model(),
        samples,
        training=training,
        support_fraction=float(config["support-fraction"]),
    )


@functools.cache
def model() -> nn.Module:
    """Return the network into which the weights of a message are loaded."""
    return task.initial_model(seed=0)


@functools.cache
def node_samples(path: str) -> Samples:
    """Load this node's samples.

    Raises
    ------
    SettingsError
        If no file is named, or its content does not fit the model.
    """
    if not path:
        raise SettingsError(
            "node-config has no data-path: start the node with "
            "--node-config \"partition-id=0 data-path='/path/to/data.npz'\""
        )
    if not Path(path).is_file():
        raise SettingsError(f"data-path = {path!r}: there is no such file on this node")
    images = load_dataset(path)
    if not isinstance(images, ImageDataset):
        raise SettingsError(f"data-path = {path!r}: holds no images")
    if images.images.shape[1:] != task.IMAGE_SHAPE or images.labels.max() >= task.NUM_CLASSES:
        raise SettingsError(
            f"data-path = {path!r}: holds images of (channels, height, width) = "
            f"{tuple(images.images.shape[1:])} and labels up to {images.labels.max()}; the model "
            f"takes {task.IMAGE_SHAPE} and labels up to {task.NUM_CLASSES - 1}"
        )
    mean, std = torch.tensor([task.PIXEL_MEAN]), torch.tensor([task.PIXEL_STD])
    images = replace(images, mean=mean, std=std)
    return Samples(images, np.arange(len(images.labels)), images.labels)


app = client_app(client_fn)
