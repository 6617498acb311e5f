"""Methods from a Python program: a strategy (object or class), a string, or a ClientApp."""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy
from torch import nn

from coprefl_flwr.arrays import Arrays, checksum_of
from coprefl_flwr.errors import SettingsError, excerpt, one_line, wrong_type
from coprefl_flwr.federation import of_flower
from coprefl_flwr.federation.checkpoint import State
from coprefl_flwr.federation.progress import PRETRAINING_KIND
from coprefl_flwr.federation.robust import AGGREGATION
from coprefl_flwr.federation.strategy import ROUNDS
from coprefl_flwr.learning import LocalTraining
from coprefl_flwr.methods import PRETRAINING, TASK, Algorithm, with_role
from coprefl_flwr.models import buffer_names, model_arrays, save_model
from coprefl_flwr.models.weights import FILE
from coprefl_flwr.object_code import code_hash, network_hash
from coprefl_flwr.options import Option, checked_options, declared
from coprefl_flwr.strategies import RoundStrategy, ServerRefined
from coprefl_flwr.studies.architecture import Architecture, checked_network, copies_of
from coprefl_flwr.studies.method import START, Method, folder_of
from coprefl_flwr.studies.phases import Phase, TrainingOptions, made_phase, single_phase
from coprefl_flwr.studies.populations import Clients
from coprefl_flwr.studies.pretraining import Pretraining, Start, parts_of
from coprefl_flwr.studies.provenance import versions
from coprefl_flwr.studies.stage import RunOptions, TrainingStage
from coprefl_flwr.studies.store import Store


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
    return "+".join(_algorithm_of(part).label for part, _ in parts_of(strategy, 1))


def pretraining_options(method: RoundStrategy | str) -> dict[str, Option]:
    """Return the options of a pre-training by key, without options that the strategy sets."""
    if isinstance(method, str):
        return {**declared(TrainingOptions), "seed": declared(RunOptions)["seed"]}
    of_strategy = declared(RoundStrategy)
    training = declared(TrainingOptions).items()
    options = {key: option for key, option in training if key not in of_strategy}
    for part, _ in parts_of(method, 1):
        options |= declared(_algorithm_of(part).client_class)
    return options


def task_options(method: RoundStrategy | str) -> dict[str, Option]:
    """Return the options of tasks by key: options of local training and of a strategy's client."""
    of_client = {} if isinstance(method, str) else declared(_algorithm_of(method).client_class)
    return {**declared(LocalTraining), **of_client}


def start_of_method(
    method: RoundStrategy | str, training: TrainingOptions, options: Mapping[str, Any], clients: int
) -> Start:
    """Return the Start of a pre-training with a method.

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
        described = Method.parse(method)
        if described == START or described.is_external:
            raise SettingsError(f"method = {method!r}: it trains nothing; use the model as it is")
        return Start.of(described, training, {})
    if method.clients is not None:
        line = f"clients = {method.clients} of the strategy"
        raise SettingsError(f"{line}: leave it out; the call already has the clients")
    phases = []
    for part, rounds in parts_of(method, training.rounds):
        how = replace(training, rounds=rounds, participants=part.number_of_participants(clients))
        phases.append(_phase_of(part, PRETRAINING, how, options))
    name = name_of(method)
    return Start(name, name, phases, strategy=method)


def task_phase(
    method: RoundStrategy | str, training: TrainingOptions, options: Mapping[str, Any]
) -> Phase:
    """Return the phase of tasks; `options` are the options of a strategy's clients, by name.

    Raises a SettingsError for a method that cannot run tasks, or a strategy that sets an option
    whose value the tasks determine, such as the seed.
    """
    if isinstance(method, str):
        return single_phase("method", Method.parse(method), TASK, training, {})
    name = type(method).__name__
    if isinstance(method, ServerRefined):
        raise SettingsError(f"method = {name}: needs server data, which tasks do not have")
    phase = _phase_of(method, TASK, training, options)
    for option in declared(RoundStrategy).values():
        value = getattr(method, option.name)
        if option.name not in AGGREGATION and value != option.default:
            why = "all clients take part in a task, and `tasks` has the seed"
            raise SettingsError(
                f"method = {name}: {option.name} = {value!r}: leave it out, as {why}"
            )
    return replace(phase, template=method)


def _algorithm_of(strategy: RoundStrategy) -> Algorithm:
    """Return the Algorithm of a strategy's class; for ServerRefined, of the inner strategy's."""
    inner = strategy.inner if isinstance(strategy, ServerRefined) else strategy
    return Algorithm(inner.name or type(inner).__name__, type(inner))


def _phase_of(
    strategy: RoundStrategy, role: str, training: TrainingOptions, options: Mapping[str, Any]
) -> Phase:
    """Return the phase of a strategy in a role; `options` are its client's options, by name."""
    algorithm = _algorithm_of(strategy)
    if role not in algorithm.roles:
        others = ", ".join(name for name, other in with_role(role).items() if not other.refined)
        problem = f"{algorithm.label} is a {' and '.join(algorithm.roles)} method"
        needed = f"a {role} method is needed, such as {others}"
        raise SettingsError(f"method = {type(strategy).__name__}: {problem}; {needed}")
    inner = strategy.inner if isinstance(strategy, ServerRefined) else strategy
    of_client = declared(algorithm.client_class)
    own = {
        key: getattr(inner, option.name)
        for key, option in algorithm.options.items()
        if key not in of_client
    }
    own |= {key: options[o.name] for key, o in of_client.items() if o.name in options}
    return made_phase(algorithm, role, own, training, {})


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
    start = start_of_method(method, training, chosen, number)
    return Pretraining(start, clients, architecture, RunOptions(seed=seed))


