"""Methods by name: what a strategy class declares of itself, in the form that studies use.

A built-in method is its strategy's file, its client's where it has one, and its line in
`coprefl_flwr.strategies`, which is the table that is read here. A user's own is a strategy class,
named by its place: `module:NAME`, `path/file.py:NAME`, an entry point or a registered name.
One of Flower's own is named alike: `flwr.serverapp.strategy:NAME`.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass
from typing import Any

from torch import nn

from coprefl_flwr import plugins, strategies
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.errors import SettingsError, unknown
from coprefl_flwr.federation.flower_strategies import FLWR_VERSION, FlowerStrategy, as_method
from coprefl_flwr.federation.robust import AGGREGATION
from coprefl_flwr.learning import LocalTraining, ServerData
from coprefl_flwr.options import Option, Value, declared
from coprefl_flwr.strategies import RoundStrategy, ServerRefined

RANDOM = "random"
"""What the setting `method` calls an untrained starting model."""

PRETRAINING, TASK, PERSONALISED, HEAD = "pretraining", "task", "personalised", "head"
ROLES = (PRETRAINING, TASK, PERSONALISED, HEAD)
"""The roles a method can have: what kinds of stage it can be."""

ServerDataOf = Callable[[str], ServerData]
"""Makes data to compute on at the server: "server", "clients" (their data together) or "both"."""


@dataclass(frozen=True)
class Algorithm:
    """A strategy and the client that belongs to it: what a method's phase runs.

    Parameters
    ----------
    name : str
        As in the setting `method`: a built-in method's name, or the place of a user's own.
    strategy_class : type[RoundStrategy]
        What runs on the server, and declares all that is said here.
    refined : bool
        Whether SGD on the server's data follows every round (scenario II's form of a method).
    """

    name: str
    strategy_class: type[RoundStrategy]
    refined: bool = False

    @functools.cached_property
    def client_class(self) -> type[TorchClient]:
        """The class of the clients."""
        named = self.strategy_class.client
        if not isinstance(named, str):
            return named
        client_class: type[TorchClient] = plugins.find("method", named)
        return client_class

    @property
    def label(self) -> str:
        """The name, or the last part of a place."""
        return self.name if self.name in METHODS else self.name.rpartition(":")[2]

    @property
    def text(self) -> str:
        """The hash of a user's own method's source, Flower's version for one of Flower's.

        "" for a built-in method, which has its own version.
        """
        if issubclass(self.strategy_class, FlowerStrategy):
            return FLWR_VERSION
        return "" if self.name in METHODS else plugins.hash_at("method", self.name)

    @functools.cached_property
    def options(self) -> Mapping[str, Option]:
        """Options by key of the strategy, its client, its refinement and its aggregation."""
        own = dict(_own(self.strategy_class)) | dict(declared(self.client_class))
        refinement = dict(_own(ServerRefined)) if self.refined else {}
        return own | refinement | _of_averages(self.strategy_class)

    @property
    def roles(self) -> tuple[str, ...]:
        """The kinds of stage it can be."""
        return (PRETRAINING,) if self.refined else self.strategy_class.roles

    @property
    def uses_server_data(self) -> bool:
        """Whether it needs data at the server: scenario II."""
        return self.refined or self.strategy_class.server_data in ("server", "both")

    @property
    def version(self) -> int:
        """Raised when the method's results change: results are stored under it."""
        return VERSIONS.get(self.name, 1)

    @property
    def trains_locally(self) -> bool:
        """Whether the settings of local training apply to its clients."""
        return HEAD not in self.roles and self.strategy_class.actions != ("train.query",)

    @property
    def samples_clients(self) -> bool:
        """Whether the participants of a round are drawn from the clients."""
        return HEAD not in self.roles and bool(self.strategy_class.actions)

    def defaults(self, role: str) -> dict[str, Value]:
        """Return the values of its own options, and of local training, where a user sets none."""
        own = {
            key: option.default
            for key, option in self.options.items()
            if option.default is not None
        }
        personal = {key: option.personal for key, option in self.options.items()}
        other = {k: v for k, v in personal.items() if v is not None and role == PERSONALISED}
        return {**own, **self.strategy_class.training_defaults, **other}

    def strategy(
        self,
        options: Mapping[str, Any],
        training: LocalTraining,
        server: ServerDataOf | None = None,
        **run: Any,
    ) -> RoundStrategy:
        """Return the strategy.

        Parameters
        ----------
        options : Mapping[str, Any]
            A value for each of `self.options`, by key.
        training : LocalTraining
            How a strategy that trains itself does it.
        server : ServerDataOf, optional
            What it computes on at the server; only for a stage that has such data.
        **run : options that all strategies take
        """
        declarations = _own(self.strategy_class) | _of_averages(self.strategy_class)
        own = {option.name: options[key] for key, option in declarations.items()}
        if self.strategy_class.server_data:
            own["server"] = _server_data(server, self.strategy_class.server_data, training)
        if "training" in getattr(self.strategy_class, "__dataclass_fields__", {}):
            own["training"] = training
        strategy = self.strategy_class(**run, **own)
        if not self.refined:
            return strategy
        refinement = {option.name: options[key] for key, option in _own(ServerRefined).items()}
        data = _server_data(server, "server", training)
        size = training.samples_per_step
        return ServerRefined(strategy, data, batch_size=size, **refinement)

    def client(
        self,
        options: Mapping[str, Any],
        model: nn.Module,
        train: Any,
        offered: Mapping[str, Any],
        **more: Any,
    ) -> TorchClient:
        """Return a client with its own of the `options`, and what it needs of what is offered."""
        own = {option.name: options[key] for key, option in declared(self.client_class).items()}
        needed = {name: offered[name] for name in self.client_class.injected if name in offered}
        return self.client_class(model, train, **more, **own, **needed)

    def check_samples(self, fewest: int, options: Mapping[str, Any]) -> None:
        """Raise a SettingsError if a client of so few samples cannot take part."""
        own = {option.name: options[key] for key, option in declared(self.client_class).items()}
        self.client_class.check_samples(fewest, **own)


