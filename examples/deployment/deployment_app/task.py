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
"""The only key of the run-config that is not a setting: a file, see docs/deployment.md."""


def settings_of(config: Mapping[str, object]) -> Settings:
    """Return the settings in a run-config, without the app's own key.

    `clients` is the largest allowed number: how many clients there are depends on the nodes.
    """
    own = {key: value for key, value in config.items() if key != NODE_CLIENTS}
    return Settings.from_config({"clients": 1_000_000, **own})


def options(settings: Settings) -> dict[str, Any]:
    """Return CoPreFL's own options, which the run-config sets in addition to the settings."""
    own = ("gamma", "meta-learning-rate", "support-fraction")
    return {key: dict(settings.short)[key] for key in own}
