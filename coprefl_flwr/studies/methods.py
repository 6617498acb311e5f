"""Every method by its name: its strategy, its client and its own settings, in one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from flwr.client import NumPyClient
from torch import nn

from coprefl_flwr.client_state import ClientState
from coprefl_flwr.clients import (
    CoPreFLClient,
    FedDynClient,
    FedMetaClient,
    FedProxClient,
    MOONClient,
    PerFedAvgClient,
    QFFLClient,
    SCAFFOLDClient,
    StatefulClient,
    TorchClient,
)
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.strategies import (
    MOON,
    QFFL,
    SCAFFOLD,
    Centralised,
    CoPreFL,
    Cyclic,
    FedAvg,
    FedDyn,
    FedMeta,
    FedProx,
    HybridCoPreFL,
    PerFedAvg,
    RoundStrategy,
    ServerRefined,
)
from coprefl_flwr.studies.populations import ClientData
from coprefl_flwr.studies.settings import Settings, Value, field_of

LOCAL_SETTINGS = (
    "rounds",
    "participants",
    "local-steps",
    "local-epochs",
    "max-local-steps",
    "batch-size",
    "learning-rate",
    "learning-rate-decay",
    "momentum",
    "weight-decay",
    "clip-norm",
)
"""Settings of the pre-training that a method may set for itself too."""

BATCH_SIZE = 32
"""Samples per step where neither a user nor the method says otherwise."""

SPLIT: dict[str, Value] = {"support-fraction": 0.8, "resplit": True}
REFINEMENT: dict[str, Value] = {"server-steps": 5, "server-learning-rate": 1e-3}
ARGUMENTS = {"feddyn-alpha": "alpha"}
"""Settings whose strategy calls them by another name."""

MakeServer = Callable[[str], ServerData]
"""Gives a pool of data to compute on at the server: "server", "clients" (all theirs) or "both"."""


@dataclass(frozen=True)
class Method:
    """The strategy and the client that belong together.

    Parameters
    ----------
    strategy_class, client_class : type
        What runs on the server and on the clients.
    own : Mapping[str, Value]
        The settings that are this method's, with their defaults.
    variants : tuple[str, ...]
        Values of its setting `variant`.
    downstream : bool
        Whether it can be the algorithm of a task.
    refined : bool
        Whether SGD on the server's data follows every round.
    pool : str
        The data that a strategy which computes on the server computes on.
    common : tuple[str, ...]
        The settings of the pre-training that it heeds.
    """

    strategy_class: type[RoundStrategy]
    client_class: type[TorchClient] = TorchClient
    own: Mapping[str, Value] = field(default_factory=dict)
    variants: tuple[str, ...] = ()
    downstream: bool = False
    refined: bool = False
    pool: str = "server"
    common: tuple[str, ...] = LOCAL_SETTINGS

    @property
    def settings(self) -> list[str]:
        """Every setting the method has."""
        return list(dict.fromkeys([*self.own, *self.common]))

    def shown(self) -> str:
        """Return its own settings with their defaults, as a table shows them."""
        return ", ".join(f"`{key}` {_shown(self, key)}" for key in self.own) or "none"

    @property
    def uses_server_data(self) -> bool:
        """Whether it is one of scenario II."""
        return self.refined or ("server" in self._takes and self.pool != "clients")

    @property
    def _takes(self) -> set[str]:
        """Names of the strategy's options."""
        return {declared.name for declared in fields(self.strategy_class)}

    def strategy(self, settings: Settings, server: MakeServer, **run: Any) -> RoundStrategy:
        """Return the strategy; `run` holds the options that all strategies take."""
        given = {
            ARGUMENTS.get(key, field_of(key)): getattr(settings, field_of(key)) for key in self.own
        }
        given = {name: value for name, value in given.items() if name in self._takes}
        if "server" in self._takes:
            given["server"] = server(self.pool)
        if "training" in self._takes:
            given["training"] = local_training(settings)
        strategy = self.strategy_class(**run, **given)
        if not self.refined:
            return strategy
        return ServerRefined(
            strategy,
            server("server"),
            steps=settings.server_steps or 0,
            batch_size=settings.batch_size or BATCH_SIZE,
            learning_rate=settings.server_learning_rate or 0.0,
        )

    def client(
        self,
        settings: Settings,
        model: nn.Module,
        data: ClientData,
        training: LocalTraining,
        state: ClientState,
    ) -> NumPyClient:
        """Return a client of the method."""
        more: dict[str, Any] = {"test": data.test, "training": training}
        if issubclass(self.client_class, CoPreFLClient):
            more["support_fraction"] = settings.support_fraction
            more["resplit"] = settings.resplit
        if issubclass(self.client_class, StatefulClient):
            more["state"] = state
        return self.client_class(model, data.train, **more)


