"""The pre-training methods a study can name, and the starting models it compares."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from flwr.client import NumPyClient
from torch import nn

from coprefl_flwr.clients import CoPreFLClient, TorchClient
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.experiments.populations import PRETRAINING, ClientData
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.settings import Settings, unknown
from coprefl_flwr.strategies import CoPreFL, FedAvg, RoundStrategy

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


@dataclass(frozen=True)
class Method:
    """A pre-training method: the strategy and the client that belong together."""

    options: tuple[str, ...]
    strategy: Callable[[Settings], RoundStrategy]
    client: Callable[[Settings, nn.Module, ClientData], NumPyClient]


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


def _fedavg(settings: Settings) -> RoundStrategy:
    return FedAvg(
        participants=settings.participants,
        seed=settings.seed,
        run_name=settings.run_name,
        population=PRETRAINING,
        min_nodes=settings.min_nodes,
        min_replies=settings.min_replies,
        max_failed_rounds=settings.max_failed_rounds,
    )


def _fedavg_client(settings: Settings, model: nn.Module, data: ClientData) -> NumPyClient:
    return TorchClient(model, data.train, data.test, local_training(settings))


def _coprefl(settings: Settings) -> RoundStrategy:
    return CoPreFL(
        gamma=settings.gamma,
        meta_learning_rate=settings.meta_learning_rate,
        participants=settings.participants,
        seed=settings.seed,
        run_name=settings.run_name,
        population=PRETRAINING,
        min_nodes=settings.min_nodes,
        min_replies=settings.min_replies,
        max_failed_rounds=settings.max_failed_rounds,
    )


def _coprefl_client(settings: Settings, model: nn.Module, data: ClientData) -> NumPyClient:
    return CoPreFLClient(
        model,
        data.train,
        local_training(settings),
        support_fraction=settings.support_fraction,
        resplit=settings.resplit,
    )


METHODS = {
    "fedavg": Method(LOCAL_OPTIONS, _fedavg, _fedavg_client),
    "coprefl": Method(
        (*LOCAL_OPTIONS, "gamma", "meta-learning-rate", "support-fraction", "resplit"),
        _coprefl,
        _coprefl_client,
    ),
}


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
    return [start(settings, name) for name in names]


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