def local_training(options: Mapping[str, Any], **defaults: Any) -> TrainingOptions:
    """Return the options of local training: those in `options`, and `defaults` for the others."""
    known = {option.name for option in declared(TrainingOptions).values()}
    chosen = {name: value for name, value in options.items() if name in known}
    return TrainingOptions(**{**defaults, **chosen})


def starts_of(starts: Any) -> list[Start]:
    """Return a Start for each network or file, or raise a SettingsError for another value."""
    if not isinstance(starts, Mapping) or not starts:
        example = "{'random': Net(), 'coprefl': start}"
        raise wrong_type("starts", starts, "a mapping of names to networks or files", example)
    names = {name: folder_of(name) if isinstance(name, str) else "" for name in starts}
    all_starts = []
    for name, folder in names.items():
        if not folder.strip("-") or list(names.values()).count(folder) > 1:
            problem = f"start {excerpt(repr(name))}: a name must be a text with a letter or digit"
            raise SettingsError(f"{problem}, and two names must differ in letters or digits")
        weights = starts[name]
        if isinstance(weights, str | Path):
            weights = f"{FILE}{weights}"
        else:
            weights = checked_network(f"start {name!r}", weights, "Net() or 'model.safetensors'")
        all_starts.append(Start(name, name, weights=weights))
    return all_starts


# ---- a ClientApp --------------------------------------------------------------------------------


NODES = Option("nodes", "nodes", 0, (int,), "nodes of a ClientApp", minimum=1)


class AppPretraining(TrainingStage):
    """A pre-training whose clients are a ClientApp.

    Parameters
    ----------
    strategy : RoundStrategy
        The strategy that runs all rounds. The strategy is copied.
    network : nn.Module
        The network with the first weights.
    rounds : int
        Number of rounds. A Schedule states its rounds itself, so this number is not used.
    nodes : int
        Number of nodes that the app runs on.

    Raises a SettingsError for a number of rounds or nodes below 1.
    """

    kind, phase, has_client_rows = PRETRAINING_KIND, "pretraining", False

    def __init__(
        self, strategy: RoundStrategy, network: nn.Module, rounds: int, nodes: int
    ) -> None:
        self.nodes = NODES.checked(nodes, "nodes")
        parts, name = parts_of(strategy, ROUNDS.checked(rounds, "rounds")), name_of(strategy)
        of_run, title = RunOptions(seed=strategy.seed), f"pre-training {name}"
        super().__init__(of_run, title, name, name, sum(number for _, number in parts))
        self._strategy, self.first = copy.deepcopy(strategy), model_arrays(network)
        self._buffers = buffer_names(network)
        self._code = [network_hash(network), code_hash(*(type(part) for part, _ in parts))]
        self._strategy.evaluate_every = 0  # The model is evaluated on tasks instead.

    def identity(self) -> Mapping[str, Any]:
        """Return the method, the initial network and the number of nodes; not the app."""
        model = [checksum_of(self.first), *self._code]
        return {"method": self._strategy.options(), "model": model, "nodes": self.nodes}

    @property
    def key(self) -> str:
        """Return the method's name. It needs no hash, because the store has no other stage."""
        return self.start

    def strategy(self) -> RoundStrategy:
        """Return the strategy of the pre-training."""
        return self._strategy

    def buffers(self) -> Collection[str]:
        """Return the names of the network's buffers."""
        return self._buffers

    def initial(self, store: Store) -> Arrays:
        """Return the first weights of the network."""
        return self.first

    def save_extras(self, folder: Path, arrays: Arrays, state: State) -> dict[str, Any]:
        """Write the starting model and `model.json`; return no further columns."""
        save_model(folder, arrays, {"start": self.start, "versions": versions()})
        return {}
