"""The methods of a personalised study: what runs on the server and on the clients, and on what."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.client import NumPyClient
from torch import nn

from coprefl_flwr.arrays import Arrays
from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients import (
    FedPCLClient,
    FedProtoClient,
    FedRepClient,
    PFedMeClient,
    SoloClient,
    StatefulClient,
)
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.learning import AdamTraining
from coprefl_flwr.models import build_model, head_names, model_arrays, outputs_and_representation
from coprefl_flwr.models.lightweight import WIDTH, lightweight_model, projection_head
from coprefl_flwr.prototypes import no_prototypes
from coprefl_flwr.strategies import FedPCL, FedProto, FedRep, PFedMe, RoundStrategy, Solo
from coprefl_flwr.studies.methods import BATCH_SIZE, LOCAL_SETTINGS, METHODS, Method
from coprefl_flwr.studies.personal_data import (
    PERSONAL,
    SCRATCH,
    client_data,
    input_shape,
    noise,
    num_classes,
    num_clients,
)
from coprefl_flwr.studies.settings import Settings, Value, field_of
from coprefl_flwr.studies.starts import Phase, check_all_used, named, phase, run_options

COMMON = tuple(key for key in LOCAL_SETTINGS if key not in ("participants", "momentum"))
_FEDPCL: dict[str, Value] = {"variant": FedPCL.variant, "temperature": FedPCL.temperature}
_PFEDME: dict[str, Value] = {
    "mu": PFedMe.mu,
    "inner-steps": PFedMe.inner_steps,
    "meta-learning-rate": PFedMe.meta_learning_rate,
    "global-learning-rate": PFedMe.global_learning_rate,
}
_PER_FEDAVG: dict[str, Value] = {"variant": "fo", "inner-learning-rate": 0.01}

PERSONAL_METHODS = {
    "fedpcl": Method(FedPCL, FedPCLClient, _FEDPCL, FedPCL.variants, common=COMMON),
    "fedavg": Method(METHODS["fedavg"].strategy_class, common=COMMON),
    "pfedme": Method(PFedMe, PFedMeClient, _PFEDME, common=COMMON),
    "per-fedavg": Method(
        METHODS["per-fedavg"].strategy_class,
        METHODS["per-fedavg"].client_class,
        _PER_FEDAVG,
        METHODS["per-fedavg"].variants,
        common=COMMON,
    ),
    "fedrep": Method(FedRep, FedRepClient, common=COMMON),
    "fedproto": Method(FedProto, FedProtoClient, {"mu": FedProto.mu}, common=COMMON),
    "solo": Method(Solo, SoloClient, common=COMMON),
}
"""FedPCL and the six it is compared with (section 5.1), by name."""

_DESCRIBED = {
    "fedpcl": ("prototypes: up one's own, down all", "its head, its own prototypes"),
    "fedavg": ("the whole model", "the global model"),
    "pfedme": ("the whole model", "its own model theta"),
    "per-fedavg": ("the whole model", "the global model after a step on its own samples"),
    "fedrep": ("all but the last layer", "that under its own last layer"),
    "fedproto": ("prototypes: up one's own, down the global", "its model, the global prototypes"),
    "solo": ("nothing", "its own model"),
}


OF_PERSONAL = (
    "personal-datasets",
    "personal-clients",
    "shift",
    "train-per-class",
    "test-per-class",
    "backbones",
    "head-norm",
    "noise-on",
    "noise-kind",
    "noise-scale",
    "noise-share",
)
"""Settings of personalised studies alone."""

NOT_HEEDED = (
    "samples-per-class",
    "pretraining-domains",
    "downstream-domains",
    "task-dataset",
    "partition",
    "server-reserve",
    "server-share",
)
"""Settings of data that say nothing to a personalised study, whose clients hold datasets whole."""


def is_personalised(settings: Settings) -> bool:
    """Tell whether a personalised study is set: its datasets, backbones, or a method of its own."""
    names = {entry.partition(":")[0] for entry in settings.method.replace(";", " ").split()}
    only_there = names & (PERSONAL_METHODS.keys() - METHODS.keys())
    return bool(only_there) or any(_is_set(settings, key) for key in OF_PERSONAL)


def _is_set(settings: Settings, key: str) -> bool:
    """Tell whether a setting has another value than its default."""
    return bool(getattr(settings, field_of(key)) != getattr(Settings, field_of(key)))


def personal_phases(settings: Settings) -> dict[str, Phase]:
    """Return the methods of the setting `method` by entry, each with its settings.

    Raises
    ------
    SettingsError
        For a method that is not one of a personalised study, or a setting that none here has.
    """
    check_meant(settings)
    names = named(settings, list(PERSONAL_METHODS))
    found = {name: personal_phase(settings, name) for name in names}
    check_all_used(settings, list(found.values()))
    return found


def check_meant(settings: Settings) -> None:
    """Raise a SettingsError for a setting that a personalised study does not heed."""
    if settings.clients != Settings.clients:
        raise SettingsError(
            f"clients = {settings.clients}: how many a personalised study has is personal-clients"
        )
    if settings.participants != Settings.participants:
        raise SettingsError(
            f"participants = {settings.participants}: all clients of a personalised study take part"
        )
    if settings.momentum:
        raise SettingsError(f"momentum = {settings.momentum}: a personalised study trains by Adam")
    for key in NOT_HEEDED:
        if _is_set(settings, key):
            value = getattr(settings, field_of(key))
            raise SettingsError(f"{key} = {value}: a personalised study does not heed it")


@functools.lru_cache(maxsize=16)
def personal_phase(settings: Settings, name: str) -> Phase:
    """Read one entry of `method`."""
    found = phase("method", settings, name, PERSONAL_METHODS)
    if found.name == "fedpcl" and settings.backbones.strip() == SCRATCH:
        raise SettingsError("backbones = scratch: fedpcl trains a head on features, no network")
    return found


def training(settings: Settings) -> AdamTraining:
    """Return how clients train: Adam, 1e-3, weight decay 1e-4, one epoch (section 5.1)."""
    neither = settings.local_steps is None and settings.local_epochs is None
    decay = AdamTraining.weight_decay if settings.weight_decay is None else settings.weight_decay
    return AdamTraining(
        local_steps=settings.local_steps,
        local_epochs=1 if neither else settings.local_epochs,
        max_steps=settings.max_local_steps,
        batch_size=settings.batch_size or BATCH_SIZE,
        learning_rate=settings.learning_rate,
        learning_rate_decay=settings.learning_rate_decay,
        weight_decay=decay,
        clip_norm=settings.clip_norm,
    )


def network(method: Phase) -> nn.Module:
    """Return what a method's clients train, with the weights that all begin with."""
    settings = method.settings
    classes, shape, key = num_classes(settings), input_shape(settings), (settings.seed, "model")
    if settings.backbones.strip() == SCRATCH:
        return build_model(settings.model, classes, shape, settings.norm, key)
    if method.method.strategy_class is FedPCL:
        return projection_head(shape[0], settings.head_norm or "none", key)
    return lightweight_model(shape[0], classes, settings.head_norm or "batch", key)


