"""The settings that the server and every node share: model, pixels, CoPreFL's options."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from coprefl_flwr.models import build_model
from coprefl_flwr.studies.settings import Settings

MODEL = "femnist-cnn"
NUM_CLASSES = 100
IMAGE_SHAPE = (1, 28, 28)  # channels, height, width
# Of images / 255. They are fixed, because values measured by each node would differ.
PIXEL_MEAN, PIXEL_STD = 0.124, 0.268


def initial_model(seed: int) -> nn.Module:
    """Return the model with the random weights that the pre-training starts from."""
    return build_model(MODEL, NUM_CLASSES, IMAGE_SHAPE, seed_key=(seed, "model"))


NODE_CLIENTS = "node-clients"
"""A key of the run-config that is not a setting: a file, see docs/deployment.md."""

OPTIONS = ("gamma", "meta-learning-rate", "support-fraction")
"""Keys of the run-config that are options of CoPreFL."""


def settings_of(config: Mapping[str, object]) -> Settings:
    """Return the settings in a run-config, without the app's own keys.

    `clients` is the largest allowed number: how many clients there are depends on the nodes.
    """
    others = {k: value for k, value in config.items() if k not in (NODE_CLIENTS, *OPTIONS)}
    return Settings.from_config({"clients": 1_000_000, **others})


def options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return CoPreFL's options in a run-config."""
    return {key: config[key] for key in OPTIONS}