def _own(strategy_class: type[RoundStrategy]) -> dict[str, Option]:
    """Return the options of a strategy that not every strategy has."""
    shared = declared(RoundStrategy)
    return {key: option for key, option in declared(strategy_class).items() if key not in shared}


def _of_averages(strategy_class: type[RoundStrategy]) -> dict[str, Option]:
    """Return the options of its aggregation, if it is a strategy that averages."""
    if not strategy_class.averages:
        return {}
    return {
        k: option for k, option in declared(strategy_class).items() if option.name in AGGREGATION
    }


def _server_data(server: ServerDataOf | None, whose: str, training: LocalTraining) -> ServerData:
    """Return what a strategy computes on at the server, in the precision of the training."""
    if server is None:
        raise AssertionError("this stage has no data at the server")
    data = server(whose)
    if data.precision != training.precision:
        data = copy.copy(data)  # It may be another phase's too.
        data.precision = training.precision
    return data


REFINED = {"coprefl": "coprefl-sgd", "coprefl-std": "coprefl-std-sgd"}
"""Names of refined methods that are not NAME-refined."""

VERSIONS = {"fedpcl": 2}
"""Raised when a method's results change, as results are stored under it; 1 where it is not named.
That of fedpcl: its head has Table 7's BatchNorm by default."""


def _built_in() -> dict[str, Algorithm]:
    """Return the methods of the table in `coprefl_flwr.strategies`, then their refined forms."""
    classes = [
        kind
        for kind in vars(strategies).values()
        if isinstance(kind, type) and issubclass(kind, RoundStrategy) and kind.name
    ]
    plain = {kind.name: Algorithm(kind.name, kind) for kind in classes}
    refined = {
        name: Algorithm(name, kind, refined=True)
        for kind in classes
        if PRETRAINING in kind.roles and not kind.server_data
        for name in [REFINED.get(kind.name, f"{kind.name}-refined")]
    }
    return plain | refined


METHODS: Mapping[str, Algorithm] = _built_in()
"""Every built-in method by its name."""


def find_method(name: str, role: str = "", known: Sequence[str] = ()) -> Algorithm:
    """Return a built-in method by its name, or a user's own by its place.

    Raises a SettingsError if there is none (`known` are the names that it may suggest), it cannot
    be `role`, or what is at the place is not a strategy class as studies need it.
    """
    if name in METHODS and (not role or role in METHODS[name].roles):
        return METHODS[name]
    before, _, written = name.partition(":")
    if written and before in METHODS:
        key = written.partition(",")[0]
        raise SettingsError(f"{name}: '{key}' has no value; write {key}=VALUE")
    if name in METHODS or not plugins.is_place("method", name):
        names = [*(known or METHODS), *plugins.brought("method")]
        raise SettingsError(unknown("method", name, names))
    method = Algorithm(name, _checked(name, as_method(plugins.find("method", name))))
    if role and role not in method.roles:
        raise SettingsError(f"{name}: its roles are {', '.join(method.roles)}, and not {role}")
    return method


def _checked(place: str, strategy_class: Any) -> type[RoundStrategy]:
    """Return the class at a place, or raise a SettingsError that says why it is no method."""
    if not (isinstance(strategy_class, type) and issubclass(strategy_class, RoundStrategy)):
        raise SettingsError(f"{place}: must be a subclass of coprefl_flwr.strategies.RoundStrategy")
    if inspect.isabstract(strategy_class):
        missing = ", ".join(sorted(strategy_class.__abstractmethods__))
        raise SettingsError(f"{place}: must define {missing}")
    if any(isinstance(value, Field) for value in vars(strategy_class).values()):
        raise SettingsError(f"{place}: has options, so needs @dataclass(kw_only=True, eq=False)")
    for role in strategy_class.roles:
        if role not in ROLES:
            raise SettingsError(f"{place}: roles: {unknown('role', role, ROLES)}")
    if HEAD in strategy_class.roles and "head" not in strategy_class.__dataclass_fields__:
        raise SettingsError(f"{place}: a head needs a field `head`, as LinearHead has one")
    client = Algorithm(place, strategy_class).client_class
    if not (isinstance(client, type) and issubclass(client, TorchClient)):
        raise SettingsError(
            f"{place}: client must be a subclass of coprefl_flwr.clients.TorchClient"
        )
    return strategy_class


def with_role(role: str) -> dict[str, Algorithm]:
    """Return the methods that can be a kind of stage."""
    return {name: method for name, method in METHODS.items() if role in method.roles}


@functools.cache
def short_forms() -> Mapping[str, tuple[Option, ...]]:
    """Return {key: every declaration of it} of the methods' own options, as run-config has them.

    Those of heads are written behind the head alone, as is what is a setting of local training too:
    a method that does not train so may have an option of that name.
    """
    declarations: dict[str, list[Option]] = {}
    for method in METHODS.values():
        if HEAD in method.roles:
            continue
        for key, option in method.options.items():
            known = declarations.setdefault(key, [])
            if option not in known and key not in declared(LocalTraining):
                known.append(option)
    return {key: tuple(known) for key, known in declarations.items() if known}
