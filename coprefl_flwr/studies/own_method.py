"""Methods and starts from a Python program: strategies (objects or classes), texts, networks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy
from torch import nn

from coprefl_flwr.errors import SettingsError, excerpt, one_line, wrong_type
from coprefl_flwr.federation import of_flower
from coprefl_flwr.federation.robust import AGGREGATION
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.methods import PRETRAINING, TASK
from coprefl_flwr.models.weights import FILE
from coprefl_flwr.named import folder_of
from coprefl_flwr.options import Option, checked_options, declared
from coprefl_flwr.strategies import RoundStrategy, ServerRefined
from coprefl_flwr.studies.architecture import Architecture, checked_network, copies_of
from coprefl_flwr.studies.known_methods import in_role, with_role
from coprefl_flwr.studies.method import Method, one_after_another, parts_of
from coprefl_flwr.studies.populations import Clients
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.stage import RunOptions
from coprefl_flwr.studies.training_options import TrainingOptions


def read_method(method: Any, usage: str, *, classes: bool = False) -> RoundStrategy | str:
    """Return a method as a strategy of this package, or as the given string.

    If `classes` is true, the method may be a strategy class, which is called without arguments.

    Raises a SettingsError for another type; its message has `usage`, an example of the call.
    """
    if classes and isinstance(method, type) and issubclass(method, RoundStrategy):
        try:
            return method()
        except TypeError as error:
            problem = f"method = {method.__name__}: {one_line(error)}"
            raise SettingsError(f"{problem}; pass a strategy object") from error
    if isinstance(method, RoundStrategy | str):
        return method
    if isinstance(method, Strategy):
        return of_flower(method)
    kind = method if isinstance(method, type) else type(method)
    if any(base.__module__.startswith("flwr.server.strategy") for base in kind.__mro__):
        problem = f"method is {kind.__name__}, a strategy of Flower's older API (flwr.server)"
        raise SettingsError(f"{problem}; pass a strategy of flwr.serverapp.strategy")
    example = f"{kind.__name__}()" if issubclass(kind, Strategy) else usage
    raise wrong_type("method", method, "a strategy, or a text such as 'fedavg'", example)


def name_of(strategy: RoundStrategy) -> str:
    """Return the name of a strategy in result rows and progress, such as "cyclic+fedavg"."""
    return "+".join(_method_of(part).label for part, _ in parts_of(strategy, 1))


def pretraining_options(method: RoundStrategy | str) -> dict[str, Option]:
    """Return the options of a pre-training by key, without options that the strategy sets."""
    if isinstance(method, str):
        return {**declared(TrainingOptions), "seed": declared(RunOptions)["seed"]}
    of_strategy = declared(RoundStrategy)
    training = declared(TrainingOptions).items()
    options = {key: option for key, option in training if key not in of_strategy}
    for part, _ in parts_of(method, 1):
        options |= declared(_method_of(part).client_class)
    return options


def task_options(method: RoundStrategy | str) -> dict[str, Option]:
    """Return the options of tasks by key: options of local training and of a strategy's client."""
    of_client = {} if isinstance(method, str) else declared(_method_of(method).client_class)
    return {**declared(LocalTraining), **of_client}


def pretraining_method(
    method: RoundStrategy | str, training: TrainingOptions, options: Mapping[str, Any], clients: int
) -> Method:
    """Return a method in its role in a pre-training.

    Parameters
    ----------
    method : RoundStrategy or str
        The method.
    training : TrainingOptions
        Number of rounds, and local training. The number of participants is the strategy's.
    options : Mapping[str, Any]
        Options of a strategy's clients, by name.
    clients : int
        Number of clients.

    Raises a SettingsError for a method that cannot pre-train, or a strategy that sets `clients`.
    """
    if isinstance(method, str):
        described = in_role("method", Method.parse(method), PRETRAINING, training)
        if not described.role:
            raise SettingsError(f"method = {method!r}: it trains nothing; use the model as it is")
        return described
    if method.clients is not None:
        line = f"clients = {method.clients} of the strategy"
        raise SettingsError(f"{line}: leave it out; the call already has the clients")
    phases = []
    for part, rounds in parts_of(method, training.rounds):
        how = replace(training, rounds=rounds, participants=part.number_of_participants(clients))
        phases.append(_in_role(part, PRETRAINING, how, options))
    return replace(one_after_another(phases), instance=method)