_META: dict[str, Value] = {"gamma": CoPreFL.gamma, "meta-learning-rate": CoPreFL.meta_learning_rate}
_FEDMETA: dict[str, Value] = {
    "variant": FedMeta.variant,
    "inner-learning-rate": FedMeta.inner_learning_rate,
    "inner-steps": FedMeta.inner_steps,
    "meta-learning-rate": FedMeta.meta_learning_rate,
}
_PER_FEDAVG: dict[str, Value] = {
    "variant": PerFedAvg.variant,
    "inner-learning-rate": PerFedAvg.inner_learning_rate,
}
_SCAFFOLD: dict[str, Value] = {
    "variant": SCAFFOLD.variant,
    "global-learning-rate": SCAFFOLD.global_learning_rate,
}
_MOON: dict[str, Value] = {"mu": MOON.mu, "temperature": MOON.temperature}
_CYCLIC: dict[str, Value] = {"local-epochs": 5, "max-local-steps": 20}
_EPOCH: dict[str, Value] = {"local-epochs": 1, "batch-size": 64}
_NO_PARTICIPANTS = tuple(key for key in LOCAL_SETTINGS if key != "participants")

_PLAIN = {
    "fedavg": Method(FedAvg, downstream=True),
    "fedprox": Method(FedProx, FedProxClient, {"mu": FedProx.mu}, downstream=True),
    "qffl": Method(QFFL, QFFLClient, {"q": QFFL.q}, downstream=True),
    "scaffold": Method(SCAFFOLD, SCAFFOLDClient, _SCAFFOLD, SCAFFOLD.variants, downstream=True),
    "feddyn": Method(FedDyn, FedDynClient, {"feddyn-alpha": FedDyn.alpha}, downstream=True),
    "moon": Method(MOON, MOONClient, _MOON, downstream=True),
    "fedmeta": Method(
        FedMeta,
        FedMetaClient,
        _FEDMETA | SPLIT,
        FedMeta.variants,
        common=("rounds", "participants"),
    ),
    "per-fedavg": Method(PerFedAvg, PerFedAvgClient, _PER_FEDAVG, PerFedAvg.variants),
    "cyclic": Method(Cyclic, own=_CYCLIC),
    "centralised": Method(Centralised, own=_EPOCH, pool="clients", common=_NO_PARTICIPANTS),
    "coprefl": Method(CoPreFL, CoPreFLClient, _META | SPLIT),
}


def _refined(method: Method) -> Method:
    """Return scenario II's form of a method: each round followed by SGD on the server's data."""
    return replace(method, own={**method.own, **REFINEMENT}, downstream=False, refined=True)


_OWN_FORM = ("coprefl", "centralised")
METHODS = {
    **_PLAIN,
    **{f"{n}-refined": _refined(method) for n, method in _PLAIN.items() if n not in _OWN_FORM},
    "coprefl-sgd": _refined(_PLAIN["coprefl"]),
    "coprefl-hybrid": Method(HybridCoPreFL, own=_META),
    "centralised-hybrid": Method(Centralised, own=_EPOCH, pool="both", common=_NO_PARTICIPANTS),
}
"""Every method by its name; the refined ones and the last three are scenario II's."""


def local_training(settings: Settings) -> LocalTraining:
    """Return how clients train in the pre-training."""
    return LocalTraining(
        local_steps=settings.local_steps,
        local_epochs=settings.local_epochs,
        max_steps=settings.max_local_steps,
        batch_size=settings.batch_size or BATCH_SIZE,
        learning_rate=settings.learning_rate,
        learning_rate_decay=settings.learning_rate_decay,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay or 0.0,
        clip_norm=settings.clip_norm,
    )


def task_training(settings: Settings) -> LocalTraining:
    """Return how clients train in the downstream tasks: plain SGD (CoPreFL, appendix B.3)."""
    return LocalTraining(
        local_steps=settings.task_local_steps,
        local_epochs=settings.task_local_epochs,
        batch_size=settings.batch_size or BATCH_SIZE,
        learning_rate=settings.task_learning_rate,
    )


def methods_table() -> str:
    """Return the methods and their own settings as a Markdown table, without refined forms."""
    lines = ["| `method` | its own settings | scenario | in tasks |", "| --- | --- | --- | --- |"]
    for name, method in METHODS.items():
        if name.endswith("-refined"):
            continue
        own = method.shown()
        scenario = "II" if method.uses_server_data else "I"
        tasks = "yes" if method.downstream else ""
        lines.append(f"| `{name}` | {own} | {scenario} | {tasks} |")
    return "\n".join(lines) + "\n"


def _shown(method: Method, key: str) -> str:
    """Return a setting's default, and what else it may be."""
    default = str(method.own[key])
    if key == "variant":
        return f"{default} ({', '.join(method.variants)})"
    return default.lower()
