"""The ClientApp that `flwr run` loads: clients of the population and the method a message names."""

import functools
from collections.abc import Mapping
from typing import Any

from flwr.app import Context
from flwr.client import NumPyClient
from torch import nn

from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients import client_app
from coprefl_flwr.models import build_model
from coprefl_flwr.studies.methods import local_training, task_training
from coprefl_flwr.studies.personal_data import PERSONAL, num_clients
from coprefl_flwr.studies.personal_methods import personal_client
from coprefl_flwr.studies.populations import (
    PRETRAINING,
    input_shape,
    number_of_clients,
    population,
)
from coprefl_flwr.studies.settings import Settings, Value
from coprefl_flwr.studies.starts import start, task_phase


@functools.lru_cache(maxsize=4)
def _settings(config: tuple[tuple[str, Value], ...]) -> Settings:
    return Settings.from_config(dict(config))


def settings_of(context: Context) -> Settings:
    """Return the settings of a run, read once per process."""
    return _settings(tuple(sorted(context.run_config.items())))


@functools.lru_cache(maxsize=4)
def _model(settings: Settings, num_classes: int) -> nn.Module:
    """Return the network that this process's clients load their weights into."""
    return build_model(settings.model, num_classes, input_shape(settings), settings.norm)


def client_fn(context: Context, client_id: int, config: Mapping[str, Any]) -> NumPyClient:
    """Return a client of the method the message is about: a phase of a start, or a task's."""
    settings = settings_of(context)
    if config["population"] == PERSONAL:
        return personal_client(settings, client_id, config)
    group = population(settings, str(config["population"]))
    if group.name == PRETRAINING:
        phase = start(settings, str(config["start"])).phase(int(config["server-round"]))
        training = local_training(phase.settings)
    else:
        phase, training = task_phase(settings), task_training(settings)
    return phase.method.client(
        phase.settings,
        _model(settings, len(group.classes)),
        group.clients[client_id],
        training,
        # In the run's folder: any node may run any client, so they share a file system.
        ClientState(str(config.get("state-dir", ""))),
    )


def hosted(context: Context, population_name: str) -> int:
    """Return how many clients a population has, each of which any node can run."""
    settings = settings_of(context)
    if population_name == PERSONAL:
        return num_clients(settings)
    return number_of_clients(settings, population_name)


app = client_app(client_fn, clients=hosted)
