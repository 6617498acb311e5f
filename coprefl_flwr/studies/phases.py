"""Phases: the algorithms in the settings `method`, `task-method` and `head`, with all options."""

import contextlib
import copy
import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.client import NumPyClient
from torch import nn

from coprefl_flwr import plugins, seeds
from coprefl_flwr.clients import TorchClient
from coprefl_flwr.data import ClientData
from coprefl_flwr.errors import SettingsError, about_settings
from coprefl_flwr.federation.robust import AGGREGATION, MEAN, Robust
from coprefl_flwr.learning import LocalTraining, default_device
from coprefl_flwr.learning.training import ADAM_RATE, SGD_RATE
from coprefl_flwr.methods import (
    HEAD,
    METHODS,
    PERSONALISED,
    PRETRAINING,
    RANDOM,
    TASK,
    Algorithm,
    ServerDataOf,
    find_method,
    with_role,
)
from coprefl_flwr.models.precision import FLOAT32, check_precision
from coprefl_flwr.named import Named
from coprefl_flwr.object_code import code_hash, is_users
from coprefl_flwr.options import NOT_USED, Value, declared, option
from coprefl_flwr.strategies import RoundStrategy
from coprefl_flwr.studies.hashes import values_of
from coprefl_flwr.studies.method import FRESH, NO_METHODS, Method


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(LocalTraining):
    """Rounds, participants and local training of a pre-training or of a personalised study."""

    rounds: int = option(
        50,
        "number of pre-training rounds T; for a method `A+B`, the rounds of each phase",
        unit="rounds",
        minimum=1,
    )
    participants: int = option(
        20,
        "clients per pre-training round, |m|",
        minimum=1,
        starts_only="all clients of a personalised study take part",
    )
    client_wrapper: str | None = option(
        None,
        "module:NAME or file.py:NAME: a function or class that takes a client of the pre-training "
        "and returns its replacement, such as an attacker",
        starts_only="clients are wrapped in a pre-training, not in a personalised study",
    )
    client_wrapper_share: float = option(
        0.0,
        "fraction of the pre-training's clients that are wrapped, drawn by the seed",
        minimum=0,
        maximum=1,
        starts_only=NOT_USED,
    )
    # The minimum is 1, because a study whose clients do not train would be meaningless.
    local_steps: int | None = option(
        None,
        "SGD steps of a client in a round; not set: 5, unless `local-epochs` is set",
        unit="steps",
        minimum=1,
    )
    local_epochs: int | None = option(
        None, "passes of a client over its data in a round", unit="epochs", minimum=1
    )

    def __post_init__(self) -> None:
        """Check the options; errors name the options by their keys."""
        steps, epochs = self.local_steps, self.local_epochs
        if steps is not None and epochs is not None:
            both = f"local-steps = {steps} and local-epochs = {epochs}"
            raise SettingsError(f"{both}: set one of them, not both")
        super().__post_init__()
        place, share = self.client_wrapper, self.client_wrapper_share
        if place is None and share:
            problem = f"client-wrapper-share = {share}: set client-wrapper too, as file.py:NAME"
            raise SettingsError(problem, *WRAPPER_KEYS)
        if place is not None and not share:
            problem = f"client-wrapper = {place}: set client-wrapper-share too"
            raise SettingsError(f"{problem}, the fraction of clients to wrap", *WRAPPER_KEYS)
        if place is not None:
            with about_settings(WRAPPER):
                plugins.check(WRAPPER, place)

    def check_wrapper(self, what: str, clients: int) -> None:
        """Raise a SettingsError if a share is set that rounds to 0 of this number of clients.

        Its message begins with `what`.
        """
        share = self.client_wrapper_share
        if share and not round(share * clients):
            problem = f"client-wrapper-share = {share}: rounds to 0 of clients = {clients}"
            raise SettingsError(f"{what}: {problem}", "client-wrapper-share", "clients")

    def wrapped_clients(self, seed: int, clients: int) -> frozenset[int]:
        """Return the ids of the pre-training's clients that are wrapped.

        round(share x clients) clients are drawn. The ids for a smaller share are a subset of the
        ids for a larger share.
        """
        order = _order(seed, clients)
        return frozenset(order[: round(self.client_wrapper_share * clients)])

    def wrapped(self, client: NumPyClient) -> NumPyClient:
        """Return the client that the client wrapper returns for a client.

        Raises a SettingsError if the wrapper does not return a NumPyClient.
        """
        place = str(self.client_wrapper)
        replacement = plugins.call(place, plugins.find(WRAPPER, place), (client,))
        if not isinstance(replacement, NumPyClient):
            problem = f"{place} returned a {type(replacement).__name__}"
            raise SettingsError(f"{problem}; a client wrapper must return a NumPyClient", WRAPPER)
        return replacement


