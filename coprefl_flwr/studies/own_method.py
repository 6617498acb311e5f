"""Methods, starts and ways to run tasks from a Python program: strategies, texts, networks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy
from torch import nn

from coprefl_flwr.errors import SettingsError, wrong_type
from coprefl_flwr.federation import of_flower
from coprefl_flwr.federation.robust import AGGREGATION
from coprefl_flwr.learning.training import LocalTraining
from coprefl_flwr.methods import HEAD, PRETRAINING, TASK, check_role
from coprefl_flwr.models.weights import text_of
from coprefl_flwr.options import Option, checked_options, declared
from coprefl_flwr.strategies import RoundStrategy, Schedule, ServerRefined
from coprefl_flwr.studies.architecture import Architecture, checked_network, copies_of
from coprefl_flwr.studies.hashes import values_of
from coprefl_flwr.studies.known_methods import in_role, with_role
from coprefl_flwr.studies.measurements import ClientMetrics, MetricLike
from coprefl_flwr.studies.method import FRESH, KEEP, Method, one_after_another, parts_of
from coprefl_flwr.studies.populations import Clients
from coprefl_flwr.studies.pretraining import Pretraining
from coprefl_flwr.studies.results import without_folders
from coprefl_flwr.studies.stage import RunOptions
from coprefl_flwr.studies.task_data import Tasks
from coprefl_flwr.studies.tasks import TASK_RATE, Downstream
from coprefl_flwr.studies.training_options import WRAPPER_KEYS, TrainingOptions


def read_method(method: Any, usage: str) -> Method:
    """Return the method of a string, or of a strategy of this package or of Flower.

    Raises a SettingsError for another type; its message has `usage`, an example of the call.
    """
    if isinstance(method, str):
        return Method.parse(method)
    if isinstance(method, Strategy):
        strategy = method if isinstance(method, RoundStrategy) else of_flower(method)
        phases = [_phase_of(part) for part, _ in parts_of(strategy, 1)]
        return replace(one_after_another(phases), instance=strategy)
    example = f"{method.__name__}()" if isinstance(method, type) else usage
    raise wrong_type("method", method, "a strategy, or a text such as 'fedavg'", example)


def _phase_of(strategy: RoundStrategy) -> Method:
    """Return the method of a strategy object, with the name of its class, and its options.

    For a refined strategy, they are those of the strategy that is refined.
    """
    inner = strategy.inner if isinstance(strategy, ServerRefined) else strategy
    method = Method(inner.name or type(inner).__name__, instance=strategy)
    of_client = declared(method.client_class)
    known = method.declared_options.items()
    return method.having({k: getattr(inner, o.name) for k, o in known if k not in of_client})


def _options_of_clients(method: Method) -> dict[str, Option]:
    """Return the options of a strategy object's clients by key; a text sets them itself."""
    phases = method.phases if method.instance else ()
    return {key: o for phase in phases for key, o in declared(phase.client_class).items()}


def pretraining_options(method: Method) -> dict[str, Option]:
    """Return the options of a pre-training by key, without options that the strategy sets."""
    of_run = {key: declared(RunOptions)[key] for key in ("seed", "keep")}
    if method.instance is None:
        return {**declared(TrainingOptions), **of_run}
    of_strategy, training = declared(RoundStrategy), declared(TrainingOptions).items()
    options = {key: option for key, option in training if key not in of_strategy}
    return options | {"keep": of_run["keep"]} | _options_of_clients(method)


def _pretraining_method(
    method: Method, training: TrainingOptions, options: Mapping[str, Any], clients: int
) -> Method:
    """Return a method in its role in a pre-training with `clients` clients.

    `training` has the number of rounds, but a strategy object has its number of participants.
    `options` are the options of a strategy object's clients, by name.

    Raises a SettingsError for a method that cannot pre-train.
    """
    strategy = method.instance
    if strategy is None:
        described = in_role("method", method, PRETRAINING, training)
        if not described.role:
            raise SettingsError(f"method = '{method}': it trains nothing; use the model as it is")
        return described
    phases = []
    for phase, (part, rounds) in zip(
        method.phases, parts_of(strategy, training.rounds), strict=True
    ):
        how = replace(training, rounds=rounds, participants=part.number_of_participants(clients))
        phases.append(_in_role(phase, PRETRAINING, how, options))
    return replace(one_after_another(phases), instance=strategy)


def task_method(method: Method, training: TrainingOptions, options: Mapping[str, Any]) -> Method:
    """Return a method in its role in tasks; `options` are a strategy's clients' options, by name.

    Raises a SettingsError for a method that cannot run tasks, or a strategy that sets an option
    whose value the tasks determine, such as the seed.
    """
    if method.instance is None:
        return in_role("method", method, TASK, training)
    strategy = method.instance
    if isinstance(strategy, ServerRefined | Schedule):
        raise SettingsError(f"method = {type(strategy).__name__}: a task has one method")
    described = _in_role(method, TASK, training, options)
    for option in declared(RoundStrategy).values():
        value = getattr(strategy, option.name)
        if option.name not in AGGREGATION and value != option.default:
            raise SettingsError(f"{option.name} = {value!r} of the method: leave it out in tasks")
    return described


