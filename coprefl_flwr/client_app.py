"""The ClientApp that `flwr run` loads: clients of the population and the method a message names."""

import functools
from collections.abc import Mapping
from typing import Any

from flwr.app import Context
from flwr.client import NumPyClient
from torch import nn

from coprefl_flwr.clients import TorchClient, client_app
from coprefl_flwr.experiments.methods import METHODS, start, task_training
from coprefl_flwr.experiments.populations import (
    PRETRAINING,
    image_shape,
    number_of_clients,
    population,
)
from coprefl_flwr.models import build_model
from coprefl_flwr.settings import Settings, Value


@functools.lru_cache(maxsize=4)
def _settings(config: tuple[tuple[str, Value], ...]) -> Settings:
    return Settings.from_config(dict(config))


def settings_of(context: Context) -> Settings:
    """Return the settings of a run, read once per process."""
    return _settings(tuple(sorted(context.run_config.items())))


@functools.lru_cache(maxsize=4)
def _model(settings: Settings, num_classes: int) -> nn.Module:
    """Return the network that this process's clients load their weights into."""
    return build_model(settings.model, num_classes, image_shape(settings), settings.norm)


def client_fn(context: Context, client_id: int, config: Mapping[str, Any]) -> NumPyClient:
    """Return a client of the pre-training, by the method the message names, or of a task."""
    settings = settings_of(context)
    group = population(settings, str(config["population"]))
    data = group.clients[client_id]
    model = _model(settings, len(group.classes))
    if group.name != PRETRAINING:
        return TorchClient(model, data.train, data.test, task_training(settings))
    chosen = start(settings, str(config["start"]))
    return METHODS[chosen.method].client(chosen.settings, model, data)


app = client_app(
    client_fn, clients=lambda context, name: number_of_clients(settings_of(context), name)
)