@functools.lru_cache(maxsize=64)
def _order(seed: int, clients: int) -> tuple[int, ...]:
    """Return all client ids in random order; the first ids are the wrapped clients."""
    return tuple(map(int, seeds.generator(seed, "attackers").permutation(clients)))


TRAINING_KEYS = tuple(declared(TrainingOptions))
"""Keys of the training settings that a method may also set, as in `coprefl:rounds=20`."""

PRECISION, WRAPPER = "precision", "client-wrapper"
WRAPPER_KEYS = (WRAPPER, f"{WRAPPER}-share")

_OF_EPOCHS = ("local-epochs", "max-local-steps")
"""Settings of training by epochs. Their defaults do not apply if local steps are set."""


@dataclass(frozen=True)
class Phase:
    """A phase to run: an algorithm with the values of all its options, and the local training.

    `options` maps the key of each option of the algorithm to its value, defaults included.
    `template` is a strategy that a caller gave; `strategy` returns a copy of the template.
    `capped` tells whether the method itself limits the steps of local epochs set for all methods.
    """

    algorithm: Algorithm
    role: str
    options: Mapping[str, Any]
    training: TrainingOptions
    template: RoundStrategy | None = None
    capped: bool = False

    def strategy(self, server: ServerDataOf | None = None, **run: Any) -> RoundStrategy:
        """Return a new strategy, or a copy of the template, with the options `run`."""
        if self.template is None:
            return self.algorithm.strategy(self.options, self.training, server, **run)
        strategy = copy.deepcopy(self.template)
        for name, value in run.items():
            setattr(strategy, name, value)
        return strategy

    def client(
        self,
        module: nn.Module,
        samples: ClientData,
        training: LocalTraining | None = None,
        **offered: Any,
    ) -> TorchClient:
        """Return a client of the algorithm, which trains `module` on a client's samples.

        `training` is the local training; None means the training of this phase. `offered` are
        arguments by name. The client gets only the arguments that it needs.
        """
        how = training or self.training
        algorithm, options, test = self.algorithm, self.options, samples.test
        return algorithm.client(options, module, samples.train, offered, test=test, training=how)

    @property
    def name(self) -> str:
        """The name of the algorithm. For your own method, module:NAME, it is NAME."""
        return self.algorithm.label

    def check_aggregation(self, what: str, clients: int) -> None:
        """Raise a SettingsError if the aggregation needs more than `clients` clients per round."""
        own = {option.name: self.options[key] for key, option in self.algorithm.options.items()}
        if own.get(AGGREGATION[0], MEAN) == MEAN:
            return
        try:
            Robust(*(own[name] for name in AGGREGATION)).check(clients)
        except SettingsError as error:
            raise SettingsError(f"{what}, {self.name}: {error}", *error.keys, what) from error

    def about(self) -> dict[str, Any]:
        """Return the method and the options that it uses, by key; "" for an option not set.

        Options of the client wrapper are left out if no client is wrapped. Options of robust
        aggregation are left out if the aggregation is a mean, and options that were added later
        if they have their defaults.
        """
        values = values_of(self.training)
        if values["learning-rate"] is None:  # Not set equals the default.
            values["learning-rate"] = ADAM_RATE if self.role == PERSONALISED else SGD_RATE
        unused = set() if self.training.client_wrapper_share else set(WRAPPER_KEYS)
        if self.options.get(AGGREGATION[0], MEAN) == MEAN:
            unused |= {
                key for key, option in self.algorithm.options.items() if option.name in AGGREGATION
            }
        options = self.algorithm.options.items()
        unused |= {key for key, o in options if o.later and self.options[key] == o.default}
        keys = training_keys(self.algorithm, self.role)
        of_training = {key: "" if values[key] is None else values[key] for key in keys}
        own = {**self.options, **of_training}
        own = {key: str(v) if isinstance(v, Named) else v for key, v in own.items()}
        return {"method": self.algorithm.name} | {k: own[k] for k in own if k not in unused}

    def identity(self) -> dict[str, Any]:
        """Return all that the results depend on: `about`, a version, and hashes of user code."""
        algorithm = self.algorithm
        text, kinds = algorithm.text, (algorithm.strategy_class, algorithm.client_class)
        if not text and any(map(is_users, kinds)):
            text = code_hash(*kinds)
        texts = {"text": text} if text else {}
        about = self.about()
        if place := about.get(WRAPPER):
            texts["wrapper"] = plugins.hash_at(WRAPPER, place)
        return about | {"version": algorithm.version} | texts