def task_method(
    method: RoundStrategy | str, training: TrainingOptions, options: Mapping[str, Any]
) -> Method:
    """Return a method in its role in tasks; `options` are a strategy's clients' options, by name.

    Raises a SettingsError for a method that cannot run tasks, or a strategy that sets an option
    whose value the tasks determine, such as the seed.
    """
    if isinstance(method, str):
        return in_role("method", Method.parse(method), TASK, training)
    name = type(method).__name__
    if isinstance(method, ServerRefined):
        raise SettingsError(f"method = {name}: needs server data, which tasks do not have")
    described = _in_role(method, TASK, training, options)
    for option in declared(RoundStrategy).values():
        value = getattr(method, option.name)
        if option.name not in AGGREGATION and value != option.default:
            why = "all clients take part in a task, and `tasks` has the seed"
            raise SettingsError(
                f"method = {name}: {option.name} = {value!r}: leave it out, as {why}"
            )
    return described


def _method_of(strategy: RoundStrategy) -> Method:
    """Return the method of a strategy object, with the name of its class, or of the refined one."""
    inner = strategy.inner if isinstance(strategy, ServerRefined) else strategy
    return Method(inner.name or type(inner).__name__, instance=strategy)


def _in_role(
    strategy: RoundStrategy, role: str, training: TrainingOptions, options: Mapping[str, Any]
) -> Method:
    """Return a strategy object's method in a role; `options` are its client's options, by name."""
    method = _method_of(strategy)
    inner = strategy.inner if isinstance(strategy, ServerRefined) else strategy
    if role not in inner.roles:
        others = ", ".join(name for name, other in with_role(role).items() if not other.refined)
        problem = f"{method.label} is a {' and '.join(inner.roles)} method"
        needed = f"a {role} method is needed, such as {others}"
        raise SettingsError(f"method = {type(strategy).__name__}: {problem}; {needed}")
    of_client = declared(method.client_class)
    own = {
        key: getattr(inner, option.name)
        for key, option in method.declared_options.items()
        if key not in of_client
    }
    own |= {key: options[o.name] for key, o in of_client.items() if o.name in options}
    return method.having(own).with_training(role, training)


def pretraining_of(
    method: RoundStrategy | str,
    model: nn.Module,
    clients: Clients | Sequence[Any],
    rounds: int,
    options: Mapping[str, Any],
) -> Pretraining:
    """Return the pre-training stage of a network on clients that are datasets."""
    if not isinstance(clients, Clients):
        if not isinstance(clients, Sequence) or isinstance(clients, str) or not len(clients):
            needed = "the clients that cp.partition returns, or a list of a dataset per client"
            raise wrong_type("clients", clients, needed, "cp.partition(dataset, clients=100)")
        clients = Clients.of_datasets(clients)
    chosen, number = checked_options(options, pretraining_options(method)), len(clients)
    training = local_training(chosen, rounds=rounds, participants=number)
    seed = chosen.get("seed", 0) if isinstance(method, str) else method.seed
    architecture = Architecture(type(model).__name__, copies_of(model), clients.source, seed)
    architecture.check_clients(clients.samples)
    described = pretraining_method(method, training, chosen, number)
    name = "" if isinstance(method, str) else name_of(method)
    return Pretraining(described, clients, architecture, RunOptions(seed=seed), name=name)


def local_training(options: Mapping[str, Any], **defaults: Any) -> TrainingOptions:
    """Return the options of local training: those in `options`, and `defaults` for the others."""
    known = {option.name for option in declared(TrainingOptions).values()}
    chosen = {name: value for name, value in options.items() if name in known}
    return TrainingOptions(**{**defaults, **chosen})


def starts_of(starts: Any) -> dict[str, nn.Module | str]:
    """Return {name: network or text of weights} of starts; a SettingsError for another value."""
    if not isinstance(starts, Mapping) or not starts:
        example = "{'random': Net(), 'coprefl': start}"
        raise wrong_type("starts", starts, "a mapping of names to networks or files", example)
    names = {name: folder_of(name) if isinstance(name, str) else "" for name in starts}
    for name, folder in names.items():
        if not folder.strip("-") or list(names.values()).count(folder) > 1:
            problem = f"start {excerpt(repr(name))}: a name must be a text with a letter or digit"
            raise SettingsError(f"{problem}, and two names must differ in letters or digits")
    return {
        name: f"{FILE}{weights}"
        if isinstance(weights, str | Path)
        else checked_network(f"start {name!r}", weights, "Net() or 'model.safetensors'")
        for name, weights in starts.items()
    }
