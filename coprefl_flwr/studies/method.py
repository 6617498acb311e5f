"""Methods: what a user chooses and a stage runs.

The text of a method is NAME:key=value,key=value, with a "+" between methods that run one after
another. Run-config, the command line and the names of rows contain such texts. Only `Method.parse`
reads them, and only `str(method)` writes them.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from coprefl_flwr import methods, plugins
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.data import ClientData, Samples
from coprefl_flwr.errors import SettingsError
from coprefl_flwr.federation.averaging import AVERAGES
from coprefl_flwr.federation.flower_strategies import FLWR_VERSION, FlowerStrategy
from coprefl_flwr.federation.robust import AGGREGATION, MEAN
from coprefl_flwr.learning.optimisers import ADAM, SGD
from coprefl_flwr.learning.server_data import ServerData
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.models.adapters import is_exact
from coprefl_flwr.models.weights import FILE, is_external
from coprefl_flwr.named import parse, with_options
from coprefl_flwr.object_code import code_hash, is_users
from coprefl_flwr.options import Option, Value, declared
from coprefl_flwr.strategies import RoundStrategy, Schedule, ServerRefined
from coprefl_flwr.studies.hashes import values_of
from coprefl_flwr.studies.personal_data import UNUSED
from coprefl_flwr.studies.training_options import (
    TRAINING_KEYS,
    WRAPPER,
    WRAPPER_KEYS,
    TrainingOptions,
    as_stored,
)

ServerDataOf = Callable[[str], ServerData]
"""Returns the data on the server for "server", "clients" (the clients' pooled data) or "both"."""

DEFAULT_TRAINING = TrainingOptions()


def no_server_data(whose: str) -> ServerData:
    """Raise an AssertionError: a stage without data at the server runs no method that needs it."""
    raise AssertionError(f"this stage has no data at the server ({whose})")


@dataclass(frozen=True)
class Method:
    """A method: a strategy, the class of its clients, the options of both, and its rounds.

    A method pre-trains a starting model, trains a task, computes a head or trains a model for every
    client. `random`, the heads `fresh` and `keep`, and the place of external weights are methods
    that train nothing. A method that is only read loads no code: the classes are found when they
    are needed. `known_methods.in_role` returns the method as a stage runs it.

    Parameters
    ----------
    name : str
        The name of a built-in method, or the place of a user's method or of external weights.
    options : tuple of (str, Value)
        The options that were set for the method, by key.
    then : Method, optional
        The method that runs after this one: "cyclic+fedavg" is cyclic, and then fedavg.
    role : str
        The role in which a stage runs the method, out of `methods.ROLES`; "" before that.
    training : TrainingOptions
        The rounds, the participants and the local training, in this role.
    instance : RoundStrategy, optional
        A strategy object of a Python program, which runs this method and those after it. Stages run
        copies of it.
    """

    name: str
    options: tuple[tuple[str, Value], ...] = ()
    then: "Method | None" = None
    role: str = ""
    training: TrainingOptions = DEFAULT_TRAINING
    instance: RoundStrategy | None = None

    # ---- text -----------------------------------------------------------------------------------

    @classmethod
    def parse(cls, text: str) -> "Method":
        """Return the method with this text; a SettingsError for an option without a value."""
        first, *others = text.split("+")
        name, options = parse(first)
        then = cls.parse("+".join(others)) if others else None
        return cls(name, tuple(options.items()), then)

    @classmethod
    def read(cls, value: object) -> "Method":
        """Return a Method from a Method or from its text; a TypeError for any other type."""
        if isinstance(value, str):
            return cls.parse(value.strip())
        if isinstance(value, Method):
            return value
        raise TypeError("must be a text")

    def __str__(self) -> str:
        """Return the text of the method, which `parse` reads."""
        text = with_options(self.name, self.options)
        return f"{text}+{self.then}" if self.then else text

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: another process finds the classes of a pickled method again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def without_folders(self) -> str:
        """The text of the method, with file names instead of paths."""
        return str(self._with_texts(plugins.without_folders))

    # ---- phases ---------------------------------------------------------------------------------

    @property
    def phases(self) -> "tuple[Method, ...]":
        """The method and those after it, each alone."""
        return (replace(self, then=None), *(self.then.phases if self.then else ()))

    @property
    def trained(self) -> "tuple[Method, ...]":
        """The phases that train; empty for `random`, `fresh`, `keep` and external weights."""
        if self in NO_METHODS or self.is_external:
            return ()
        return tuple(phase for phase in self.phases if phase.name != methods.RANDOM)

    @property
    def is_external(self) -> bool:
        """Whether the text names external weights, such as a file, instead of a strategy."""
        first = self.name.partition(":")[0]
        built_in = first == methods.RANDOM or methods.is_built_in(first)
        return not (built_in or self.then or self.role) and is_external(str(self))

    def changed(self, change: "Callable[[Method], Method]") -> "Method":
        """Return a method whose phases are the results of `change` on each phase."""
        return one_after_another([change(phase) for phase in self.phases])

    def having(self, options: Mapping[str, Value]) -> "Method":
        """Return a copy with these options, which replace existing options with the same keys."""
        return replace(self, options=tuple({**dict(self.options), **options}.items()))

    def with_rounds(self, rounds: int) -> "Method":
        """Return the method with this number of rounds in the last phase."""
        *others, last = self.phases
        return one_after_another([*others, last.having({"rounds": rounds})])

    def resolved(self, folder: Path) -> "Method":
        """Return the method with absolute paths; relative paths are taken from `folder`."""

        def whole(text: str) -> str:
            if text.startswith(FILE):
                return FILE + plugins.whole_path(text.removeprefix(FILE), folder)
            return plugins.resolved(text, folder)

        return self._with_texts(whole)

    def _with_texts(self, change: Callable[[str], str]) -> "Method":
        """Return a copy in which `change` was applied to the names and to every text option."""

        def changed(phase: Method) -> Method:
            texts = {key: change(value) for key, value in phase.options if isinstance(value, str)}
            return replace(phase, name=change(phase.name)).having(texts)

        return self.changed(changed)

    # ---- the classes of this phase, and what they declare ---------------------------------------

    @functools.cached_property
    def strategy_class(self) -> type[RoundStrategy]:
        """The class of the strategy; for a refined method, of the strategy that is refined.

        Raises a SettingsError if there is no such method.
        """
        if self.instance is None:
            return methods.find_class(self.name)
        (first, _), *_ = parts_of(self.instance, 1)
        return type(first.inner if isinstance(first, ServerRefined) else first)

    @functools.cached_property
    def client_class(self) -> type[TorchClient]:
        """The class of the clients that the strategy class names."""
        named = self.strategy_class.client
        return plugins.find("method", named) if isinstance(named, str) else named

    @functools.cached_property
    def declared_options(self) -> Mapping[str, Option]:
        """{key: option} of the strategy, its client, its refinement and its aggregation."""
        own = _of_strategy(self.strategy_class) | dict(declared(self.client_class))
        return own | _of_strategy(ServerRefined) if self.refined else own

    @property
    def refined(self) -> bool:
        """Whether SGD on the server's data follows every round, as in scenario II."""
        return self.name in methods.REFINED

    @property
    def label(self) -> str:
        """The name of a built-in method, or of a user's method the NAME after `:` of its place."""
        return self.name if methods.is_built_in(self.name) else self.name.rpartition(":")[2]

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that the method can have, out of `methods.ROLES`."""
        return methods.roles_of(self.name, self.strategy_class)

    @property
    def uses_server_data(self) -> bool:
        """Whether the method needs data on the server, as in scenario II."""
        return self.refined or self.strategy_class.server_data in ("server", "both")

    @property
    def trains_locally(self) -> bool:
        """Whether the settings of local training apply to the clients of the method."""
        return methods.HEAD not in self.roles and self.strategy_class.actions != ("train.query",)

    def training_keys(self, role: str) -> tuple[str, ...]:
        """Return the keys of the training settings that the method uses in a role and may set."""
        if role == methods.PERSONALISED:
            return tuple(key for key in TRAINING_KEYS if key not in UNUSED)
        if role != methods.PRETRAINING:  # In tasks, the settings `task-...` apply to every method.
            return ()
        # Whether the participants of a round are drawn from the clients.
        drawn = methods.HEAD not in self.roles and bool(self.strategy_class.actions)
        if not self.trains_locally:
            of_rounds = ("rounds", "participants", "precision", *AVERAGES)
            return (*of_rounds, *(WRAPPER_KEYS if drawn else ()))
        of_clients = ("participants", *WRAPPER_KEYS)
        return tuple(key for key in TRAINING_KEYS if drawn or key not in of_clients)

    def keys(self, role: str) -> set[str]:
        """Return the keys that can be set for the method in a role; empty if it is unknown.

        An unknown method is reported elsewhere, when the method is used.
        """
        with contextlib.suppress(SettingsError):
            of_phases = [(*p.declared_options, *p.training_keys(role)) for p in self.trained]
            return {key for keys in of_phases for key in keys}
        return set()

    def defaults(self, role: str) -> dict[str, Value]:
        """Return {key: default} of the method's options and of local training, in a role."""
        known, kind = self.declared_options.items(), self.strategy_class
        own = {key: option.default for key, option in known if option.default is not None}
        personal = kind.personal_defaults if role == methods.PERSONALISED else {}
        return {**own, **kind.training_defaults, **personal}

    # ---- a phase in its role --------------------------------------------------------------------

    def with_training(self, role: str, training: TrainingOptions) -> "Method":
        """Return this phase in a role, with its training; raise a SettingsError for wrong values.

        `training` is the training of all methods.
        """
        phase, own = replace(self, role=role), dict(self.options)
        if keys := self.training_keys(role):
            chosen = {key: own[key] for key in keys if key in own}
            training = training.of_method(chosen, self.strategy_class.training_defaults)
        self.strategy_class.check_training(phase.values, training)
        return replace(phase, training=training)

    @functools.cached_property
    def values(self) -> Mapping[str, Any]:
        """{key: value} of every option of the strategy and its client, defaults included."""
        known, chosen = self.declared_options, dict(self.options)
        own = {key: option.read(chosen[key]) for key, option in known.items() if key in chosen}
        defaults = self.defaults(self.role)
        return {key: defaults.get(key) for key in known} | own

    def strategy(
        self,
        server: ServerDataOf = no_server_data,
        training: LocalTraining | None = None,
        **run: Any,
    ) -> RoundStrategy:
        """Return a new strategy that runs this method and those after it, or a copy of `instance`.

        Parameters
        ----------
        server : ServerDataOf
            The function that returns the data on the server, for a stage that has such data.
        training : LocalTraining, optional
            The training, for a strategy that trains on the server; None: the method's training.
        **run : Any
            Options that all strategies have, such as `seed`, and for a head its field `head`.
        """
        if self.instance is not None:
            strategy = copy.deepcopy(self.instance)
            for name, value in run.items():
                setattr(strategy, name, value)
            return strategy
        if self.then:
            rounds = [phase.training.rounds for phase in self.phases]
            strategies = [phase.strategy(server, training, **run) for phase in self.phases]
            return Schedule(list(zip(strategies, rounds, strict=True)))
        if self.role == methods.PRETRAINING:
            run["participants"] = self.training.participants
        kind, how = self.strategy_class, training or self.training
        own = self._arguments(_of_strategy(kind))
        if kind.server_data:
            own["server"] = server(kind.server_data)
            own["server"].precision = how.precision
        if "training" in getattr(kind, "__dataclass_fields__", {}):
            own["training"] = how
        strategy = kind(**run, **own)
        if not self.refined:
            return strategy
        refinement = self._arguments(_of_strategy(ServerRefined))
        data, size = server("server"), how.samples_per_step
        data.precision = how.precision
        return ServerRefined(strategy, data, batch_size=size, **refinement)

    def client(
        self,
        module: nn.Module,
        samples: ClientData,
        training: LocalTraining | None = None,
        **offered: Any,
    ) -> TorchClient:
        """Return a new client of this phase, which trains `module` on a client's samples.

        `training` is the local training; None means the training of the method. `offered` are
        arguments by name; the client gets those that its class lists in `injected`.
        """
        own = self._arguments(declared(self.client_class))
        needed = {name: offered[name] for name in self.client_class.injected if name in offered}
        how = training or self.training
        return self.client_class(
            module, samples.train, test=samples.test, training=how, **own, **needed
        )

    def check(self, network: nn.Module, samples: Samples) -> None:
        """Raise a SettingsError if the training does not fit the network and the samples."""
        means = self.strategy_class.means_models and self.values.get(AGGREGATION[0], MEAN) == MEAN
        if is_exact(network) and not means:
            problem = f"the update of {self} is no mean of models; use mean or ffa"
            raise SettingsError(f"adapter, average = exact: {problem}", "adapter")
        self.training.check(network, samples)
        self.client_class.check_network(network, samples)

    def check_samples(self, fewest: int) -> None:
        """Raise a SettingsError if a client with only `fewest` samples cannot take part."""
        self.client_class.check_samples(fewest, **self._arguments(declared(self.client_class)))

    def _arguments(self, options: Mapping[str, Option]) -> dict[str, Any]:
        """Return the values of options by their names in Python."""
        return {option.name: self.values[key] for key, option in options.items()}

    # ---- what results depend on -----------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """Return the name and the options that this phase uses, by key; "" for one not set.

        Options of the client wrapper are left out if no client is wrapped. Options of robust
        aggregation are left out if the aggregation is a mean, and options that were added later
        if they have their defaults.
        """
        values, known = values_of(self.training, later=False), self.declared_options
        if values["learning-rate"] is None:  # Not set equals the default.
            of_role = ADAM if self.role == methods.PERSONALISED else SGD
            values["learning-rate"] = (self.training.optimiser or of_role).rate
        unused = set() if self.training.client_wrapper_share else set(WRAPPER_KEYS)
        if self.values.get(AGGREGATION[0], MEAN) == MEAN:
            unused |= {key for key, option in known.items() if option.name in AGGREGATION}
        unused |= {key for key, o in known.items() if o.later and self.values[key] == o.default}
        keys = [key for key in self.training_keys(self.role) if key in values]
        own = {**self.values, **{key: "" if values[key] is None else values[key] for key in keys}}
        return {"method": self.name} | {key: own[key] for key in own if key not in unused}

    def identity(self) -> dict[str, Any]:
        """Return all that the results depend on: `about`, a version, and hashes of user code."""
        about, text = as_stored(self.about()), ""
        if issubclass(self.strategy_class, FlowerStrategy):
            text = FLWR_VERSION
        elif not methods.is_built_in(self.name):
            text = plugins.hash_at("method", self.name)
        kinds = self.strategy_class, self.client_class
        if not text and any(map(is_users, kinds)):
            text = code_hash(*kinds)
        texts = {"text": text} if text else {}
        if place := about.get(WRAPPER):
            texts["wrapper"] = plugins.hash_at(WRAPPER, place)
        about |= {"version": methods.VERSIONS.get(self.name, 1)} | texts
        about |= self.training.loss.identity()
        return about | (self.training.augment.identity() if self.training.augment else {})


START = Method(methods.RANDOM)
"""The method `random`: the starting model is the random initialisation, without training."""

FRESH, KEEP = NO_METHODS = (Method("fresh"), Method("keep"))
"""Heads that need no round of computation: random weights, or the pre-trained last layer."""


def one_after_another(phases: Sequence[Method]) -> Method:
    """Return the method that runs these phases one after another."""
    *before, method = phases
    for phase in reversed(before):
        method = replace(phase, then=method)
    return method


def parts_of(strategy: RoundStrategy, rounds: int) -> list[tuple[RoundStrategy, int]]:
    """Return the strategies that run one after another, each with its number of rounds.

    Each phase of a Schedule states its number of rounds. Any other strategy runs for `rounds`
    rounds.
    """
    return list(strategy.phases) if isinstance(strategy, Schedule) else [(strategy, rounds)]


def _of_strategy(strategy_class: type[RoundStrategy]) -> dict[str, Option]:
    """Return {key: option} of the options of a strategy class that RoundStrategy does not have.

    The options of the aggregation, which RoundStrategy has, follow if the strategy averages.
    """
    shared, known = declared(RoundStrategy), declared(strategy_class)
    kept = AGGREGATION if strategy_class.averages else ()
    options = {key: option for key, option in known.items() if key not in shared}
    return options | {key: option for key, option in known.items() if option.name in kept}