def training_keys(algorithm: Algorithm, role: str) -> tuple[str, ...]:
    """Return the keys of the training settings that an algorithm uses and may also set."""
    if role == PERSONALISED:
        return tuple(
            key for key, option in declared(TrainingOptions).items() if not option.starts_only
        )
    if role != PRETRAINING:  # In tasks, the settings `task-...` apply to every method.
        return ()
    drawn = algorithm.samples_clients
    if not algorithm.trains_locally:
        return ("rounds", "participants", PRECISION, *(WRAPPER_KEYS if drawn else ()))
    of_clients = ("participants", *WRAPPER_KEYS)
    return tuple(key for key in TRAINING_KEYS if drawn or key not in of_clients)


def read_phase(
    what: str, chosen: Named, role: str, training: TrainingOptions, short: Mapping[str, Value]
) -> Phase:
    """Return the phase that the user chose in the setting `what`.

    `training` gives the values of the training settings that the phase does not set. `short` maps
    keys to values of options, each for every method that has the option.

    Raises a SettingsError for an unknown method or option, or an invalid value.
    """
    algorithm = _algorithm(what, chosen, role)
    where, options = f"{what}, {chosen}: ", dict(chosen.options)
    _check_known(
        where, algorithm.label, options, [*algorithm.options, *training_keys(algorithm, role)]
    )
    try:
        return made_phase(algorithm, role, options, training, short)
    except SettingsError as error:
        elsewhere = [key for key in error.keys if key not in options]
        raise SettingsError(f"{where}{error}", *elsewhere, what) from error


def single_phase(
    what: str, method: Method, role: str, training: TrainingOptions, short: Mapping[str, Value]
) -> Phase:
    """Return the only phase of a method; a SettingsError for several phases (see `read_phase`)."""
    first, *others = method.phases
    if others:
        raise SettingsError(f"{what}: '{method}': must be one method, without '+'", what)
    return read_phase(what, first, role, training, short)


def head_phase(head: Method, training: TrainingOptions, short: Mapping[str, Value]) -> Phase | None:
    """Return the phase that computes the head; None if the head is fresh or pre-trained."""
    return None if head in NO_METHODS else single_phase("head", head, HEAD, training, short)


def made_phase(
    algorithm: Algorithm,
    role: str,
    set_here: Mapping[str, Any],
    training: TrainingOptions,
    short: Mapping[str, Value],
) -> Phase:
    """Return a phase of an algorithm. `set_here` are the options that were set for it, by key.

    `training` and `short` are the same as in `read_phase`.
    """
    chosen, keys = {**short, **set_here}, training_keys(algorithm, role)
    own = {
        key: option.read(chosen[key]) for key, option in algorithm.options.items() if key in chosen
    }
    options = {key: algorithm.defaults(role).get(key) for key in algorithm.options} | own
    of_study = training
    if keys:
        own_training = {key: set_here[key] for key in keys if key in set_here}
        training = _training(training, own_training, algorithm)
    algorithm.strategy_class.check_training(options, training.clip_norm)
    capped = of_study.local_epochs is not None and not set_here.keys() & {*_OF_EPOCHS}
    capped &= training.max_local_steps != of_study.max_local_steps
    return Phase(algorithm, role, options, training, capped=capped)


