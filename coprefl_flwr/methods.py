"""Methods by name, and the properties that a method's strategy class and client class declare.

A built-in method consists of a file with its strategy, possibly a file with its client, and a line
in `coprefl_flwr.strategies`. This module reads the built-in methods from that module. A user's
method is a strategy class with a place: `module:NAME`, `path/file.py:NAME`, an entry point or a
registered name. Flower's strategies have places too: `flwr.serverapp.strategy:NAME`.
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
"""The value of the setting `method` for an untrained starting model."""

PRETRAINING, TASK, PERSONALISED, HEAD = "pretraining", "task", "personalised", "head"
ROLES = (PRETRAINING, TASK, PERSONALISED, HEAD)
"""The roles of methods. A role is a kind of stage of a study that a method can run."""

ServerDataOf = Callable[[str], ServerData]
"""Returns the data on the server for "server", "clients" (the clients' pooled data) or "both"."""


@dataclass(frozen=True)
class Algorithm:
    """A strategy class and its client class, which together run a method or a phase of a schedule.

    Parameters
    ----------
    name : str
        The method as in the setting `method`: the name of a built-in method, or the place of a
        user's method.
    strategy_class : type[RoundStrategy]
        The class of the strategy that runs on the server. The properties of an Algorithm are read
        from the declarations of this class.
    refined : bool
        Whether SGD on the server's data follows every round, as in scenario II.
    """

    name: str
    strategy_class: type[RoundStrategy]
    refined: bool = False

    @functools.cached_property
    def client_class(self) -> type[TorchClient]:
        """The class of the clients that the strategy class names."""
        named = self.strategy_class.client
        if not isinstance(named, str):
            return named
        client_class: type[TorchClient] = plugins.find("method", named)
        return client_class

    @property
    def label(self) -> str:
        """The name of a built-in method, or of a user's method the NAME after `:` of its place."""
        return self.name if self.name in METHODS else self.name.rpartition(":")[2]

    @property
    def text(self) -> str:
        """The SHA-256 of the source of a user's method, or Flower's version for a Flower strategy.

        The value is "" for a built-in method, which has a `version` instead.
        """
        if issubclass(self.strategy_class, FlowerStrategy):
            return FLWR_VERSION
        return "" if self.name in METHODS else plugins.hash_at("method", self.name)

    @functools.cached_property
    def options(self) -> Mapping[str, Option]:
        """{key: option} of the strategy, its client, its refinement and its aggregation."""
        own = dict(_own(self.strategy_class)) | dict(declared(self.client_class))
        refinement = dict(_own(ServerRefined)) if self.refined else {}
        return own | refinement | _of_averages(self.strategy_class)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that the method can have, out of ROLES."""
        return (PRETRAINING,) if self.refined else self.strategy_class.roles

    @property
    def uses_server_data(self) -> bool:
        """Whether the method needs data on the server, as in scenario II."""
        return self.refined or self.strategy_class.server_data in ("server", "both")

    @property
    def version(self) -> int:
        """The version of the method, under which results are stored; see VERSIONS."""
        return VERSIONS.get(self.name, 1)

    @property
    def trains_locally(self) -> bool:
        """Whether the settings of local training apply to the clients of the method."""
        return HEAD not in self.roles and self.strategy_class.actions != ("train.query",)

    @property
    def samples_clients(self) -> bool:
        """Whether the participants of a round are drawn from the clients."""
        return HEAD not in self.roles and bool(self.strategy_class.actions)

    def defaults(self, role: str) -> dict[str, Value]:
        """Return {key: default} of the method's options and of local training, in a role."""
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
        """Return a new object of the strategy class, or for a refined method a ServerRefined.

        Parameters
        ----------
        options : Mapping[str, Any]
            {key: value} for all options in `self.options`.
        training : LocalTraining
            The settings of training, for a strategy that trains on the server.
        server : ServerDataOf, optional
            The function that returns the data on the server, for a stage that has such data.
        **run : Any
            The options that all strategies have.
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
        """Return a new client.

        The client gets those `options` that its class declares, and those `offered` arguments that
        its class lists in `injected`.
        """
        own = {option.name: options[key] for key, option in declared(self.client_class).items()}
        needed = {name: offered[name] for name in self.client_class.injected if name in offered}
        return self.client_class(model, train, **more, **own, **needed)

    def check_samples(self, fewest: int, options: Mapping[str, Any]) -> None:
        """Raise a SettingsError if a client with only `fewest` samples cannot take part."""
        own = {option.name: options[key] for key, option in declared(self.client_class).items()}
        self.client_class.check_samples(fewest, **own)


def _own(strategy_class: type[RoundStrategy]) -> dict[str, Option]:
    """Return {key: option} of the options of a strategy class that RoundStrategy does not have."""
    shared = declared(RoundStrategy)
    return {key: option for key, option in declared(strategy_class).items() if key not in shared}


def _of_averages(strategy_class: type[RoundStrategy]) -> dict[str, Option]:
    """Return {key: option} of the aggregation, or {} if the strategy does not average."""
    if not strategy_class.averages:
        return {}
    return {
        k: option for k, option in declared(strategy_class).items() if option.name in AGGREGATION
    }


def _server_data(server: ServerDataOf | None, whose: str, training: LocalTraining) -> ServerData:
    """Return the data on the server for a strategy, in the precision of the training."""
    if server is None:
        raise AssertionError("this stage has no data at the server")
    data = server(whose)
    if data.precision != training.precision:
        data = copy.copy(data)  # Another phase may use the same object.
        data.precision = training.precision
    return data


REFINED = {"coprefl": "coprefl-sgd", "coprefl-std": "coprefl-std-sgd"}
"""{method: its refined form}, of the refined methods that are not called NAME-refined."""

VERSIONS = {"fedpcl": 2}
"""{method: version}; all other methods have version 1. Results are stored under the version, so it
is raised when the results of a method change. In version 2 of fedpcl, the head has the BatchNorm of
Table 7 by default."""


def _built_in() -> dict[str, Algorithm]:
    """Return {name: method} of `coprefl_flwr.strategies`, then of the refined methods."""
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
"""{name: method} of all built-in methods."""


def find_method(name: str, role: str = "", known: Sequence[str] = ()) -> Algorithm:
    """Return the built-in method with a name, or the user's method at a place.

    Raises a SettingsError if there is no such method, if the method does not have the role `role`,
    or if the object at the place is not a strategy class that studies can use. The error may
    suggest a name out of `known`, by default out of all built-in methods.
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
        raise SettingsError(f"{name}: needs the role {role}; has {', '.join(method.roles)}")
    return method


def _checked(place: str, strategy_class: Any) -> type[RoundStrategy]:
    """Return the class of a place, or raise a SettingsError if studies cannot use the class."""
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
        raise SettingsError(f"{place}: the role head needs a field `head`, as in LinearHead")
    client = Algorithm(place, strategy_class).client_class
    if not (isinstance(client, type) and issubclass(client, TorchClient)):
        raise SettingsError(
            f"{place}: client must be a subclass of coprefl_flwr.clients.TorchClient"
        )
    return strategy_class


def with_role(role: str) -> dict[str, Algorithm]:
    """Return {name: method} of the built-in methods that have a role."""
    return {name: method for name, method in METHODS.items() if role in method.roles}