def initial_arrays(method: Phase) -> Arrays:
    """Return the global arrays that a method begins with: what travels, and no more."""
    settings, model = method.settings, network(method)
    strategy = method.method.strategy_class
    if strategy is FedPCL:
        return no_prototypes(num_classes(settings), WIDTH)
    if strategy is FedProto:
        with torch.no_grad():
            _, z = outputs_and_representation(model.eval(), torch.zeros(1, *input_shape(settings)))
        return no_prototypes(num_classes(settings), z.shape[1])
    if strategy is Solo:
        return {}
    arrays = model_arrays(model)
    return _body(settings, arrays) if strategy is FedRep else arrays


def _body(settings: Settings, arrays: Arrays) -> Arrays:
    """Return all arrays but the classifier's, which must be the last."""
    head = frozenset({"classifier.weight", "classifier.bias"})
    if settings.backbones.strip() == SCRATCH:
        shape = input_shape(settings)
        head = head_names(settings.model, num_classes(settings), shape, settings.norm)
    if set(list(arrays)[-len(head) :]) != head:
        raise SettingsError(f"model = {settings.model}: fedrep needs its last layer to be the head")
    return {name: array for name, array in arrays.items() if name not in head}


def strategy(method: Phase) -> RoundStrategy:
    """Return a method's strategy: every client takes part in every round."""

    def no_server(_: str) -> Any:
        raise AssertionError("a personalised study has no data at the server")

    settings = method.settings
    return method.method.strategy(
        settings,
        no_server,
        evaluate_every=settings.test_every or settings.rounds,
        # Every client takes part in every round, or the round is repeated.
        **run_options(settings, PERSONAL) | {"min_replies": num_clients(settings)},
    )


@functools.lru_cache(maxsize=8)
def _held_network(settings: Settings, name: str) -> tuple[nn.Module, Arrays]:
    """Return the network that this process's clients of a method share, and its first weights."""
    model = network(personal_phase(settings, name))
    return model, model_arrays(model)


def personal_client(settings: Settings, client: int, config: Mapping[str, Any]) -> NumPyClient:
    """Return a client of the method that a request names."""
    name = str(config["method"])
    found = personal_phase(settings, name)
    model, first = _held_network(settings, name)
    data = client_data(settings, client, Path(str(config["feature-dir"])))
    client_class = found.method.client_class
    more: dict[str, Any] = {"test": data.test, "training": training(found.settings)}
    if issubclass(client_class, StatefulClient):
        more |= {"state": ClientState(str(config["state-dir"])), "initial": first}
    if issubclass(client_class, FedPCLClient) and settings.noise_on == "prototypes":
        more["noise"] = noise(settings)
    return client_class(model, data.train, **more)


def personal_methods_table() -> str:
    """Return the methods of a personalised study as a Markdown table."""
    lines = ["| `method` | its own settings | what travels | evaluated with |", "| --- " * 4 + "|"]
    for name, (travels, tested) in _DESCRIBED.items():
        lines.append(f"| `{name}` | {PERSONAL_METHODS[name].shown()} | {travels} | {tested} |")
    return "\n".join(lines) + "\n"