def _algorithm(what: str, chosen: Named, role: str) -> Algorithm:
    """Return the algorithm of a phase; a SettingsError if it is unknown or lacks the role."""
    name = chosen.name
    if name == RANDOM:
        problem = f"{what}: '{chosen}': random has no settings, as it is not trained"
        raise SettingsError(problem, what)
    besides = {PRETRAINING: [RANDOM], HEAD: list(map(str, NO_METHODS))}
    known = [*besides.get(role, []), *with_role(role)]
    if role == PRETRAINING and name not in known and name in with_role(PERSONALISED):
        raise SettingsError(
            f"{what}: {name} is a method of personalised studies: set study = personalised, or "
            f"name some of {', '.join(known)}",
            what,
        )
    try:
        return find_method(name, role, known)
    except SettingsError as error:
        raise SettingsError(f"{what}: {error}", what) from error


def _training(
    training: TrainingOptions, set_here: Mapping[str, Value], algorithm: Algorithm
) -> TrainingOptions:
    """Return the training: the method's settings, else the study's, else the method's defaults."""
    known = declared(TrainingOptions)
    changes = {known[key].name: known[key].read(value) for key, value in set_here.items()}
    # If the method sets local steps, the study's local epochs do not apply, and vice versa.
    for name, other in (("local_steps", "local_epochs"), ("local_epochs", "local_steps")):
        if changes.get(name) is not None and other not in changes:
            changes[other] = None
    values = vars(training) | changes
    for key, default in algorithm.strategy_class.training_defaults.items():
        by_steps = key in _OF_EPOCHS and values["local_steps"] is not None
        if values[known[key].name] is None and not by_steps:
            values[known[key].name] = default
    return TrainingOptions(**values)


def _check_known(where: str, name: str, keys: Iterable[str], has: Sequence[str]) -> None:
    """Raise a SettingsError for a key that is not in `has`, the keys of the method `name`."""
    for key in keys:
        if key not in has:
            near = difflib.get_close_matches(key, has, n=1)
            hint = f", did you mean '{near[0]}'?" if near else ""
            own = ", ".join(has) or "no settings"
            others = [
                n
                for n, algorithm in METHODS.items()
                if key in algorithm.options and not algorithm.refined
            ]
            who = f"; methods that have it: {', '.join(others)}" if others else ""
            raise SettingsError(f"{where}{name} has no setting '{key}'{hint}; it has {own}{who}")


def check_precisions(phases: Sequence[Phase]) -> None:
    """Raise a SettingsError if this process's device lacks the precision of a phase."""
    # float32 works on every device, so the device is not looked up here (a look-up is logged).
    for precision in {phase.training.precision for phase in phases} - {FLOAT32}:
        check_precision(precision, default_device())


def check_all_used(short: Mapping[str, Value], phases: Sequence[Phase]) -> None:
    """Raise a SettingsError if an option in `short` belongs to none of the phases."""
    for key, value in short.items():
        if not any(key in phase.options for phase in phases):
            has = {phase.name: ", ".join(phase.options) or "no settings" for phase in phases}
            own = "; ".join(f"{name} has {options}" for name, options in has.items())
            raise SettingsError(f"{key} = {value}: no method of the study has this; {own}", key)


def used_keys(config: Mapping[str, Any]) -> set[str]:
    """Return the keys of all options of the tasks' method and of the head."""
    of_tasks = Method.read(config.get("task-method", "fedavg"))
    return option_keys(of_tasks, TASK) | option_keys(Method.read(config.get("head", FRESH)), HEAD)


def option_keys(method: Method, role: str) -> set[str]:
    """Return the keys of the options of all phases of a method; empty if the method is unknown.

    An unknown method is reported elsewhere, when the method is used.
    """
    with contextlib.suppress(SettingsError):
        return {
            key
            for algorithm in method.algorithms
            for key in (*algorithm.options, *training_keys(algorithm, role))
        }
    return set()
