"""The pre-training methods a study can name, and the starting models it compares."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flwr.client import NumPyClient
from torch import nn

from coprefl_flwr.clients import CoPreFLClient, TorchClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.experiments.populations import PRETRAINING, ClientData
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.server_data import ServerData
from coprefl_flwr.settings import Settings, unknown
from coprefl_flwr.strategies import (
    CoPreFL,
    FedAvg,
    HybridCoPreFL,
    RoundStrategy,
    ServerRefined,
)

RANDOM = "random"

LOCAL_OPTIONS = (
    "rounds",
    "participants",
    "local-steps",
    "local-epochs",
    "batch-size",
    "learning-rate",
    "learning-rate-decay",
    "momentum",
    "weight-decay",
    "clip-norm",
)


MakeServer = Callable[[], ServerData]
MakeStrategy = Callable[[Settings, MakeServer], RoundStrategy]


@dataclass(frozen=True)
class Method:
    """A pre-training method: the strategy and the client that belong together.

    `options` are the settings that a start may set for itself.
    """

    options: tuple[str, ...]
    strategy: MakeStrategy
    client: Callable[[Settings, nn.Module, ClientData], NumPyClient]
    uses_server_data: bool = False


@dataclass(frozen=True)
class Start:
    """A starting model of the comparison.

    Parameters
    ----------
    name : str
        As the user wrote it, e.g. "coprefl:gamma=0.25".
    method : str
        A key of `METHODS`, or "random".
    settings : Settings
        The study's, with this start's own options.
    """

    name: str
    method: str
    settings: Settings

    @property
    def folder(self) -> str:
        """The name as part of a path."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.name)


def local_training(settings: Settings) -> LocalTraining:
    """Return how clients train in the pre-training."""
    return LocalTraining(
        local_steps=settings.local_steps,
        local_epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        learning_rate_decay=settings.learning_rate_decay,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
    )


def task_training(settings: Settings) -> LocalTraining:
    """Return how clients train in the downstream tasks: plain SGD (CoPreFL, appendix B.3)."""
    return LocalTraining(
        local_steps=settings.task_local_steps,
        local_epochs=settings.task_local_epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.task_learning_rate,
    )


def _common(settings: Settings) -> dict[str, Any]:
    """Return the options that all strategies take."""
    return {
        "participants": settings.participants,
        "seed": settings.seed,
        "run_name": settings.run_name,
        "population": PRETRAINING,
        "min_nodes": settings.min_nodes,
        "min_replies": settings.min_replies,
        "max_failed_rounds": settings.max_failed_rounds,
    }


def _meta(settings: Settings) -> dict[str, Any]:
    """Return the options of CoPreFL's meta step."""
    return {"gamma": settings.gamma, "meta_learning_rate": settings.meta_learning_rate}


def _fedavg(settings: Settings, _: MakeServer) -> RoundStrategy:
    return FedAvg(**_common(settings))


def _coprefl(settings: Settings, _: MakeServer) -> RoundStrategy:
    return CoPreFL(**_common(settings), **_meta(settings))


def _hybrid(settings: Settings, server: MakeServer) -> RoundStrategy:
    return HybridCoPreFL(server=server(), **_common(settings), **_meta(settings))


def _refined(inner: MakeStrategy) -> MakeStrategy:
    """Return `inner` followed by SGD on the server's data each round."""

    def make(settings: Settings, server: MakeServer) -> RoundStrategy:
        return ServerRefined(
            inner(settings, server),
            server(),
            steps=settings.server_steps,
            batch_size=settings.batch_size,
            learning_rate=settings.server_learning_rate,
        )

    return make


def _torch_client(settings: Settings, model: nn.Module, data: ClientData) -> NumPyClient:
    return TorchClient(model, data.train, data.test, local_training(settings))


def _coprefl_client(settings: Settings, model: nn.Module, data: ClientData) -> NumPyClient:
    return CoPreFLClient(
        model,
        data.train,
        local_training(settings),
        support_fraction=settings.support_fraction,
        resplit=settings.resplit,
    )


_META = ("gamma", "meta-learning-rate")
_SPLIT = ("support-fraction", "resplit")
_REFINED = ("server-steps", "server-learning-rate")
METHODS = {
    "fedavg": Method(LOCAL_OPTIONS, _fedavg, _torch_client),
    "coprefl": Method((*LOCAL_OPTIONS, *_META, *_SPLIT), _coprefl, _coprefl_client),
    "fedavg-refined": Method((*LOCAL_OPTIONS, *_REFINED), _refined(_fedavg), _torch_client, True),
    "coprefl-sgd": Method(
        (*LOCAL_OPTIONS, *_META, *_SPLIT, *_REFINED), _refined(_coprefl), _coprefl_client, True
    ),
    "coprefl-hybrid": Method((*LOCAL_OPTIONS, *_META), _hybrid, _torch_client, True),
}
"""Every pre-training method by its name; the last three are scenario II's."""


def starts(settings: Settings) -> list[Start]:
    """Return the starting models of the setting `starts`, in its order.

    Raises
    ------
    SettingsError
        For an unknown method or option, or a start named twice.
    """
    names = settings.starts.replace(";", " ").split()
    if not names:
        raise SettingsError(f"starts is empty: name some of {', '.join([RANDOM, *METHODS])}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingsError(f"starts names '{twice}' twice")
    chosen = [start(settings, name) for name in names]
    folders = [one.folder for one in chosen]
    for one in chosen:
        if folders.count(one.folder) > 1:
            raise SettingsError(f"starts: '{one.name}' and another would share {one.folder}/")
    return chosen


@functools.lru_cache(maxsize=64)
def start(settings: Settings, name: str) -> Start:
    """Read one entry of `starts`: METHOD or METHOD:option=value,option=value."""
    method, _, text = name.partition(":")
    if name == RANDOM:
        return Start(name, RANDOM, settings)
    if method == RANDOM:
        raise SettingsError(f"starts: '{name}': random is not trained and takes no options")
    if method not in METHODS:
        raise SettingsError(f"starts: {unknown('method', method, [RANDOM, *METHODS])}")
    config: dict[str, object] = dict(settings.to_config())
    for pair in text.split(",") if text else []:
        option, _, value = pair.partition("=")
        if option not in METHODS[method].options:
            raise SettingsError(
                f"starts, {name}: {unknown('option', option, list(METHODS[method].options))}"
            )
        config[option] = _value(value)
    try:
        own = Settings.from_config(config)
    except SettingsError as error:
        raise SettingsError(f"starts, {name}: {error}") from error
    return Start(name, method, replace(own, run_name=settings.run_name))


def _value(text: str) -> bool | int | float | str:
    """Read an option's value as TOML would: true, a whole number, a number, or a text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