def downstream_of(
    tasks: Any,
    rounds: int = 50,
    *,
    method: str | RoundStrategy = "fedavg",
    head: str = str(FRESH),
    client_metrics: MetricLike | Sequence[MetricLike] = (),
    evaluate_every: int = 1,
    diagnostics: bool = False,
    **options: Any,
) -> Downstream:
    """Return how tasks are run; the arguments are those of `evaluate_starts`."""
    usage = "cp.evaluate_starts(starts, tasks)"
    if not isinstance(tasks, Tasks):
        raise wrong_type("tasks", tasks, "the tasks that cp.tasks(dataset) returns", usage)
    read = read_method(method, f"{usage[:-1]}, method=cp.FedProx(mu=0.1))")
    known = {**declared(LocalTraining), **_options_of_clients(read)}
    chosen = checked_options(options, known)
    numbers = {"rounds": rounds, "evaluate_every": evaluate_every, "diagnostics": diagnostics}
    of_tasks = checked_options(numbers, declared(Downstream))
    fewest = min(len(tasks[number].clients) for number in range(len(tasks)))
    training = local_training(
        chosen, rounds=max(of_tasks["rounds"], 1), participants=fewest, learning_rate=TASK_RATE
    )
    trained = task_method(read, training, chosen)
    layer, metrics = Method.parse(head), ClientMetrics(client_metrics)
    computed, keeps = in_role("head", layer, HEAD, training), layer == KEEP
    last = computed if computed.role else None
    return Downstream(trained, head=last, keeps_head=keeps, metrics=metrics, **of_tasks)


def settings_of(tasks: Tasks, how: Downstream, head: str) -> dict[str, Any]:
    """Return the settings of the tasks for a report, by their names in run-config."""
    each = [tasks[number] for number in range(len(tasks))]
    counts = {"tasks": len(tasks), "task-rounds": how.rounds, "head": head}
    for key, sizes in (
        ("task-classes", {len(task.classes) for task in each}),
        ("task-clients", {len(task.clients) for task in each}),
    ):
        counts[key] = sorted(sizes) if len(sizes) > 1 else sizes.pop()
    training = how.trained.training
    options = values_of(training, "rounds", "participants", *WRAPPER_KEYS)
    chosen = {key: value for key, value in options.items() if value is not None}
    chosen["batch-size"] = training.samples_per_step
    if training.local_epochs is None:
        chosen["local-steps"] = training.steps(1)
    chosen |= how.trained.about()
    return counts | {f"task-{key}": without_folders(value) for key, value in chosen.items()}


def _in_role(
    method: Method, role: str, training: TrainingOptions, options: Mapping[str, Any]
) -> Method:
    """Return a strategy object's method in a role; `options` are its client's options, by name."""
    check_role(method.label, method.strategy_class.roles, role, with_role(role))
    of_client = declared(method.client_class).items()
    own = {key: options[option.name] for key, option in of_client if option.name in options}
    return method.having(own).with_training(role, training)


def pretraining_of(
    method: Method,
    model: nn.Module,
    clients: Clients | Sequence[Any],
    rounds: int,
    options: Mapping[str, Any],
    name: str = "",
) -> Pretraining:
    """Return the pre-training stage of a network on clients that are datasets.

    `name` is the name of the start; by default the text of the method, or its classes.
    """
    if not isinstance(clients, Clients):
        if not isinstance(clients, Sequence) or isinstance(clients, str) or not len(clients):
            needed = "the clients that cp.partition returns, or a list of a dataset per client"
            raise wrong_type("clients", clients, needed, "cp.partition(dataset, clients=100)")
        clients = Clients.of_datasets(clients)
    chosen, number = checked_options(options, pretraining_options(method)), len(clients)
    training = local_training(chosen, rounds=rounds, participants=number)
    seed = method.instance.seed if method.instance else chosen.get("seed", 0)
    architecture = Architecture(type(model).__name__, copies_of(model), clients.source, seed)
    for samples in {samples.dataset.shape: samples for samples in clients.samples}.values():
        architecture.check("model", samples)
    described = _pretraining_method(method, training, chosen, number)
    if method.instance and not name:
        name = "+".join(phase.label for phase in method.phases)
    run = RunOptions(seed=seed, keep=chosen.get("keep"))
    return Pretraining(described, clients, architecture, run, name=name, loss=training.loss)


def local_training(options: Mapping[str, Any], **defaults: Any) -> TrainingOptions:
    """Return the options of local training: those in `options`, and `defaults` for the others."""
    known = {option.name for option in declared(TrainingOptions).values()}
    chosen = {name: value for name, value in options.items() if name in known}
    return TrainingOptions(**{**defaults, **chosen})


def starts_of(starts: Any) -> dict[str, nn.Module | str]:
    """Return {name: network or text of weights} of starts; a SettingsError for another value."""
    if not isinstance(starts, Mapping) or not starts:
        raise wrong_type("starts", starts, "a mapping to networks or files", "{'mine': Net()}")
    return {
        name: text_of(weights)
        if isinstance(weights, str | Path)
        else checked_network(f"start {name!r}", weights, "Net() or 'model.safetensors'")
        for name, weights in starts.items()
    }
